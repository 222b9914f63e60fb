"""What the pages of one server share, and what the tabs of one page share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nicegui import ui

from zoo.ui.folders import Folders
from zoo.ui.machine import MachineLoad, read_machine
from zoo.ui.metrics import MetricsReader
from zoo.ui.predictions import Predictions
from zoo.ui.processes.command import ConfigParser
from zoo.ui.processes.model_process import ModelProcess
from zoo.ui.processes.training_queue import TrainingQueue
from zoo.ui.run_index import RunIndex

Result = TypeVar("Result")
REFRESH_SECONDS = 1.0
log = logging.getLogger(__name__)


class AppState:
    """The state of one server.

    Attributes:
        exporting: runs that a command writes exports of.
        loads: of this machine: its processor, then its GPUs.
        recipe: system, recipe and machine preset that were chosen last; None before.
    """

    def __init__(self, folders: Folders, environment: dict[str, str], trainings_at_once: int = 1) -> None:
        self.folders = folders
        self.environment = environment
        self.queue = TrainingQueue(folders, environment, trainings_at_once)
        self.index = RunIndex(folders, self.queue)
        self.metrics = MetricsReader()
        self.parser = ConfigParser(environment, folders.temp)
        self.predictions = Predictions(folders, ModelProcess(environment, folders.temp))
        self.exporting: set[str] = set()
        self.loads: list[MachineLoad] = []
        self.recipe: tuple[str, str, str] | None = None

    async def refresh_forever(self) -> None:
        """Start trainings, list runs and read the load; an error of one turn is logged."""
        await self.parser.start()
        while True:
            try:
                self.queue.tick()
                await asyncio.to_thread(self.index.scan)
                self.loads = await asyncio.to_thread(read_machine)
            except Exception:  # whatever a folder of the runs holds
                log.exception("the runs cannot be read")
            await asyncio.sleep(REFRESH_SECONDS)

    async def close(self) -> None:
        """End the processes that answer pages; trainings continue."""
        await self.parser.close()
        await self.predictions.model.close()


@dataclass
class PageState:
    """The state of one open page.

    Args:
        run: that all tabs show, "" for none; `choose` changes it.
        compared_runs: whose curves are drawn together with it.
        uploads: keys of the files that were uploaded from it.
    """

    app: AppState
    run: str = ""
    compared_runs: list[str] = field(default_factory=list)
    uploads: set[str] = field(default_factory=set)
    tabs: Any = None

    def choose(self, run: str, tab: str = "", compared_runs: Sequence[str] = ()) -> None:
        """Show a run in all tabs from their next refresh on, and open a tab if one is named."""
        self.run, self.compared_runs = run, list(compared_runs)
        if tab:
            self.tabs.set_value(tab)

    def refresh_every(self, seconds: float, tab: str, refresh: Callable[[], Awaitable[None]]) -> None:
        """Refresh a tab when it is opened and again and again while it is open, "" for always."""

        async def refresh_open_tab() -> None:
            if not tab or self.tabs.value == tab:
                await refresh()

        ui.timer(seconds, refresh_open_tab)
        self.tabs.on_value_change(refresh_open_tab)


async def notify_errors(work: Awaitable[Result]) -> Result | None:
    """Return the result of work; an error that the user can mend becomes a notice on the page, and None."""
    try:
        return await work
    except (ValueError, OSError) as error:
        notify_error(error)
        return None


def notify_error(error: Exception) -> None:
    """Show an error on the page until it is closed."""
    ui.notify(" ".join(str(error).split()), type="negative", multi_line=True, close_button="Close", timeout=0)
