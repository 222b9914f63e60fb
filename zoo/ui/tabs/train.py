"""The tab train."""

from __future__ import annotations

from zoo.ui.tabs.pieces import heading
from zoo.ui.visit import Visit


class TrainTab:
    """The tab, made in the current slot."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        heading("Train")
