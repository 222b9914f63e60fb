"""The server's own temporary folder: uploads and results by session, within limits, gone with the session."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from zoo.ui.places import check_name

KEPT_JOBS = 4
MIB = 2**20
MAX_FILES = 50
FILE_ROUTE = "/gradio_api/file="
_BLOCK = 4096  # bytes that a file takes at least


class UploadError(ValueError):
    """An upload that goes beyond a limit."""


@dataclass(frozen=True)
class Upload:
    """What was noted when a file came in."""

    device: int
    inode: int
    size: int


@dataclass(frozen=True)
class Store:
    """Uploads, and one folder for each file that `predict` works on; each belongs to the session that sent it.

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
        """Where uploads lie, a folder for each session; Gradio's own cache as well."""
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

    def add(self, session: str, name: str, file: IO[bytes]) -> Path:
        """Keep an uploaded file and note whose it is.

        Args:
            name: as the sender calls it.
            file: its content, at the start.

        Returns:
            Where it lies.

        Raises:
            UploadError: the session has as many files or bytes as it may.
        """
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        folder = self.uploads / check_name(session) / secrets.token_hex(8)
        path = folder / _harmless(name)
        with self._lock:
            records = self._records.setdefault(session, {})
            if len(records) >= self.max_files:
                raise UploadError(f"a session may have {self.max_files} uploads at a time (--max_uploads)")
            if sum(upload.size for upload in records.values()) + size > self.max_bytes:
                raise UploadError(f"a session's uploads may have {self.max_bytes // MIB} MiB (--max_session_mib)")
            records[str(path)] = Upload(0, 0, size)  # its place is taken; what it is comes when it is there
        try:
            folder.mkdir(parents=True)
            with path.open("xb") as target:
                shutil.copyfileobj(file, target)
                found = os.fstat(target.fileno())
        except OSError:
            self.forget(session, str(path))
            raise
        with self._lock:
            records[str(path)] = Upload(found.st_dev, found.st_ino, size)
        return path

    def owned(self, session: str, path: Any) -> Path:
        """An upload of this session, unchanged since it came in.

        Raises:
            ValueError: it is none.
        """
        with self._lock:
            upload = self._records.get(session, {}).get(path) if isinstance(path, str) else None
        if upload is not None:
            file = Path(path)
            try:
                found = file.lstat()
                inside = file.resolve(strict=True).is_relative_to((self.uploads / session).resolve())
            except OSError:
                found, inside = None, False
            if found and inside and stat.S_ISREG(found.st_mode):
                if Upload(found.st_dev, found.st_ino, found.st_size) == upload:
                    return file
        raise ValueError(f"{str(path)[:80]!r} is no upload of this session; upload a file first")

    def check_files(self, session: str, tree: Any) -> None:
        """Check all that Gradio would take for a file in what a page sends.

        Raises:
            ValueError: it describes anything but an upload of this session.
        """
        pending = [tree]
        while pending:
            node = pending.pop()
            if isinstance(node, list):
                pending += node
            elif isinstance(node, Mapping):
                pending += node.values()
                if "path" in node or "url" in node:
                    self._check_file(session, node)

    def _check_file(self, session: str, described: Mapping[str, Any]) -> None:
        path = str(self.owned(session, described.get("path")))
        url, name = described.get("url"), described.get("orig_name") or ""
        marks = {key: described.get(key) for key in ("meta", "is_stream")}
        if url is not None and unquote(urlsplit(url).path if isinstance(url, str) else "") != FILE_ROUTE + path:
            raise ValueError(f"url: expected the address of this upload, not {str(url)[:80]!r}")
        if not isinstance(name, str) or re.search(r"[/\\\0]", name):
            raise ValueError(f"orig_name: expected the name of a file, not {str(name)[:80]!r}")
        if marks["meta"] != {"_type": "gradio.FileData"} or marks["is_stream"]:
            raise ValueError(f"expected an uploaded file, not {json.dumps(marks)[:80]}")

    def new_job(self, session: str, path: Any) -> tuple[str, Path, Path]:
        """Take an uploaded file in; the session's oldest jobs go.

        Args:
            session: whose upload it must be.

        Returns:
            The job's name, the file under a harmless name, and the folder for results.

        Raises:
            ValueError: it is not one of the session's uploads.
        """
        upload = self.owned(session, path)
        name = secrets.token_hex(8)
        folder = self.jobs / session / name
        (folder / "in").mkdir(parents=True)
        (folder / "out").mkdir()
        source = folder / "in" / upload.name
        upload.replace(source)
        self.forget(session, path)
        others = [path for path in folder.parent.iterdir() if path != folder]
        others.sort(key=lambda path: path.stat().st_mtime)
        for old in others[: max(len(others) + 1 - KEPT_JOBS, 0)]:
            shutil.rmtree(old, ignore_errors=True)
        return name, source, folder / "out"

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
        if name not in self.results(session, job):
            raise ValueError(f"there is no result {str(name)[:80]!r}")
        return self.jobs / session / job / "out" / name

    def end(self, session: str) -> None:
        """Delete what a session uploaded, and its results."""
        with self._lock:
            self._records.pop(session, None)
        for folder in (self.uploads / check_name(session), self.jobs / session):
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self, session: str, path: str) -> None:
        """Delete an upload."""
        with self._lock:
            self._records.get(session, {}).pop(path, None)
        shutil.rmtree(Path(path).parent, ignore_errors=True)


def _harmless(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-60:].lstrip(".") or "upload"
