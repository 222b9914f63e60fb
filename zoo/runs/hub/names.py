"""Models as names: `hf://user/name@revision` is a folder in huggingface_hub's cache, fetched when it is not there.

Of what the hub has, safetensors, our JSON and the card are taken, and nothing is taken before its description was read:
it names parts that this process may build, and sizes that fit on the disk. Whatever a file of a run may do, one of a
hub may do no more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from zoo.common import registry
from zoo.common.reading.text import MAX_JSON, load_json
from zoo.runs.descriptions import described
from zoo.runs.export import CONFIG_NAME, WEIGHTS_NAME
from zoo.runs.hub.client import HubError, asking, client

log = logging.getLogger(__name__)

PREFIX = "hf://"
# A pathlib.Path of a name has one slash.
_NAME = re.compile(r"hf:/{1,2}(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.+/-]+))?/?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_COPY = re.compile(r"frozen/[0-9a-f]{8,64}")
TAKEN = ("*.safetensors", "*.json", "README.md")
LEFT = ("samples/*", "peft/*")  # for readers and for peft
MOST_FILES = 1000


class Name(NamedTuple):
    """A model on a hub; without a revision its branch main."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}" + (f"@{self.revision}" if self.revision else "")


def is_name(text: str | os.PathLike[str]) -> bool:
    """Whether a text or path is meant as the name of a model on a hub."""
    return Path(text).as_posix().startswith("hf:/")


def parsed(text: str | os.PathLike[str]) -> Name:
    """The model that a name stands for.

    Raises:
        ValueError: when it is none.
    """
    written = text if isinstance(text, str) else text.as_posix() if isinstance(text, Path) else os.fspath(text)
    found = _NAME.fullmatch(written)
    if found is None or ".." in written:
        raise ValueError(f"{written}: expected {PREFIX}user/name or {PREFIX}user/name@revision")
    return Name(found["repo"], found["revision"])


def local(path: str | os.PathLike[str]) -> Path:
    """The folder or file that a path or a name stands for; a name is fetched.

    Raises:
        ValueError: when it is written like a name and is none, or is no model of the zoo.
        HubError: when it cannot be had.
    """
    return fetch(parsed(path)) if is_name(path) else Path(path)


def pinned(names: str | Sequence[str] | None) -> Any:
    """The same paths and names, each name with its commit, so that it always means the same weights."""
    if isinstance(names, str):
        return str(Name(parsed(names).repo, fetch(parsed(names)).name)) if is_name(names) else names
    return names if names is None else [pinned(each) for each in names]


def fetch(name: Name) -> Path:
    """The folder of a model in the cache; its name is the commit.

    A commit that is there already is not asked for again. Killed downloads are taken up.

    Raises:
        ValueError: when it is no model of the zoo, names parts that are not ours, or does not fit on the disk.
        HubError: when it cannot be had.
    """
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    wanted: dict[str, Any] = {"repo_id": name.repo, "allow_patterns": list(TAKEN), "ignore_patterns": list(LEFT)}
    with asking(str(name)):
        if constants.HF_HUB_OFFLINE or _COMMIT.fullmatch(name.revision or ""):
            with contextlib.ExitStack() as stack:
                if not constants.HF_HUB_OFFLINE:
                    stack.enter_context(contextlib.suppress(EntryNotFoundError))
                folder = Path(snapshot_download(**wanted, revision=name.revision, local_files_only=True))
                _check_description(folder / CONFIG_NAME, name)
                return folder
        info = client().model_info(name.repo, revision=name.revision, files_metadata=True)
        _check_listing(name, {each.rfilename: each.size for each in info.siblings or []}, constants.HF_HUB_CACHE)
        described_in = hf_hub_download(name.repo, CONFIG_NAME, revision=info.sha)
        _check_description(Path(described_in), name)
        folder = Path(snapshot_download(**wanted, revision=name.revision))
        if folder.name != info.sha:
            raise HubError(f"{name} was changed while it was fetched: do it again")
    log.info("%s is %s", name, Name(name.repo, folder.name))
    return folder


def _check_listing(name: Name, sizes: Mapping[str, int | None], cache: str) -> None:
    """Look at what the hub says it has, before anything is fetched."""
    if not {CONFIG_NAME, WEIGHTS_NAME} <= sizes.keys():
        found = ", ".join(sorted(sizes)[:5]) or "nothing"
        raise ValueError(f"{name} is no model of the zoo: it lacks {CONFIG_NAME} or {WEIGHTS_NAME}, and holds {found}")
    taken = [file for file in sizes if _matches(file, TAKEN) and not _matches(file, LEFT)]
    if len(taken) > MOST_FILES:
        raise ValueError(f"{name} holds {len(taken)} files, at most {MOST_FILES} are taken")
    for file in taken:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or "\\" in file:
            raise ValueError(f"{name} holds {file!r}, which would lie outside of its folder")
        if path.suffix != ".safetensors" and (sizes[file] or 0) > MAX_JSON:
            raise ValueError(f"{name}: {file} has {sizes[file]} bytes, at most {MAX_JSON} are read")
    total = sum(sizes[file] or 0 for file in taken)
    there = next(folder for folder in (Path(cache), *Path(cache).parents) if folder.is_dir())
    if total > (free := shutil.disk_usage(there).free):
        raise ValueError(
            f"{name} has {total / 2**30:.1f} GiB and {there} {free / 2**30:.1f} GiB free: set HF_HUB_CACHE to a folder "
            "on a larger disk"
        )
    others = sorted(file for file in sizes if file not in taken and not _matches(file, (*LEFT, ".gitattributes")))
    if others:
        log.info("%s: not taken, for it is neither safetensors nor ours: %s", name, ", ".join(others[:8]))


def _matches(file: str, patterns: Sequence[str]) -> bool:
    from fnmatch import fnmatch

    return any(fnmatch(file, pattern) for pattern in patterns)


def _check_description(path: Path, name: Name) -> None:
    """Refuse what is no export of ours, or asks for parts that may not be built here."""
    try:
        config = load_json(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not {"zoo", "inference", "parts"} <= config.keys():
            raise ValueError(f"its {CONFIG_NAME} is another project's")
        config = described(config)
        for part in (config["inference"], *_classes([config["parts"], config.get("options", {})])):
            registry.find(part)
        for record in config.get("frozen", {}).values():
            copy = record.get("folder", "") if isinstance(record, dict) else ""
            if copy is not None and not _COPY.fullmatch(str(copy)):
                raise ValueError(f"its description: a frozen part lies in {copy!r:.60}, expected a folder in frozen/")
    except ValueError as error:
        raise ValueError(f"{name} is no model that can be taken: {error}") from error


def _classes(node: Any) -> Iterator[str]:
    """The classes that a description asks for."""
    if isinstance(node, Mapping):
        if "class_path" in node:
            yield node["class_path"]
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from _classes(value)
