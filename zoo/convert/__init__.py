"""Reading and writing the original files."""
