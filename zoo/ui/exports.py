"""Exports of runs: written by `zoo export` into the run's folder, and sent as one zip."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import threading
import time
import zipfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import zoo
from zoo.common.atomic_files import delete_path
from zoo.common.locks import lock_folder
from zoo.runs.run_info import tail_lines
from zoo.ui.jobs.commands import last_error
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places, check_name

FOLDER_NAME = "exports"
AT_ONCE = 2
_MAKING = ".making-"
_BLOCK = 2**20  # bytes read at a time
_DATE = (1980, 1, 1, 0, 0, 0)  # the same export is the same file


@dataclass
class Export:
    """One that is being written, or how it ended.

    Args:
        owner: the session that asked for it.
        began: seconds since 1970.
        said: how it ended; "" while it is written.
        sound: whether it ended well.
    """

    run: str
    name: str
    owner: str
    began: float = field(default_factory=time.time)
    said: str = ""
    sound: bool = False
    cancelled: bool = False


class Exports:
    """The exports of one server, at most two at a time and one of a run."""

    def __init__(self, places: Places, trainings: Trainings) -> None:
        self.places = places
        self.trainings = trainings
        self._last: dict[str, Export] = {}
        self._lock = threading.Lock()

    def start(self, run: str, checkpoint: str, ema: bool, onnx: bool, owner: str) -> None:
        """Begin an export.

        Args:
            checkpoint: its name; "" for the newest sound one.
            ema: of the averaged weights, where there are any.
            onnx: with an ONNX file.
            owner: the session that asks.

        Raises:
            ValueError: there is no such run or checkpoint, or as many exports are being written as may.
        """
        path = self.places.checkpoint(run, checkpoint) if checkpoint else self.places.run(run)
        name = check_name(f"{Path(checkpoint).stem[:40] or 'newest'}{'' if ema else '-raw'}{'-onnx' if onnx else ''}")
        with self._lock:
            if self.under_way(run):
                raise ValueError(f"an export of {run} is being written; wait for it or cancel it")
            if sum(not export.said for export in self._last.values()) >= AT_ONCE:
                raise ValueError(f"{AT_ONCE} exports are being written, as many as may at a time; try again")
            export = self._last[run] = Export(run, name, owner)
        options = [*([] if ema else ["--ema=false"]), *(["--onnx=true"] if onnx else [])]
        threading.Thread(target=self._make, args=(export, path, options), daemon=True).start()

    def under_way(self, run: str) -> bool:
        """Whether an export of a run is being written by this server."""
        return run in self._last and not self._last[run].said

    def last(self, run: str) -> Export | None:
        """A run's export that this server began last."""
        return self._last.get(run)

    def cancel(self, run: str) -> None:
        """End a run's export."""
        if run in self._last:
            self._last[run].cancelled = True

    def end_session(self, session: str) -> None:
        """End what a session asked for."""
        for export in list(self._last.values()):
            export.cancelled |= export.owner == session

    def delete_run(self, run: str) -> None:
        """Delete a run that no export is written of.

        Raises:
            ValueError: one is, or see `Trainings.delete`.
            OSError: see there.
        """
        with self._lock:
            if self.under_way(run):
                raise ValueError(f"an export of {run} is being written; wait for it or cancel it")
            self.trainings.delete(run)

    def finished(self, run: str) -> dict[str, int]:
        """A run's finished exports: bytes by name."""
        folder = self.places.run(run) / FOLDER_NAME
        found = {}
        for entry in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
            with contextlib.suppress(ValueError, OSError):
                if check_name(entry.name) and entry.is_dir() and not entry.is_symlink():
                    found[entry.name] = sum(path.stat().st_size for path, _ in _files(entry))
        return found

    def zipped(self, run: str, name: str) -> Iterator[bytes]:
        """A finished export as a zip, not compressed, block by block.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self.finished(run):
            raise ValueError(f"there is no export {name[:80]!r}")
        return _zipped(self.places.run(run) / FOLDER_NAME / name)

    def _make(self, export: Export, path: Path, options: list[str]) -> None:
        try:
            folder = self.places.run(export.run) / FOLDER_NAME
            if folder.is_symlink():
                raise ValueError(f"{FOLDER_NAME} of {export.run} is a link to another place")
            with lock_folder(folder, "export"):
                said, export.sound = self._written(export, folder, path, options)
            export.said = said  # last: who reads it finds the rest in place
        except (ValueError, OSError) as error:  # the run was deleted, or the disk is full
            export.said = str(error)
        except BaseException:
            export.said = "it broke off"
            raise

    def _written(self, export: Export, folder: Path, path: Path, options: list[str]) -> tuple[str, bool]:
        for left in folder.glob(f"{_MAKING}*"):  # by a server that was killed: the lock is ours
            delete_path(left)
        making = folder / f"{_MAKING}{secrets.token_hex(4)}"
        making.mkdir()
        console, code = making / "console.log", None
        try:
            args = ("export", str(path), str(making / export.name), *options)
            following = cast("Generator[int | None]", self.trainings.follow(console, *args))
            with contextlib.closing(following):
                for code in following:  # noqa: B007
                    if export.cancelled:
                        return "cancelled", False
            if code != 0:
                return last_error(tail_lines(console)).replace(f"{self.places.runs}/", ""), False
            delete_path(folder / export.name)
            os.rename(making / export.name, folder / export.name)
            return f"{export.name} is ready", True
        finally:
            delete_path(making)


def offers_onnx(task: str) -> bool:
    """Whether a system writes ONNX, as its source says: importing it would load torch into the server.

    Args:
        task: public name of the task, `zoo.hifigan.HiFiGANTask`.
    """
    root, _, rest = task.partition(".")
    system = rest.partition(".")[0]
    if root != "zoo" or not system.isidentifier() or not importlib.util.find_spec("onnx"):
        return False
    folder = Path(zoo.__file__).parent / system
    paths = [folder / "inference.py", *folder.glob("inference/*.py")]
    return any(re.search(r"^    def onnx_graph\(", path.read_text(), re.MULTILINE) for path in paths if path.is_file())


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files below a folder with their names in it; links are left out."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path, path.relative_to(folder.parent).as_posix()


class _Blocks:
    """A file that is only written to; what was written is taken out again."""

    def __init__(self) -> None:
        self.waiting = bytearray()

    def write(self, data: Any) -> int:
        self.waiting += data
        return len(data)

    def flush(self) -> None:
        pass

    def taken(self) -> bytes:
        data = bytes(self.waiting)
        self.waiting.clear()
        return data


def _zipped(folder: Path) -> Iterator[bytes]:
    blocks = _Blocks()
    with zipfile.ZipFile(blocks, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for path, name in _files(folder):
            entry = zipfile.ZipInfo(name, _DATE)
            with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                while data := source.read(_BLOCK):
                    target.write(data)
                    yield blocks.taken()
    yield blocks.taken()
