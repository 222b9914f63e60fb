"""Text files that users bring: lists, transcripts, captions, JSON lines."""

from __future__ import annotations

import codecs
import os
from pathlib import Path


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a UTF-8 file, with or without a byte order mark; the ends of its lines stay as they are.

    Raises:
        ValueError: it is not UTF-8; the message names the file and the line.
    """
    content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{os.fspath(path)}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from error


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    r"""Read the lines of a UTF-8 file, which end at `\n` or `\r\n` alone: U+2028, U+0085 and form feeds are text.

    Returns:
        The lines without their ends, numbered as editors do.

    Raises:
        ValueError: see `read_text`.
    """
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    return lines if lines[-1] else lines[:-1]
