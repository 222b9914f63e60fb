"""The files that a bulk prediction reads, and where their results go."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

RESERVED_NAMES = ("manifest.jsonl", "settings.json", "summary.json")  # of the output folder


class InputFile(NamedTuple):
    """A file to compute.

    Args:
        source: absolute path.
        target: of the result, relative to the output folder.
    """

    source: str
    target: str


def list_input_files(
    input: Path, output: Path, suffixes: Sequence[str], output_suffix: str
) -> tuple[list[InputFile], Counter[str]]:
    """List what is to be computed, and count what is left out.

    Args:
        input: a file, or a folder whose tree is mirrored. Hidden files are ignored, links to folders not followed.
        output: the folder for results; where it lies inside `input`, what it holds is no input.
        suffixes: of the files to read, lower case with the dot.
        output_suffix: of the files to write. Where `a.wav` and `a.flac` would meet in one target, both keep their
            suffix: `a.wav.wav` and `a.flac.wav`.

    Returns:
        The files in the order of their names, and the number of those left out, by reason.

    Raises:
        FileNotFoundError: when there is no such input.
        ValueError: when no file has one of the suffixes, or results would overwrite an input or one another.
    """
    if not input.exists():
        raise FileNotFoundError(f"--input {input}: no such file or folder")
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; name a folder")
    root = Path(os.path.abspath(input if input.is_dir() else input.parent))
    if input.is_dir() and output.resolve() == root.resolve():
        raise ValueError(f"--output {output} is the input folder itself; name another folder")
    left_out: Counter[str] = Counter()
    names = []
    for name in sorted(_walk(root, output.absolute(), left_out)) if input.is_dir() else [input.name]:
        suffix = os.path.splitext(name)[1].lower()
        if suffix in suffixes:
            names.append(name)
        else:
            left_out[suffix or "without suffix"] += 1
    if not names:
        reason = f" (left out: {describe_left_out(left_out)})" if left_out else ""
        raise ValueError(f"--input {input}: no file ends in {', '.join(suffixes)}{reason}")
    files = _choose_targets(root, names, output_suffix)
    _check_targets(files, root, output)
    return files, left_out


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Say how many files were left out and why, `2 .m4a, 1 linked folder`."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items(), key=lambda item: -item[1]))


def _walk(root: Path, output: Path, left_out: Counter[str]) -> Iterator[str]:
    """Names of the files below a folder, relative to it; those below `output` are passed over."""
    above = len(os.path.join(root, ""))
    passed_over = os.path.realpath(output)
    folders = [os.fspath(root)]
    while folders:
        folder = folders.pop()
        if os.path.realpath(folder) == passed_over:
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_dir():
                        left_out["linked folder"] += 1
                    elif entry.name[0] != ".":
                        yield entry.path[above:]
        except PermissionError:
            log.warning("%s cannot be read: its files are left out", folder)
            left_out["unreadable folder"] += 1
        except FileNotFoundError:
            continue  # deleted meanwhile


def _choose_targets(root: Path, names: Sequence[str], output_suffix: str) -> list[InputFile]:
    stems = [os.path.splitext(name)[0] for name in names]
    shared = Counter(stems)
    return [
        InputFile(os.path.join(root, name), (name if shared[stem] > 1 else stem) + output_suffix)
        for name, stem in zip(names, stems, strict=True)
    ]


def _check_targets(files: Sequence[InputFile], root: Path, output: Path) -> None:
    """Refuse results that would overwrite an input or one another."""
    inside, above = os.path.realpath(output), os.path.realpath(root)
    taken = Counter(file.target for file in files)
    taken.update(RESERVED_NAMES)
    sources: set[str] = set()
    if inside.startswith(above) or above.startswith(inside):  # else no result lies among the inputs
        sources = {os.path.join(above, os.path.relpath(file.source, root)) for file in files}
    for file in files:
        if taken[file.target] > 1 or os.path.join(inside, file.target) in sources:
            raise ValueError(
                f"the result of {file.source} would overwrite an input, {output / file.target}, or another result; "
                "rename the input or name another --output"
            )
