"""What a user does to a run: a label and tags in its `notes.json`, and deletion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from zoo.common.atomic_files import delete_path, temporary_path, write_atomic
from zoo.common.foreign_files import load_json
from zoo.common.locks import lock_folder
from zoo.ui.folders import Folders

NOTES_NAME = "notes.json"
EXPORTS_NAME = "exports"
MAX_LABEL = 64  # characters of a label or tag
MAX_TAGS = 8


@dataclass(frozen=True)
class Notes:
    """The label and tags that the user gave a run."""

    label: str = ""
    tags: tuple[str, ...] = ()


def read_notes(folder: Path) -> Notes:
    """Read a run folder's notes; empty ones where there are none that can be read."""
    try:
        content = load_json((folder / NOTES_NAME).read_text(encoding="utf-8"))
        return check_notes(content["label"] or "", content["tags"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Notes()


def check_notes(label: str, tags: Sequence[str]) -> Notes:
    """Return notes without spaces around and tags that come twice; ValueError when there are too many or too long."""
    label, tags = label.strip(), list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(tags) > MAX_TAGS:
        raise ValueError(f"{len(tags)} tags; a run has at most {MAX_TAGS}")
    for text in (label, *tags):
        if len(text) > MAX_LABEL or not text.isprintable():
            raise ValueError(f"{text[:80]!r}: labels and tags are up to {MAX_LABEL} printable characters")
    return Notes(label, tuple(tags))


def write_notes(folder: Path, notes: Notes) -> None:
    """Write a run folder's notes."""
    text = json.dumps(asdict(notes), indent=2, ensure_ascii=False)
    write_atomic(folder / NOTES_NAME, lambda file: file.write(text.encode()))


def delete_run(folders: Folders, run: str) -> None:
    """Delete a run's folder; ValueError when a command writes into it, it is a link, or there is none."""
    folder = folders.run(run)
    if folder.resolve() != folders.runs.resolve() / run:
        raise ValueError(f"{run} is a link: delete its folder where it is")
    with lock_folder(folder, "delete"):
        hidden = temporary_path(folder)  # no half of it is listed while it is deleted
        folder.rename(hidden)
    delete_path(hidden)
