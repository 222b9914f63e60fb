"""Backbones whose weights come from elsewhere: identified by a hash, never written into checkpoints.

A checkpoint holds a record of each under `checkpoint["frozen"][<module path>]`. Weights that no hub has, of a local
folder or random ones, are copied once into `frozen/<hash>/` of the run folder, and into the export.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from zoo.common.atomic_files import replace_atomically
from zoo.common.tensors import state_digest

FROZEN_FOLDER = "frozen"
_HASH_DIGITS = 16  # of a copy's name
_FSDP_LEVEL = "_fsdp_wrapped_module."

Records = Mapping[str, Mapping[str, Any]]


class FrozenModule(nn.Module):
    """Base of modules that take their weights from a source and do not train them.

    A subclass sets `requires_grad` of what `frozen_state` names to False. Where that is not everything, or the module
    is not one of transformers, it defines `frozen_state` and `save_source`. Its constructor takes `source` (hub id or
    local folder; None for weights built here), `revision` (commit of the hub repository) and, where it can be built
    without a source, `config` (null when a copy replaces the source). The module that contains it stores it under the
    name of its constructor argument: so its description is found in the recipe.
    """

    model: Any  # of transformers, as `save_source` writes it

    def __init__(self, source: str | None = None, revision: str | None = None) -> None:
        super().__init__()
        self.source, self.revision = source, revision
        self.copy_path: Path | None = None  # the copy that was read instead of the source
        self._fingerprint: str | None = None

    def frozen_state(self) -> dict[str, Tensor]:
        """Return the part of `state_dict()` that comes from the source: all by default, nothing while it is trained."""
        return dict(self.state_dict())

    def save_source(self, folder: Path) -> None:
        """Write what `source=folder` builds again, with the same `frozen_state()`, into an existing, empty folder."""
        with suppress_loading_messages():
            self.model.save_pretrained(folder)

    @property
    def is_frozen(self) -> bool:
        """Whether it holds weights that are not trained."""
        return bool(self.frozen_state())

    @property
    def is_local(self) -> bool:
        """Whether the weights exist on this machine only, so that runs and exports need a copy."""
        return self.source is None or self.copy_path is not None or Path(self.source).is_dir()

    def fingerprint(self) -> str:
        """Return `state_digest` of `frozen_state()`, computed once."""
        if self._fingerprint is None:
            self._fingerprint = state_digest(self.frozen_state())
        return self._fingerprint

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode while frozen: no dropout, layer drop, masking or running statistics."""
        return super().train(mode and not self.is_frozen)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Add the frozen tensors that a checkpoint leaves out, so that strict loading passes."""
        frozen = {prefix + name: tensor for name, tensor in self.frozen_state().items()}
        if frozen.keys() & state_dict.keys():
            self._fingerprint = None
        for name in frozen.keys() - state_dict.keys():
            state_dict[name] = frozen[name]
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextmanager
def suppress_loading_messages() -> Iterator[None]:
    """Keep transformers' loading reports and progress bars from the terminal."""
    from transformers.utils import logging as messages

    verbosity, bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(verbosity)
        if bars:
            messages.enable_progress_bar()


def frozen_modules(components: Mapping[str, nn.Module]) -> dict[str, FrozenModule]:
    """List all FrozenModules by their paths (`encoder.backbone`); the component "" gives paths within itself."""
    return {
        path.replace(_FSDP_LEVEL, ""): module
        for name, component in components.items()
        for path, module in component.named_modules(prefix=name, remove_duplicate=False)
        if isinstance(module, FrozenModule)
    }


def frozen_keys(modules: Mapping[str, FrozenModule]) -> set[str]:
    """Return the names in the complete state dict of the tensors that a checkpoint leaves out."""
    return {f"{path}.{name}" for path, module in modules.items() for name in module.frozen_state()}


def frozen_records(modules: Mapping[str, FrozenModule]) -> dict[str, dict[str, Any]]:
    """Describe each frozen module for a checkpoint: `sha256`, `source`, `revision`, `folder` of its copy or None."""
    return {
        path: {
            "sha256": module.fingerprint(),
            "source": module.source,
            "revision": module.revision,
            "folder": f"{FROZEN_FOLDER}/{module.fingerprint()[:_HASH_DIGITS]}" if module.is_local else None,
        }
        for path, module in modules.items()
        if module.is_frozen
    }


def save_copies(modules: Mapping[str, FrozenModule], records: Records, folder: Path) -> None:
    """Copy local frozen modules below a run or export folder, each once and atomically."""
    for path, record in records.items():
        if record["folder"] is None or (folder / record["folder"]).is_dir():
            continue
        with replace_atomically(folder / record["folder"]) as temporary:
            copy_path = modules[path].copy_path
            if copy_path is not None:
                shutil.copytree(copy_path, temporary)
            else:
                temporary.mkdir()
                modules[path].save_source(temporary)


def use_local_copies(arguments: Any, records: Records, folder: Path) -> dict[str, Path]:
    """Make descriptions build their frozen modules from the copies of a run or export, in place; return these by path.

    A description that names another source than its record stays as it is: the hash decides.

    Args:
        arguments: descriptions (`class_path`, `init_args`) by argument name, as mappings or jsonargparse namespaces.
        records: the `frozen` entry of a checkpoint or export.
    """
    copies = {}
    for path, record in records.items():
        init_args = find_init_args(arguments, path)
        copy = folder / (record["folder"] or "")
        if record["folder"] and copy.is_dir() and init_args is not None and init_args.get("source") == record["source"]:
            init_args["source"] = str(copy)
            for key in ("revision", "config"):
                if key in init_args:
                    init_args[key] = None
            copies[path] = copy
    return copies


def restore_sources(modules: Mapping[str, FrozenModule], arguments: Any, copies: Mapping[str, Path]) -> None:
    """Record in modules the sources of their descriptions before `use_local_copies`, and the copies it returned."""
    for path, module in modules.items():
        init_args = find_init_args(arguments, path)
        if init_args is not None:
            module.source, module.revision = init_args.get("source"), init_args.get("revision")
        module.copy_path = copies.get(path)


def find_init_args(arguments: Any, path: str) -> Any:
    """Return the `init_args` of the module at a path, None where the descriptions do not lead there."""
    node: Any = arguments
    for name in path.split("."):
        if isinstance(node, list):
            node = {str(index): entry for index, entry in enumerate(node)}
        node = node.get(name) if hasattr(node, "get") else None
        if hasattr(node, "get") and "class_path" in node:
            node["init_args"] = node.get("init_args") or {}
            node = node["init_args"]
    return node if hasattr(node, "get") else None


def verify_frozen_weights(modules: Mapping[str, FrozenModule], records: Records, source: str) -> None:
    """Compare frozen modules with the records of a checkpoint or export, whose name is `source`.

    Raises:
        ValueError: a module of the same path has other weights, or is itself trained here.
    """
    for path in records.keys() & modules.keys():
        module, record = modules[path], records[path]
        if not module.is_frozen:
            raise ValueError(
                f"{source} holds no weights of {path}: there it was frozen ({describe_record(record)}), here it is "
                "trained; begin with init_from"
            )
        actual = {"sha256": module.fingerprint(), "source": module.source, "revision": module.revision}
        if actual["sha256"] != record["sha256"]:
            copy = f"; its copy lies in {record['folder']} of that run" if record["folder"] else ""
            raise ValueError(
                f"{source} belongs to {path} = {describe_record(record)}, and not to {describe_record(actual)}: "
                f"set the source of {path} to the former{copy}"
            )


def describe_record(record: Mapping[str, Any]) -> str:
    """Describe a record in words: source, revision and the first digits of the hash."""
    revision = f" at {record['revision']}" if record["revision"] else ""
    return f"{record['source'] or 'weights built here'}{revision} (sha256 {record['sha256'][:_HASH_DIGITS]})"
