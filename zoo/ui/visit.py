"""What the tabs of one open page share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from nicegui import run, ui

from zoo.ui.board import Board
from zoo.ui.exports import Exports
from zoo.ui.forms.configs import Configs
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.store import Store
from zoo.ui.warm.asked import Asked

Result = TypeVar("Result")


@dataclass(frozen=True)
class Shared:
    """What all pages of a server share."""

    places: Places
    trainings: Trainings
    store: Store
    board: Board
    exports: Exports
    asked: Asked

    @cached_property
    def configs(self) -> Configs:
        """Complete configs, read once for all pages."""
        return Configs(self.trainings)

    def end_session(self, session: str) -> None:
        """Let go what belonged to a session whose pages are closed."""
        self.exports.end_session(session)
        self.asked.end(session)
        self.store.end(session)


@dataclass
class Visit:
    """One open page.

    Args:
        run: the run that is looked at, in all tabs; "" for none. Change it with `choose`.
        beside: runs to lay over it in Watch.
    """

    shared: Shared
    session: str
    run: str = ""
    beside: list[str] = field(default_factory=list)
    tabs: Any = None
    _listeners: list[Callable[[], Any]] = field(default_factory=list)

    def choose(self, run: str, tab: str = "", beside: Sequence[str] = ()) -> None:
        """Look at a run, in a tab if one is named; every listener learns of it before anything else happens."""
        self.run, self.beside = run, list(beside)
        for listener in self._listeners:
            listener()
        if tab:
            self.tabs.set_value(tab)

    def on_choice(self, listener: Callable[[], Any]) -> None:
        """Call when another run is chosen."""
        self._listeners.append(listener)

    def every(self, seconds: float, tab: str, refresh: Callable[[], Awaitable[None]]) -> None:
        """Refresh again and again while a tab is shown ("" for always); one refresh at a time."""

        async def turn() -> None:
            if not tab or self.tabs.value == tab:
                await refresh()

        ui.timer(seconds, turn)


async def aside(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call what reads or computes in a thread, so that other pages are served meanwhile."""
    found = await run.io_bound(lambda: (function(*arguments),))
    if found is None:  # the server ends
        raise asyncio.CancelledError
    return found[0]


async def one_line(work: Awaitable[Result]) -> Result | None:
    """Wait for work; what a user can mend becomes a notice on the page, and None."""
    try:
        return await work
    except (ValueError, OSError) as error:
        ui.notify(" ".join(str(error).split()), type="negative", multi_line=True, close_button="Close", timeout=0)
        return None
