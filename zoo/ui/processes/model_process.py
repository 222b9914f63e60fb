"""The loaded model: one process, which is started again for another checkpoint or device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zoo.common.registry import allowed_packages
from zoo.runs.checkpoints import find_checkpoints
from zoo.runs.inference.forms import InputField, Output
from zoo.ui.processes.command import JsonProcess

WORKER = "zoo.ui.processes.model_worker"
Progress = Callable[[float, str], None]
Source = tuple[Path, str, Path, int]  # path, device, and the checkpoint with the time when it was written


class ModelProcess:
    """Loads one model at a time and computes one form at a time."""

    def __init__(self, environment: dict[str, str], temp: Path, worker: str = WORKER) -> None:
        self._process = JsonProcess(worker, (), environment, temp / "model.log")
        self._source: Source | None = None
        self._fields: tuple[InputField, ...] = ()

    async def load(self, path: Path, device: str) -> tuple[InputField, ...]:
        """Load a run folder or a checkpoint, unless it is loaded; returns its fields, ValueError when that fails."""
        async with self._process.exchange():
            return await self._load(path, device)

    async def predict(
        self, path: Path, device: str, values: Mapping[str, Any], folder: Path, report: Progress
    ) -> tuple[list[Output], float]:
        """Compute a form; returns the outputs, whose files are in `folder`, and the seconds that they took.

        A caller that is cancelled ends the process. ValueError when the model cannot be loaded or refuses the values,
        ChildProcessError when its process ended.
        """
        async with self._process.exchange():
            await self._load(path, device)
            report(0.0, "computing")
            await self._process.send({"values": dict(values), "folder": str(folder)})
            while "progress" in (reply := await self._process.receive()):
                report(reply["progress"], reply["text"])
            return [Output(**output) for output in reply["outputs"]], reply["seconds"]

    async def close(self) -> None:
        """End the process; what it computes fails."""
        self._source, self._fields = None, ()
        await self._process.close()

    async def _load(self, path: Path, device: str) -> tuple[InputField, ...]:
        files = find_checkpoints(path) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path} has no checkpoint yet")
        source = path, device, files[0], files[0].stat().st_mtime_ns
        if source != self._source or self._process.pid is None:
            await self.close()
            packages = list(allowed_packages())
            await self._process.send({"path": str(path), "device": device, "allow_import": packages})
            reply = await self._process.receive()
            self._fields = tuple(InputField(**entry) for entry in reply["fields"])
            self._source = source  # not after an error: the next call starts a new process
        return self._fields
