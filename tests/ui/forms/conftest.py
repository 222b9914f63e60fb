"""Elements are made in a page that no browser looks at."""

from tests.ui.tabs.conftest import client, storage

__all__ = ["client", "storage"]
