"""Selecting clips of a corpus by their names: entries of file lists, companion files in another tree, short clips."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import numpy as np

from zoo.audio.io.files import AUDIO_SUFFIXES

MAX_EXAMPLES = 5  # names in a message
_LOG = logging.getLogger(__name__)


def relative_name(path: str, root: str) -> str:
    """Name a file by its path relative to a folder, POSIX; a file outside keeps its absolute path.

    Args:
        path: absolute, as `root`.
    """
    for resolve in (os.path.normpath, os.path.realpath):  # a list may name files by the target of a link
        below = os.path.relpath(resolve(path), resolve(root))
        if below.partition(os.sep)[0] != os.pardir:
            return below.replace(os.sep, "/")
    return path


def without_suffix(name: str) -> str:
    """Remove the suffix of an audio file from a path; other dots stay."""
    return name[: -len(suffix)] if (suffix := PurePosixPath(name).suffix).lower() in AUDIO_SUFFIXES else name


def unique_stems(names: Iterable[str]) -> dict[str, int]:
    """Number the file stems that no second name has.

    Args:
        names: paths, POSIX.

    Returns:
        The place of the one name of each stem; stems that several names share are left out.
    """
    numbers: dict[str, int] = {}
    shared: set[str] = set()
    for number, name in enumerate(names):
        stem = PurePosixPath(without_suffix(name)).name
        if stem in numbers:
            shared.add(stem)
        numbers[stem] = number
    return {stem: number for stem, number in numbers.items() if stem not in shared}


def match_entries(entries: Sequence[str], names: Sequence[str], source: str) -> list[int]:
    """Find the clip that each entry of a list names.

    An entry is the path of a clip relative to the corpus' root, with or without its suffix. Where no clip has that
    path, it may be the end of one (`LJ001-0001` of `wavs/LJ001-0001.wav`), if of one clip alone.

    Args:
        entries: paths, POSIX.
        names: paths of the clips relative to the root, POSIX.
        source: of the entries, for the message.

    Returns:
        The number of each entry's clip.

    Raises:
        FileNotFoundError: no clip has the path of an entry.
        ValueError: several clips have it.
    """
    by_stem: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        by_stem.setdefault(PurePosixPath(without_suffix(name)).name, []).append(number)
    numbers, misfits, is_ambiguous = [], [], False
    for entry in entries:
        candidates = _matches(entry, names, by_stem)
        if len(candidates) == 1:
            numbers.append(candidates[0])
        else:
            is_ambiguous |= bool(candidates)
            examples = ", ".join(sorted(names[number] for number in candidates)[:MAX_EXAMPLES])
            misfits.append(f"{entry!r} ({f'{len(candidates)} clips: {examples}' if candidates else 'no such clip'})")
    if misfits:
        examples = "; ".join(misfits[:MAX_EXAMPLES]) + (
            f"; and {len(misfits) - MAX_EXAMPLES} more" if len(misfits) > MAX_EXAMPLES else ""
        )
        raise (ValueError if is_ambiguous else FileNotFoundError)(
            f"{source}: {len(misfits)} of {len(entries)} entries do not name one clip: {examples} "
            "(expected paths relative to the corpus' root, with or without suffix)"
        )
    return numbers


def _matches(entry: str, names: Sequence[str], by_stem: dict[str, list[int]]) -> list[int]:
    """Number the clips of an entry's path, else those whose path ends with it."""
    candidates = by_stem.get(PurePosixPath(without_suffix(entry)).name, [])
    if exact := [number for number in candidates if entry in (names[number], without_suffix(names[number]))]:
        return exact
    end = f"/{entry}"
    return [
        number for number in candidates if names[number].endswith(end) or without_suffix(names[number]).endswith(end)
    ]


def match_companions(names: Sequence[str], others: Sequence[str]) -> list[list[int]]:
    """Find for each clip the files of another tree that belong to it.

    They have the same path without suffix. Where none has, it is the file of the same stem, if neither tree has a
    second one of that stem.

    Args:
        names: paths of the clips relative to their root, POSIX.
        others: paths of the other files relative to theirs.

    Returns:
        Numbers of the files of each clip, none where there is none.
    """
    groups: dict[str, list[int]] = {}
    for number, other in enumerate(others):
        groups.setdefault(without_suffix(other), []).append(number)
    paths = list(groups)
    own_stems, other_stems = unique_stems(map(without_suffix, names)), unique_stems(paths)

    def find(name: str) -> list[int]:
        path = without_suffix(name)
        stem = PurePosixPath(path).name
        if path not in groups and stem in own_stems and stem in other_stems:
            path = paths[other_stems[stem]]
        return groups.get(path, [])

    return [find(name) for name in names]


def drop_short_clips(
    lengths: np.ndarray, names: Sequence[str], numbers: Sequence[int] | np.ndarray, min_samples: int
) -> Sequence[int] | np.ndarray:
    """Leave out clips that are shorter than one frame, and name them in a warning.

    Args:
        lengths: samples of every clip of the corpus (N,).
        names: of every clip.
        numbers: of the clips to choose from.
        min_samples: shortest length.

    Returns:
        The numbers of the other clips; `numbers` itself where none is short.

    Raises:
        ValueError: none is long enough.
    """
    is_short = np.asarray(lengths[np.asarray(numbers)] < min_samples)
    if not is_short.any():
        return numbers
    short = np.asarray(numbers)[is_short]
    examples = ", ".join(names[int(number)] for number in short[:MAX_EXAMPLES])
    message = f"{len(short)} of {len(numbers)} clips are shorter than a frame of {min_samples} samples: {examples}"
    if len(short) == len(numbers):
        raise ValueError(f"{message}; none is left")
    _LOG.warning("left out: %s", f"{message}{', ...' if len(short) > MAX_EXAMPLES else ''}")
    return np.asarray(numbers)[~is_short]
