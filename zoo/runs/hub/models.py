"""Models on a Hugging Face hub: `hf://user/name@revision` is downloaded when needed.

A download reads the description first: it may name only components that this process may build.
`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE` and `HF_HUB_CACHE` are read by huggingface_hub itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.common import registry
from zoo.common.configs import remove_credentials
from zoo.common.foreign_files import iterate_keys, load_json
from zoo.runs.components import CONFIG_NAME, WEIGHTS_NAME
from zoo.runs.model_description import validate_description

PREFIX = "hf://"
LOG_IN = "log in by `hf auth login`, or set HF_TOKEN"
DOWNLOADED = ("*.safetensors", "*.json", "README.md")
_NAME = re.compile(r"hf:/{1,2}(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.+/-]+))?/?")  # a Path has one slash
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(OSError):
    """One line on what a hub refused, and what to do."""


class HubName(NamedTuple):
    """A model on a hub; without a revision its branch main."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}" + (f"@{self.revision}" if self.revision else "")


def is_hub_name(text: str | os.PathLike[str]) -> bool:
    """Whether a text or path is written like the name of a model on a hub."""
    return Path(text).as_posix().startswith("hf:/")


def parse_hub_name(text: str | os.PathLike[str]) -> HubName:
    """Parse `hf://user/name` or `hf://user/name@revision`; ValueError for anything else."""
    written = Path(text).as_posix() if isinstance(text, Path) else os.fspath(text)
    match = _NAME.fullmatch(written)
    if match is None or ".." in written:
        raise ValueError(f"{written}: expected {PREFIX}user/name or {PREFIX}user/name@revision")
    return HubName(match["repo"], match["revision"])


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return a path as it is, and the folder of a model on a hub; errors as those of `download`."""
    return download(parse_hub_name(path)) if is_hub_name(path) else Path(path)


def pin_revisions(names: str | Sequence[str] | None) -> Any:
    """Return the same paths and names, each name with its commit, so that it always means the same weights."""
    if isinstance(names, str) and is_hub_name(names):
        name = parse_hub_name(names)
        return str(HubName(name.repo, download(name).name))
    return names if names is None or isinstance(names, str) else [pin_revisions(each) for each in names]


def endpoint() -> str:
    """Return the hub's address, without user and password."""
    from huggingface_hub import constants

    return remove_credentials(constants.ENDPOINT)


@contextlib.contextmanager
def explain_hub_errors(subject: str) -> Iterator[None]:
    """Turn errors of a hub and of the network into a HubError of one line; their own text may hold a token."""
    from huggingface_hub import constants, errors

    try:
        yield
    except (ValueError, HubError):
        raise
    except (errors.HTTPError, OSError) as error:
        hub, status = endpoint(), getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RevisionNotFoundError):
            reason = f"{hub} has no such branch, tag or commit of it"
        elif isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            reason = f"{hub} refused it ({status}), or has no such model: {LOG_IN}, accept its conditions on its page"
        elif constants.HF_HUB_OFFLINE:
            reason = "not in the cache or not complete, and HF_HUB_OFFLINE is set"
        else:
            reason = f"no answer from {hub} ({status or type(error).__name__}): check the network and HF_ENDPOINT"
        raise HubError(f"{subject}: {reason}") from None


def download(name: HubName) -> Path:
    """Download a model into the cache, unless its commit is there; return its folder, whose name is the commit.

    Raises:
        ValueError: it is no model of the zoo, or names components that are not allowed.
        HubError: the hub does not provide it.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    options: dict[str, Any] = {"revision": name.revision, "allow_patterns": list(DOWNLOADED)}
    with explain_hub_errors(str(name)):
        if constants.HF_HUB_OFFLINE or _COMMIT.fullmatch(name.revision or ""):
            try:
                folder = Path(snapshot_download(name.repo, **options, local_files_only=True))
                _check_description(folder / CONFIG_NAME, name)
                return folder
            except LocalEntryNotFoundError:
                if constants.HF_HUB_OFFLINE:
                    raise
        info = HfApi().model_info(name.repo, revision=name.revision)
        files = sorted(each.rfilename for each in info.siblings or [])
        if not {CONFIG_NAME, WEIGHTS_NAME} <= set(files):
            raise ValueError(f"{name} is no model of the zoo: no {CONFIG_NAME} or {WEIGHTS_NAME} in {files[:5]}")
        _check_description(Path(hf_hub_download(name.repo, CONFIG_NAME, revision=info.sha)), name)
        folder = Path(snapshot_download(name.repo, **options))  # records the commit of a branch, for offline use
    if folder.name != info.sha:
        raise HubError(f"{name} changed during the download: run the command again")
    return folder


def _check_description(path: Path, name: HubName) -> None:
    """Refuse a config.json of another project, or with components that may not be built here."""
    try:
        config = load_json(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not {"zoo", "inference", "components"} <= config.keys():
            raise ValueError(f"its {CONFIG_NAME} is another project's")
        config = validate_description(config)
        registry.get_class(config["inference"])
        for key, value in iterate_keys([config["components"], config.get("options", {})]):
            if key.endswith(".class_path"):
                registry.get_class(value)
            elif isinstance(value, str) and (redact(value) != value or ".." in Path(value).parts):
                raise ValueError(f"its {key} is {value!r}, outside of the model")
    except ValueError as error:
        raise ValueError(f"{name} is no model that can be loaded: {error}") from error


def redact(value: Any) -> Any:
    """Replace absolute paths by their last part, and remove passwords and signatures from addresses, in settings."""
    if isinstance(value, Mapping):
        return {key: redact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [redact(each) for each in value]
    if isinstance(value, str) and "://" in value:
        return remove_credentials(value)
    if isinstance(value, str) and (value.startswith(("/", "~")) or re.match(r"[A-Za-z]:[\\/]", value)):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    return value
