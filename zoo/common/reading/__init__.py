"""Reading files of strangers within bounds."""
