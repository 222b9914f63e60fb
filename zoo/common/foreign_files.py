"""Read JSON, its keys, lines of text and archives that may come from anybody."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.common.atomic_files import delete_path, temporary_path

MAX_JSON = 2**24  # characters, of which two can make an object of 64 bytes
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")


def load_json(text: str | bytes) -> Any:
    """Read JSON; ValueError where it is none, too long or too deep."""
    if len(text) > MAX_JSON:
        raise ValueError(f"{len(text)} characters of JSON, at most {MAX_JSON} are read")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists and tables nest too deeply") from error


def iterate_keys(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of nested values, such as `trainer.callbacks.0.class_path`, with its value, outer ones first."""
    pending = [("", node)]
    while pending:  # no recursion: values may nest as deeply as JSON is read
        key, node = pending.pop()
        if key:
            yield key, node
        items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
        pending += reversed([(f"{key}.{name}" if key else str(name), value) for name, value in items])


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Read the lines of a UTF-8 file without their ends, LF or CR LF alone; ValueError names one that is no UTF-8."""
    content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def extract_archive(archive: Path, folder: Path) -> int:
    """Extract the plain files of an archive below a folder, when all of it has been read; return their number.

    Raises:
        ValueError: the suffix is none of `ARCHIVE_SUFFIXES`, the archive cannot be read, or a member lies elsewhere.
    """
    if not archive.name.endswith(ARCHIVE_SUFFIXES):
        raise ValueError(f"{archive}: expected an archive ending in {', '.join(ARCHIVE_SUFFIXES)}")
    temporary, count = temporary_path(folder / archive.name), 0
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as members:
                members.extractall(temporary)  # names that lead outside lose what leads there
        else:
            _extract_tar(archive, temporary)
        for path in temporary.rglob("*"):
            target = folder / path.relative_to(temporary)
            is_resource_fork = "__MACOSX" in path.parts  # of the Finder
            if path.is_file() and not path.is_symlink() and not is_resource_fork:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
                count += 1
    # RuntimeError: a zip that is encrypted, or of a compression that zipfile does not know
    except (EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{archive}: cut, damaged or no archive ({error}); get it again") from error
    finally:
        delete_path(temporary)
    return count


def _extract_tar(archive: Path, folder: Path) -> None:
    """Extract the files of a tar archive; `tarfile`'s own filter needs Python 3.11.4."""
    with tarfile.open(archive) as tar:
        for member in tar:
            path = (folder / member.name).resolve()
            if not (member.isfile() or member.isdir()) or not path.is_relative_to(folder.resolve()):
                raise ValueError(f"{archive}: {member.name} is a link, a device or lies outside; get it elsewhere")
            if (content := tar.extractfile(member)) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    shutil.copyfileobj(content, file)
    if archive.suffix == ".tar":
        with archive.open("rb") as file:  # cut between two files, it lacks only this
            file.seek(-tarfile.BLOCKSIZE, os.SEEK_END)
            if any(file.read()):
                raise tarfile.ReadError("no end of the archive")
