"""Files, items and the datamodules."""
