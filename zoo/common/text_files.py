"""Text files that users bring: lists, transcripts, captions, JSON lines."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from pathlib import Path


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a UTF-8 file, with or without a byte order mark; the ends of its lines stay as they are.

    Raises:
        ValueError: it is not UTF-8; the message names the file and the line.
    """
    return _decode(Path(path).read_bytes().removeprefix(codecs.BOM_UTF8), path, 1)


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Read all lines of a UTF-8 file, see `iterate_lines`."""
    return list(iterate_lines(path))


def iterate_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    r"""Read a UTF-8 file line by line.

    Lines end at `\n` or `\r\n` alone: U+2028, U+0085 and form feeds are text.

    Yields:
        The lines without their ends, numbered as editors do.

    Raises:
        ValueError: a line is not UTF-8; the message names the file and the line.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if not line:
                    continue
            yield _decode(line, path, number).removesuffix("\n").removesuffix("\r")


def _decode(content: bytes, path: str | os.PathLike[str], line: int) -> str:
    """Decode UTF-8 that begins in a line of a file."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        raise ValueError(
            f"{os.fspath(path)}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from error
