"""What a user does to a run folder: a label and tags in `notes.json`, its size, its end."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from zoo.common.atomic_files import write_atomic
from zoo.common.journal import load_json
from zoo.runs.run_info import path_size
from zoo.ui.places import Places

NOTES_NAME = "notes.json"
MAX_LABEL = 64  # characters of a label or tag
MAX_TAGS = 8
_DELETED = ".deleted-"
_LARGEST = 2**16  # bytes of notes
_writing = threading.Lock()


@dataclass(frozen=True)
class Notes:
    """What users have noted on a run."""

    label: str | None = None
    tags: tuple[str, ...] = ()


def read_notes(folder: Path) -> Notes:
    """Read a run folder's notes; empty ones where there are none that make sense."""
    path = folder / NOTES_NAME
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return Notes()
        found = load_json(path.read_text(encoding="utf-8"))
        return Notes(found["label"] and _checked(found["label"], "label"), _checked_tags(found["tags"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Notes()


def rename(places: Places, run: str, label: str | None) -> None:
    """Give a run a label that is shown with its name; None takes it away.

    Raises:
        ValueError: the label is not 1 to 64 printable characters, or there is no such run.
    """
    label = None if label is None else _checked(label, "label")
    with _writing:
        _write(places.run(run), replace(read_notes(places.run(run)), label=label))


def tag(places: Places, run: str, tags: Sequence[str]) -> None:
    """Give a run its tags, in place of those that it has.

    Raises:
        ValueError: there are more than 8, one is not 1 to 64 printable characters, or there is no such run.
    """
    checked = _checked_tags(tags)
    with _writing:
        _write(places.run(run), replace(read_notes(places.run(run)), tags=checked))


def size(places: Places, run: str) -> int:
    """Bytes of a run's files; links count as themselves.

    Raises:
        ValueError: there is no such run.
    """
    return path_size(places.run(run))


def set_aside(folder: Path) -> Path:
    """Move a run folder to a hidden name beside it, so that no half of it is listed while `sweep` or its like deletes.

    Raises:
        OSError: it cannot be moved.
    """
    aside = folder.with_name(f"{_DELETED}{time.time_ns()}")
    folder.rename(aside)
    return aside


def sweep(places: Places) -> None:
    """Delete what a server that was killed has set aside."""
    for folder in places.runs.glob(f"*/*/{_DELETED}[0-9]*"):
        shutil.rmtree(folder, ignore_errors=True)  # of a link it takes nothing


def _write(folder: Path, notes: Notes) -> None:
    text = json.dumps(asdict(notes), indent=2, ensure_ascii=False)
    write_atomic(folder / NOTES_NAME, lambda file: file.write(text.encode()))


def _checked(text: str, kind: str) -> str:
    text = text.strip() if isinstance(text, str) else ""
    if not 1 <= len(text) <= MAX_LABEL or not text.isprintable():
        raise ValueError(f"a {kind} has 1 to {MAX_LABEL} printable characters")
    return text


def _checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    checked = tuple(dict.fromkeys(_checked(each, "tag") for each in tags))
    if len(checked) > MAX_TAGS:
        raise ValueError(f"a run has at most {MAX_TAGS} tags, not {len(checked)}")
    return checked
