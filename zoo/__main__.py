"""`python -m zoo`."""

from zoo.cli import entry

if __name__ == "__main__":
    entry()
