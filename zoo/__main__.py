"""`python -m zoo`."""

from zoo.cli.main import entry

if __name__ == "__main__":
    entry()
