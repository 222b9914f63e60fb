"""Complete configs of recipes: the parser needs seconds for one, so each is read once while its files stay the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.common.configs import load_recipe, load_yaml
from zoo.ui.checks import Rules, strings
from zoo.ui.jobs.trainings import Trainings

AT_ONCE = 2  # parsers; each takes a core for seconds
CHECKS_KEPT = 64

Marks = tuple[tuple[Path, int], ...]


class Configs:
    """The complete configs of one server."""

    def __init__(self, trainings: Trainings) -> None:
        self._trainings = trainings
        self._complete: dict[Marks, str] = {}
        self._checked: dict[tuple[Marks, str], str] = {}
        self._locks: defaultdict[Marks, threading.Lock] = defaultdict(threading.Lock)
        self._contents: dict[Marks, dict[str, Any]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    def contents(self, files: Sequence[Path]) -> list[dict[str, Any]]:
        """What each of the server's own files says, as written."""
        for file in files:
            mark = _marks([file])
            if mark not in self._contents:
                self._contents[mark] = load_recipe(file)
        return [self._contents[_marks([file])] for file in files]

    def known(self, files: Sequence[Path]) -> dict[str, Any] | None:
        """The complete config of the server's own files, if it has been read."""
        text = self._complete.get(_marks(files))
        return None if text is None else load_yaml(text) or {}

    def read(self, files: Sequence[Path]) -> dict[str, Any]:
        """The complete config of the server's own files.

        Raises:
            ValueError: what the parser says against them.
        """
        return load_yaml(self._text(files)) or {}

    async def complete(self, files: Sequence[Path], wanted: Callable[[], bool]) -> dict[str, Any] | None:
        """Read a complete config when it is its turn; None if nobody wants it any more by then.

        Raises:
            ValueError: what the parser says against it.
        """
        async with self._turns:
            return await asyncio.to_thread(self.read, files) if wanted() else None

    def check(self, files: Sequence[Path], changes: Mapping[str, Any], rules: Rules, chosen: Sequence[str]) -> str:
        """The complete config of files with changes laid over them, after every key and value has passed the rules.

        Args:
            chosen: strings that the server itself put into the changes.

        Raises:
            ValueError: what the parser says against it, or the first key or value that the rules refuse.
        """
        if not changes:
            return self._text(files)
        mark = (_marks(files), json.dumps([changes, list(chosen)], default=str))
        if mark not in self._checked:

            def known() -> list[str]:
                return [*chosen, *strings(self.read(files))]

            text = self._trainings.check(files, changes, rules, known)
            while len(self._checked) >= CHECKS_KEPT:
                self._checked.pop(next(iter(self._checked)), None)
            self._checked[mark] = text
        return self._checked[mark]

    def _text(self, files: Sequence[Path]) -> str:
        marks = _marks(files)
        with self._locks[marks]:  # a second page waits for what the first one reads
            if marks not in self._complete:
                self._complete[marks] = self._trainings.parse(files, {})
            return self._complete[marks]


def _marks(files: Sequence[Path]) -> Marks:
    return tuple((file, file.stat().st_mtime_ns) for file in files)
