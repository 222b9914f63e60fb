"""The server's own temporary folder: uploads and results, within a quota."""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from zoo.ui.places import check_name

KEPT_JOBS = 4


@dataclass(frozen=True)
class Store:
    """Uploads (Gradio's) and one folder for each file that `predict` works on.

    Args:
        root: the temporary folder.
        quota: bytes that it may hold.
    """

    root: Path
    quota: int

    @property
    def uploads(self) -> Path:
        """Where Gradio keeps what was uploaded."""
        return self.root / "uploads"

    @property
    def jobs(self) -> Path:
        """Where results lie."""
        return self.root / "jobs"

    def room(self) -> int:
        """Bytes that may still be stored."""
        used = 0
        for path in self.root.rglob("*"):
            try:
                used += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:  # removed in between
                continue
        return max(self.quota - used, 0)

    def new_job(self, upload: Path) -> tuple[str, Path, Path]:
        """Take an uploaded file in; the oldest jobs go.

        Args:
            upload: below `uploads`, where only the server itself puts files.

        Returns:
            The job's name, the file under a harmless name, and the folder for results.

        Raises:
            ValueError: it is not one of the uploaded files.
        """
        if not upload.resolve().is_relative_to(self.uploads.resolve()) or not upload.is_file():
            raise ValueError("upload a file first")
        name = secrets.token_hex(8)
        folder = self.jobs / name
        (folder / "in").mkdir(parents=True)
        (folder / "out").mkdir()
        harmless = re.sub(r"[^A-Za-z0-9._-]+", "_", upload.name).strip("._")[-60:].lstrip(".") or "upload"
        upload.replace(folder / "in" / harmless)
        others = sorted((path for path in self.jobs.iterdir() if path != folder), key=lambda path: path.stat().st_mtime)
        for old in others[: max(len(others) + 1 - KEPT_JOBS, 0)]:
            shutil.rmtree(old, ignore_errors=True)
        return name, folder / "in" / harmless, folder / "out"

    def results(self, job: str) -> list[str]:
        """Names of a job's results."""
        folder = self.jobs / check_name(job) / "out"
        found = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                found.append(check_name(path.name))
            except ValueError:
                continue
        return found

    def result(self, job: str, name: str) -> Path:
        """A result's file.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self.results(job):
            raise ValueError(f"there is no result {str(name)[:80]!r}")
        return self.jobs / job / "out" / name
