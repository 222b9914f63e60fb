"""Listing the files below a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def list_files(
    folder: Path, suffixes: Sequence[str], exclude: Path | None = None
) -> tuple[list[str], dict[str, list[str]]]:
    """List the files below a folder; hidden files are ignored, links to folders are not followed.

    Args:
        suffixes: of the files to list, lower case with the dot.
        exclude: a folder whose files are ignored.

    Returns:
        Sorted paths below `folder`; and the paths that are left out, by reason: another suffix, "without suffix",
        "linked folder", "broken link" or "unreadable folder".
    """
    paths: list[str] = []
    skipped: dict[str, list[str]] = {}
    excluded = None if exclude is None else os.path.realpath(exclude)
    pending = [os.fspath(folder)]
    while pending:
        parent = pending.pop()
        if excluded is not None and os.path.realpath(parent) == excluded:
            continue
        try:
            entries = list(os.scandir(parent))
        except FileNotFoundError:
            continue  # deleted meanwhile
        except PermissionError:
            skipped.setdefault("unreadable folder", []).append(parent)
            continue
        for entry in entries:
            suffix = os.path.splitext(entry.name)[1].lower()
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif entry.is_dir():
                skipped.setdefault("linked folder", []).append(entry.path)
            elif entry.name[0] == ".":
                continue
            elif suffix not in suffixes:
                skipped.setdefault(suffix or "without suffix", []).append(entry.path)
            elif entry.is_file():
                paths.append(entry.path)
            else:
                skipped.setdefault("broken link", []).append(entry.path)
    return sorted(paths), skipped
