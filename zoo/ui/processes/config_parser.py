"""The parser of configs: one process that stays, since it imports for seconds and parses in a fraction of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.common.registry import allowed_packages
from zoo.ui.processes.command import JsonProcess

WORKER = "zoo.cli.config_worker"


@dataclass(frozen=True)
class ParsedConfig:
    """The complete config of a training."""

    config: dict[str, Any]
    text: str  # as the run's `config.yaml` holds it
    arguments: Mapping[str, Mapping[str, Any]]  # `help`, `type`, `choices` by section or class, then by name


class ConfigParser:
    """Parses recipes with changes merged over them, one after the other."""

    def __init__(self, environment: dict[str, str], temp: Path, worker: str = WORKER) -> None:
        self._process = JsonProcess(worker, allowed_packages(), environment, temp / "config_parser.log")
        self._lock = asyncio.Lock()

    async def parse(self, files: Sequence[Path], changes: Mapping[str, Any]) -> ParsedConfig:
        """Parse the command line `zoo fit` with these files; ValueError with its message, which names the key."""
        async with self._lock:
            try:
                await self._process.send({"files": [str(file) for file in files], "changes": dict(changes)})
                reply = await self._process.receive()
            except asyncio.CancelledError:  # the reply would be taken for that of the next request
                await self._process.close()
                raise
        if "error" in reply:
            raise ValueError(reply["error"])
        return ParsedConfig(**reply)

    async def start(self) -> None:
        """Start the process before it is needed."""
        async with self._lock:
            await self._process.start()

    async def close(self) -> None:
        """End the process."""
        await self._process.close()
