"""What all open pages show of runs and of this machine, read once for all of them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from zoo.runs.listing import Run, read_run
from zoo.ui.places import Places
from zoo.ui.processes import Trainings
from zoo.ui.curves import Metrics
from zoo.ui.readings import Load, machine_load

SCAN_SECONDS = 0.5
LOAD_SECONDS = 2.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """A run as the page lists it.

    Args:
        name: `<system>/<recipe>/<time>`.
        state: of its process, see `Trainings.state`.
        run: what its folder says.
    """

    name: str
    state: str
    run: Run


@dataclass
class Board:
    """Rows of all runs, the newest first, and the load of the machine; kept up to date while the server runs."""

    places: Places
    trainings: Trainings
    metrics: Metrics = field(default_factory=Metrics)
    rows: dict[str, Row] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)

    async def watch(self) -> None:
        """Read again and again; a folder that vanishes meanwhile is no reason to end."""
        turn = 0
        while True:
            try:
                await asyncio.to_thread(self.scan)
                if turn % round(LOAD_SECONDS / SCAN_SECONDS) == 0:
                    self.loads = await asyncio.to_thread(machine_load)
            except OSError as error:
                log.warning("the runs could not be read: %s", error)
            turn += 1
            await asyncio.sleep(SCAN_SECONDS)

    def scan(self) -> None:
        """Read all runs once."""
        rows = {}
        for name in self.places.list_runs():
            try:
                rows[name] = Row(name, self.trainings.state(name), read_run(self.places.run(name), self.places.runs))
            except (ValueError, OSError):  # deleted just now
                continue
        self.rows = rows
