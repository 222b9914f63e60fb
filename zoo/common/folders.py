"""Folders that a user names: of data, which may be missing, and of results, which long work fills."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.common.atomic import TEMPORARY_MARK, sweep_temporaries, write_atomic
from zoo.common.locks import LOCK_NAME

log = logging.getLogger(__name__)

SHOWN = 60  # characters of a value in a message


def data_folder(
    key: str, path: str | None, may_be_missing: bool, made: str = "what is made in code", cure: str = ""
) -> Path | None:
    """Check a folder of a recipe's data section.

    Args:
        key: its name there.
        path: the folder; null for none.
        may_be_missing: return None, with a message, where it does not exist.
        made: what is used then.
        cure: what to do about it, where that is not the usual.

    Returns:
        The folder, or None for what is made in code.

    Raises:
        FileNotFoundError: when it must be there and is not.
    """
    if path is None or Path(path).is_dir():
        return None if path is None else Path(path)
    if not may_be_missing:
        cure = cure or f"put one there, set ZOO_DATA, or use null for {made}"
        raise FileNotFoundError(f"data.init_args.{key}: no folder {path}; {cure}")
    log.warning("no folder %s (data.init_args.%s): using %s (set ZOO_DATA)", path, key, made)
    return None


def begin_output(
    output: Path,
    settings: Mapping[str, Any],
    name: str = "settings.json",
    notes: Sequence[str] = (),
    sweep: bool = False,
) -> None:
    """Note the settings in a new folder, compare them in one that was begun; any process may be the first.

    Args:
        settings: values that JSON can hold, those of parts as dicts.
        name: of the file with the settings.
        notes: keys that are written but not compared.
        sweep: delete what killed processes left half-written; not where others write now.

    Raises:
        ValueError: when the folder was begun with others, or holds something else.
    """
    path = output / name
    settings = json.loads(json.dumps(settings))
    # listed before the look at the settings: another process may write them now, and does so before all else
    names = [each.name for each in output.iterdir()] if output.is_dir() else []
    held = [name for name in names if TEMPORARY_MARK not in name and not name.startswith(LOCK_NAME)]
    if path.is_file():
        known, wanted = _flat(json.loads(path.read_text(encoding="utf-8"))), _flat(settings)
        other = [key for key in {**known, **wanted} if known.get(key) != wanted.get(key) and key not in notes]
        if other:
            said = ", ".join(f"{key} {_short(known.get(key))} (now {_short(wanted.get(key))})" for key in other)
            raise ValueError(f"{output} was begun with other settings: {said}; choose another folder, or delete it")
        if sweep:
            sweep_temporaries(output)
        return
    if held:
        raise ValueError(f"{output} holds something else ({held[0]}); choose a new or an empty folder")
    write_atomic(path, lambda file: file.write(json.dumps(settings, indent=1, ensure_ascii=False).encode()))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of parts under names of their own, `solver.method`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
