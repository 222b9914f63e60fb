"""Backbones whose weights come from elsewhere: known by a hash, never written into checkpoints.

A checkpoint holds a record of each instead, under `checkpoint["frozen"][<module path>]`. One that the hub does not have
(a local folder, or random weights) is copied once into `frozen/<hash>/` beside the checkpoints, or into the export.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from zoo.common.atomic_files import replace_atomically
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.pretrained_files import check_pretrained, check_settings

FOLDER = "frozen"
_HASH_DIGITS = 16  # of a copy's name
_ALIGNMENT = 64  # bytes, to which torch aligns what it allocates
_FSDP_LEVEL = "_fsdp_wrapped_module."


class FrozenModule(nn.Module):
    """Base of modules that take their weights from a source and keep them; in evaluation mode while they do.

    A subclass calls this constructor and sets `requires_grad` of what `frozen_state` names to False; where that is not
    all, or the module is none of transformers', it defines `frozen_state` and `save_source`. Its constructor takes
    `source`, `revision` and, where it can be built without a source, `config`; the module that contains it keeps it
    under the name of its constructor argument. So its description is found in the recipe, and a copy can be put in its
    source's place (`config` is then null).

    Args:
        source: hub id or local folder; None for weights built here.
        revision: commit of the hub repository.
    """

    model: Any  # of transformers, as `save_source` writes it

    def __init__(self, source: str | None = None, revision: str | None = None) -> None:
        super().__init__()
        self.source = source
        self.revision = revision
        self.taken_from: Path | None = None  # the copy that was read instead of the source
        self._fingerprint: str | None = None

    def frozen_state(self) -> dict[str, Tensor]:
        """The part of `state_dict()` that comes from the source (all), empty while the module itself is trained."""
        return dict(self.state_dict())

    def save_source(self, folder: Path) -> None:
        """Write what `source=folder` builds again, with the same `frozen_state()`, into an existing, empty folder."""
        with quiet_loading():
            self.model.save_pretrained(folder)

    @property
    def is_frozen(self) -> bool:
        """Whether it holds weights that are not trained."""
        return bool(self.frozen_state())

    @property
    def is_local(self) -> bool:
        """Whether the weights exist on this machine only, so that runs and exports need a copy."""
        return self.source is None or self.taken_from is not None or Path(self.source).is_dir()

    def fingerprint(self) -> str:
        """`state_digest` of `frozen_state()`; computed once."""
        if self._fingerprint is None:
            self._fingerprint = state_digest(self.frozen_state())
        return self._fingerprint

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode while frozen: no dropout, layer drop, masking or running statistics."""
        return super().train(mode and not self.is_frozen)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Put the own tensors where a checkpoint left them out, so that strict loading passes."""
        own = {prefix + name: tensor for name, tensor in self.frozen_state().items()}
        if own.keys() & state_dict.keys():
            self._fingerprint = None
        for name in own.keys() - state_dict.keys():
            state_dict[name] = own[name]
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextmanager
def quiet_loading(source: str | None = None) -> Iterator[None]:
    """Keep transformers' loading reports and bars from the terminal, and DeepSpeed from being imported for nothing.

    `save_pretrained` has accelerate, where it is installed, look whether the model is DeepSpeed's, and for that it
    imports all of it: seconds of processor time.

    Args:
        source: the folder or hub id that is read, for the error.

    Raises:
        FileNotFoundError: when it cannot be had.
    """
    from transformers.utils import logging as messages

    verbosity, bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    modules: dict[str, Any] = sys.modules
    unused = modules.setdefault("deepspeed", None) is None
    try:
        yield
    except OSError as error:
        if source is None:
            raise
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"model {source}: neither a local folder nor to be had from the hub ({reason}); without network, "
            "copy its folder to this machine and name that"
        ) from error
    finally:
        if unused:
            del modules["deepspeed"]
        messages.set_verbosity(verbosity)
        if bars:
            messages.enable_progress_bar()


def pretrained(model: Any, source: str, revision: str | None, **options: Any) -> Any:
    """Load a model of transformers, each tensor in separate memory.

    Where tensors read from a file begin depends on the file's header, and by where they begin the processor's kernels
    add up in another order: a resumed run, which reads its copy, would not be the run that read the source.

    Args:
        model: class with `from_pretrained`.
        options: of `from_pretrained`.

    Raises:
        FileNotFoundError: when the source cannot be had.
        ValueError: when its files would make transformers download or run code.
    """
    check_pretrained(source, revision)
    with quiet_loading(source):
        loaded = model.from_pretrained(source, revision=revision, trust_remote_code=False, **options)
    for tensor in (*loaded.parameters(), *loaded.buffers()):
        if tensor.data_ptr() % _ALIGNMENT:
            tensor.data = tensor.data.clone()
    return loaded


def load_config(source: str, revision: str | None = None) -> Any:
    """Load the configuration of a model of transformers; errors as those of `pretrained`."""
    from transformers import AutoConfig

    check_pretrained(source, revision)
    with quiet_loading(source):
        return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)


def build_config(settings: Mapping[str, Any]) -> Any:
    """Build a configuration of transformers from `model_type` and what else it takes.

    Raises:
        ValueError: when the settings would make transformers download code, or the type is unknown.
    """
    from transformers import AutoConfig

    check_settings(settings, "config")
    return AutoConfig.for_model(**{"model_type": "", **settings})


def load_tokenizer(source: str, revision: str | None = None) -> Any:
    """Load the tokenizer of a model of transformers; errors as those of `pretrained`."""
    from transformers import AutoTokenizer

    check_pretrained(source, revision)
    with quiet_loading(source):
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)


def newest_backbone(source: str) -> str:
    """What a source in transformers' layout means.

    Args:
        source: hub id, a folder in that layout, or a folder of runs that wrote some.

    Returns:
        The id or folder itself, or the newest `backbone/` below the folder of runs.

    Raises:
        FileNotFoundError: when there is no such folder, or it holds no backbone.
    """
    folder = Path(source)
    if not folder.is_dir():
        if source.startswith((".", "/", "runs/")):
            raise FileNotFoundError(f"backbone: no folder {source}; a demo_backbone recipe trains one")
        return source
    if (folder / "config.json").is_file():
        return source
    found = sorted(folder.rglob("backbone/config.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError(f"backbone: neither {source} nor a run below it holds config.json")
    return str(found[-1].parent)


def state_digest(state: Mapping[str, torch.Tensor]) -> str:
    """sha256 of names, types, shapes and values, tensor by tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def frozen_modules(parts: Mapping[str, nn.Module]) -> dict[str, FrozenModule]:
    """All FrozenModules of named parts by their paths (`encoder.backbone`); the part "" gives paths within itself."""
    return {
        path.replace(_FSDP_LEVEL, ""): module
        for name, part in parts.items()
        for path, module in part.named_modules(prefix=name, remove_duplicate=False)
        if isinstance(module, FrozenModule)
    }


def frozen_keys(modules: Mapping[str, FrozenModule]) -> set[str]:
    """Names in the whole state dict of the tensors that a checkpoint leaves out."""
    return {f"{path}.{name}" for path, module in modules.items() for name in module.frozen_state()}


def records(modules: Mapping[str, FrozenModule]) -> dict[str, dict[str, Any]]:
    """What a checkpoint keeps of each frozen module: `sha256`, `source`, `revision`, `folder` of its copy or None."""
    return {
        path: {
            "sha256": module.fingerprint(),
            "source": module.source,
            "revision": module.revision,
            "folder": f"{FOLDER}/{module.fingerprint()[:_HASH_DIGITS]}" if module.is_local else None,
        }
        for path, module in modules.items()
        if module.is_frozen
    }


def save_copies(modules: Mapping[str, FrozenModule], recorded: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Copy the local ones below a run or export folder, each once; a copy appears only when it is whole."""
    for path, record in recorded.items():
        if record["folder"] is None or (folder / record["folder"]).is_dir():
            continue
        with replace_atomically(folder / record["folder"]) as aside:
            taken_from = modules[path].taken_from
            if taken_from is not None:
                shutil.copytree(taken_from, aside)
            else:
                aside.mkdir()
                modules[path].save_source(aside)


def use_copies(arguments: Any, recorded: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, Path]:
    """Let descriptions build their frozen modules from the copies of a run or export, in place.

    A description that names another source than the record does keeps it: its hash decides.

    Args:
        arguments: descriptions (`class_path`, `init_args`) by argument name, as mappings or jsonargparse namespaces.
        recorded: the `frozen` entry of a checkpoint or export.

    Returns:
        The copies put in, by module path.
    """
    used = {}
    for path, record in recorded.items():
        found = find_arguments(arguments, path)
        copy = folder / record["folder"] if record["folder"] else None
        if copy is None or not copy.is_dir() or found is None or found.get("source") != record["source"]:
            continue
        found["source"] = str(copy)
        for key in ("revision", "config"):
            if key in found:
                found[key] = None
        used[path] = copy
    return used


def note_sources(modules: Mapping[str, FrozenModule], arguments: Any, used: Mapping[str, Path]) -> None:
    """Let modules remember the sources that their descriptions name, and the copies that were read instead.

    Args:
        arguments: descriptions as they were before `use_copies`.
        used: what `use_copies` returned.
    """
    for path, module in modules.items():
        found = find_arguments(arguments, path)
        if found is not None:
            module.source, module.revision = found.get("source"), found.get("revision")
        module.taken_from = used.get(path)


def find_arguments(arguments: Any, path: str) -> Any:
    """The `init_args` of the module at a path, None where the descriptions do not lead there."""
    node = arguments
    for name in path.split("."):
        if isinstance(node, list):
            node = node[int(name)] if name.isdigit() and int(name) < len(node) else None
        else:
            node = node.get(name)
        if not hasattr(node, "get") and not isinstance(node, list):
            return None
        if "class_path" in node:
            if not node.get("init_args"):
                node["init_args"] = {}
            node = node["init_args"]
    return node


def check(modules: Mapping[str, FrozenModule], recorded: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Compare frozen modules with the records of a checkpoint or export.

    Args:
        where: what the entry was read from, for the message.

    Raises:
        ValueError: when a module of the same path has other weights, or is itself trained here.
    """
    for path, record in recorded.items():
        if path not in modules:
            continue
        module = modules[path]
        if not module.is_frozen:
            raise ValueError(
                f"{where} holds no weights of {path}: there it was frozen ({described(record)}), here it is trained; "
                "begin with init_from"
            )
        compare(module, record, f"{where} belongs to {path}", path)


def compare(module: FrozenModule, record: Mapping[str, Any], what: str, path: str) -> None:
    """Compare one frozen module with a record.

    Raises:
        ValueError: when the weights differ; begins with `what` and names both.
    """
    if module.fingerprint() != record["sha256"]:
        ours = {"sha256": module.fingerprint(), "source": module.source, "revision": module.revision}
        copy = f"; its copy lies in {record['folder']} of that run" if record["folder"] else ""
        raise ValueError(
            f"{what} = {described(record)}, and not to {described(ours)}: set the source of {path} to the former{copy}"
        )


def described(record: Mapping[str, Any]) -> str:
    """A record in words."""
    revision = f" at {record['revision']}" if record["revision"] else ""
    return f"{record['source'] or 'weights built here'}{revision} (sha256 {record['sha256'][:_HASH_DIGITS]})"


def read_records(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """The `frozen` entry of a checkpoint file that has copies beside it, read without its tensors."""
    if not ((checkpoint.parent / FOLDER).is_dir() and checkpoint.exists()):
        return {}
    return load_checkpoint(checkpoint, mapped=True).get("frozen", {})
