"""Models on a Hugging Face hub: `hf://user/name@revision` is a folder in huggingface_hub's cache, fetched when needed.

Of what the hub has, safetensors, our JSON and the card are fetched, and nothing before its description was read: it
names components that this process may build, and sizes that fit on the disk. `HF_ENDPOINT`, `HF_TOKEN`,
`HF_HUB_OFFLINE` and `HF_HUB_CACHE` are read by huggingface_hub itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import zoo
from zoo.common import registry
from zoo.common.configs import MAX_JSON, load_json
from zoo.common.environment import verbosity
from zoo.runs.components import CONFIG_NAME, WEIGHTS_NAME
from zoo.runs.model_description import validate_description

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger(__name__)

PREFIX = "hf://"
LOG_IN = "log in by `hf auth login`, or set HF_TOKEN"
FETCHED = ("*.safetensors", "*.json", "README.md")
NOT_FETCHED = ("samples/*", "peft/*")  # for readers and for peft
MAX_FILES = 1000
_NAME = re.compile(r"hf:/{1,2}(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.+/-]+))?/?")  # a Path has one slash
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FROZEN_COPY = re.compile(r"frozen/[0-9a-f]{8,64}")
_LOGIN = re.compile(r"://[^/@\s]+@")  # user and password in an address


class HubError(OSError):
    """Says in one line what a hub did not give or take, and what to do."""


class HubName(NamedTuple):
    """A model on a hub; without a revision its branch main."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}" + (f"@{self.revision}" if self.revision else "")


def is_hub_name(text: str | os.PathLike[str]) -> bool:
    """Whether a text or path is meant as the name of a model on a hub."""
    return Path(text).as_posix().startswith("hf:/")


def parse_hub_name(text: str | os.PathLike[str]) -> HubName:
    """The model that a name stands for.

    Raises:
        ValueError: when it is none.
    """
    written = text if isinstance(text, str) else text.as_posix() if isinstance(text, Path) else os.fspath(text)
    match = _NAME.fullmatch(written)
    if match is None or ".." in written:
        raise ValueError(f"{written}: expected {PREFIX}user/name or {PREFIX}user/name@revision")
    return HubName(match["repo"], match["revision"])


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """The folder or file that a path or a name stands for; a model of a hub is fetched.

    Raises:
        ValueError: when it is written like a name and is none, or is no model of the zoo.
        HubError: when it cannot be had.
    """
    return download(parse_hub_name(path)) if is_hub_name(path) else Path(path)


def pin_revisions(names: str | Sequence[str] | None) -> Any:
    """The same paths and names, each name with its commit, so that it always means the same weights."""
    if isinstance(names, str):
        if not is_hub_name(names):
            return names
        name = parse_hub_name(names)
        return str(HubName(name.repo, download(name).name))
    return names if names is None else [pin_revisions(each) for each in names]


def client() -> HfApi:
    """The client of the hub that `HF_ENDPOINT` names."""
    from huggingface_hub import HfApi

    return HfApi(library_name="zoo", library_version=zoo.__version__)


def endpoint() -> str:
    """The hub's address, without user and password."""
    from huggingface_hub import constants

    return _LOGIN.sub("://", constants.ENDPOINT)


@contextlib.contextmanager
def explain_hub_errors(subject: str) -> Iterator[None]:
    """Turn errors of a hub and of the network into one line without the token.

    Raises:
        HubError: for any error but a ValueError.
    """
    from huggingface_hub import get_token, utils

    if verbosity() == "quiet" or not sys.stderr.isatty():
        utils.disable_progress_bars()
    try:
        yield
    except (ValueError, HubError):
        raise
    except Exception as error:
        token = get_token()
        message = f"{subject}: {_reason(error)}"
        raise HubError(_LOGIN.sub("://", message.replace(token, "<token>") if token else message)) from None


def _reason(error: Exception) -> str:
    """What an error of huggingface_hub comes down to."""
    from huggingface_hub import constants, errors

    hub = endpoint()
    if isinstance(error, errors.GatedRepoError):
        return f"its conditions are to be accepted on its page at {hub} first; then {LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no such model, or shows it to others only: {LOG_IN} to one that may see it"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{hub} has no such branch, tag or commit of it"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        refused = f"refused it ({status}): {LOG_IN}, to one that may do that"
        return f"{hub} {refused if status in (401, 403) else f'answered {status}; try again later'}"
    if constants.HF_HUB_OFFLINE:
        return "it is not, or not whole, in the cache, and HF_HUB_OFFLINE is set: unset it"
    if isinstance(error, errors.HTTPError | errors.LocalEntryNotFoundError):
        return f"no answer from {hub}: is there a network, and is HF_ENDPOINT right? HF_HUB_OFFLINE=1 takes the cache"
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def download(name: HubName) -> Path:
    """Fetch a model into the cache; a commit that is there is not asked for again, a killed download is taken up.

    Returns:
        Its folder, whose name is the commit.

    Raises:
        ValueError: when it is no model of the zoo, names components that are not ours, or does not fit on the disk.
        HubError: when it cannot be had.
    """
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted: dict[str, Any] = {
        "repo_id": name.repo, "allow_patterns": list(FETCHED), "ignore_patterns": list(NOT_FETCHED),
    }  # fmt: skip
    with explain_hub_errors(str(name)):
        if constants.HF_HUB_OFFLINE or _COMMIT.fullmatch(name.revision or ""):
            try:
                folder = Path(snapshot_download(**wanted, revision=name.revision, local_files_only=True))
                _check_description(folder / CONFIG_NAME, name)
                return folder
            except LocalEntryNotFoundError:
                if constants.HF_HUB_OFFLINE:
                    raise
        info = client().model_info(name.repo, revision=name.revision, files_metadata=True)
        _check_files(name, {each.rfilename: each.size or 0 for each in info.siblings or []}, constants.HF_HUB_CACHE)
        _check_description(Path(hf_hub_download(name.repo, CONFIG_NAME, revision=info.sha)), name)
        folder = Path(
            snapshot_download(**wanted, revision=name.revision)
        )  # notes which commit a branch is, for offline
        if folder.name != info.sha:
            raise HubError(f"{name} was changed while it was fetched: do it again")
    log.info("%s is %s", name, HubName(name.repo, folder.name))
    return folder


def _check_files(name: HubName, sizes: Mapping[str, int], cache: str) -> None:
    """Check names and sizes of a hub's files before anything is fetched."""
    if not {CONFIG_NAME, WEIGHTS_NAME} <= sizes.keys():
        files = ", ".join(sorted(sizes)[:5]) or "nothing"
        raise ValueError(f"{name} is no model of the zoo: it lacks {CONFIG_NAME} or {WEIGHTS_NAME}, and holds {files}")
    fetched = [file for file in sizes if _matches(file, FETCHED) and not _matches(file, NOT_FETCHED)]
    if len(fetched) > MAX_FILES:
        raise ValueError(f"{name} holds {len(fetched)} files, at most {MAX_FILES} are fetched")
    for file in fetched:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or "\\" in file:
            raise ValueError(f"{name} holds {file!r}, which would lie outside of its folder")
        if path.suffix != ".safetensors" and sizes[file] > MAX_JSON:
            raise ValueError(f"{name}: {file} has {sizes[file]} bytes, at most {MAX_JSON} are read")
    total = sum(sizes[file] for file in fetched)
    existing = next(folder for folder in (Path(cache), *Path(cache).parents) if folder.is_dir())
    if total > (free := shutil.disk_usage(existing).free):
        raise ValueError(
            f"{name} has {total / 2**30:.1f} GiB and {existing} {free / 2**30:.1f} GiB free: set HF_HUB_CACHE to a "
            "folder on a larger disk"
        )


def _matches(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def _check_description(path: Path, name: HubName) -> None:
    """Refuse what is no export of ours, or asks for components that may not be built here."""
    try:
        config = load_json(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not {"zoo", "inference", "components"} <= config.keys():
            raise ValueError(f"its {CONFIG_NAME} is another project's")
        config = validate_description(config)
        for component in (config["inference"], *_class_paths([config["components"], config.get("options", {})])):
            registry.get_class(component)
        for record in config.get("frozen", {}).values():
            copy = record.get("folder", "") if isinstance(record, dict) else ""
            if copy is not None and not _FROZEN_COPY.fullmatch(str(copy)):
                raise ValueError(f"its description: a frozen module lies in {copy!r:.60}, expected a folder in frozen/")
    except ValueError as error:
        raise ValueError(f"{name} is no model that can be loaded: {error}") from error


def _class_paths(node: Any) -> Iterator[str]:
    """The classes that a description asks for."""
    if isinstance(node, Mapping):
        if "class_path" in node:
            yield node["class_path"]
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from _class_paths(value)
