"""The error of a file that is not what it should be on purpose."""


class UnsafeFileError(ValueError):
    """A file asks for something that data never needs; nothing of it was executed."""
