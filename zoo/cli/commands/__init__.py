"""Shared tools as plain typed functions, one file each; the file name is the command name."""
