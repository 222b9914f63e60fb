"""The server's own temporary folder: uploads and results by session, within limits, gone with the session."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from zoo.ui.places import check_name

KEPT_JOBS = 4
MIB = 2**20
MAX_FILES = 50
_BLOCK = 4096  # bytes that a file takes at least


class UploadError(ValueError):
    """An upload that goes beyond a limit."""


@dataclass(frozen=True)
class Upload:
    """What was noted when a file came in."""

    path: Path
    device: int
    inode: int
    size: int


@dataclass(frozen=True)
class Store:
    """Uploads, and a folder for the results of each prediction; each belongs to the session that sent it.

    Args:
        quota: bytes that it may hold.
        max_files: uploads that a session may have at a time.
        max_bytes: bytes that they may have together.
    """

    root: Path
    quota: int
    max_files: int = MAX_FILES
    max_bytes: int = 1024 * MIB
    _records: dict[str, dict[str, Upload]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def uploads(self) -> Path:
        """Where uploads lie, a folder for each session."""
        return self.root / "uploads"

    @property
    def jobs(self) -> Path:
        """Where results lie, a folder for each session."""
        return self.root / "jobs"

    def room(self) -> int:
        """Bytes that may still be stored."""
        used = 0
        for path in self.root.rglob("*"):
            try:
                used += max(path.lstat().st_size, _BLOCK)
            except FileNotFoundError:  # removed in between
                continue
        return max(self.quota - used, 0)

    def add(self, session: str, name: str, file: IO[bytes]) -> str:
        """Keep an uploaded file and note whose it is.

        Args:
            name: as the sender calls it.
            file: its content, at the start.

        Returns:
            What the session calls it from now on.

        Raises:
            UploadError: the session has as many files or bytes as it may.
        """
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        key = secrets.token_hex(8)
        path = self.uploads / check_name(session) / key / _harmless(name)
        with self._lock:
            records = self._records.setdefault(session, {})
            if len(records) >= self.max_files:
                raise UploadError(f"a session may have {self.max_files} uploads at a time (--max_uploads)")
            if sum(upload.size for upload in records.values()) + size > self.max_bytes:
                raise UploadError(f"a session's uploads may have {self.max_bytes // MIB} MiB (--max_session_mib)")
            records[key] = Upload(path, 0, 0, size)  # its place is taken; what it is comes when it is there
        try:
            path.parent.mkdir(parents=True)
            with path.open("xb") as target:
                shutil.copyfileobj(file, target)
                found = os.fstat(target.fileno())
        except OSError:
            self.forget(session, key)
            raise
        with self._lock:
            records[key] = Upload(path, found.st_dev, found.st_ino, size)
        return key

    def owned(self, session: str, key: Any) -> Path:
        """An upload of this session, unchanged since it came in.

        Raises:
            ValueError: it is none.
        """
        with self._lock:
            upload = self._records.get(session, {}).get(key) if isinstance(key, str) else None
        if upload is not None:
            try:
                found = upload.path.lstat()
                inside = upload.path.resolve(strict=True).is_relative_to((self.uploads / session).resolve())
            except OSError:
                found, inside = None, False
            if found and inside and stat.S_ISREG(found.st_mode):
                if Upload(upload.path, found.st_dev, found.st_ino, found.st_size) == upload:
                    return upload.path
        raise ValueError(f"{str(key)[:80]!r} is no upload of this session; upload a file first")

    def new_job(self, session: str, busy: Collection[str] = ()) -> tuple[str, Path]:
        """Make a folder for results; the session's oldest ones go.

        Args:
            busy: jobs whose folders stay.

        Returns:
            The job's name, and the folder.
        """
        name = secrets.token_hex(8)
        folder = self.jobs / check_name(session) / name
        (folder / "out").mkdir(parents=True)
        others = [path for path in folder.parent.iterdir() if path != folder]
        others.sort(key=lambda path: path.stat().st_mtime)
        done = [path for path in others if path.name not in busy]
        for old in done[: max(len(others) + 1 - KEPT_JOBS, 0)]:
            shutil.rmtree(old, ignore_errors=True)
        return name, folder / "out"

    def results(self, session: str, job: str) -> list[str]:
        """Names of a job's results."""
        folder = self.jobs / check_name(session) / check_name(job) / "out"
        found = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                found.append(check_name(path.name))
            except ValueError:
                continue
        return found

    def result(self, session: str, job: str, name: str) -> Path:
        """A result's file.

        Raises:
            ValueError: the session has none of that name.
        """
        if name in self.results(session, job):
            path = self.jobs / session / job / "out" / name
            if path.is_file() and not path.is_symlink():
                return path
        raise ValueError(f"there is no result {str(name)[:80]!r}")

    def end(self, session: str) -> None:
        """Delete what a session uploaded, and its results."""
        with self._lock:
            self._records.pop(session, None)
        for folder in (self.uploads / check_name(session), self.jobs / session):
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self, session: str, key: str) -> None:
        """Delete an upload."""
        with self._lock:
            upload = self._records.get(session, {}).pop(key, None)
        if upload is not None:
            shutil.rmtree(upload.path.parent, ignore_errors=True)


def _harmless(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-60:].lstrip(".") or "upload"
