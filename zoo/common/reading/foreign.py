"""Read other projects' checkpoints as data; nothing that a file contains is ever executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from zoo.common.reading.budget import children
from zoo.common.reading.errors import UnsafeFileError
from zoo.common.reading.torch_files import read_torch
from zoo.common.reading.values import Stub

__all__ = ["Stub", "UnsafeFileError", "load_foreign", "plain", "strange_types"]

_PLAIN = (torch.Tensor, torch.dtype, torch.device, str, bytes, bytearray, bool, int, float, complex, type(None))


def load_foreign(path: Path | str, map_location: str | torch.device = "cpu", mapped: bool = False) -> Any:
    """Read a checkpoint of another project as plain data.

    Args:
        path: torch zip file, torch file of the format before 1.6, plain pickle or safetensors file.
        map_location: device of the returned tensors.
        mapped: leave the tensors of a zip file on disk until they are used.

    Returns:
        The file's object; tensors and numpy arrays are real, every foreign class is a `Stub`.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafeFileError: the file asks to run code, is a bomb, or is of a kind that cannot be read as data.
        ValueError: the file is damaged or of no known kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        return _load_safetensors(path, map_location)
    # torch.load(weights_only=True) is not asked first: `bytearray(n)` in a file makes it allocate any n.
    content = read_torch(path, mapped)
    device = torch.device(map_location)
    return content if device.type == "cpu" else _moved(content, device, set())


def plain(value: Any) -> Any:
    """Turn OmegaConf nodes, namespaces and dict- or list-like stubs inside a loaded object into plain values.

    Args:
        value: what `load_foreign` returned, or a part of it.

    Returns:
        The same data as dicts, lists and values; a `Stub` of another kind stays as it is.
    """
    try:
        return _plain(value, {})
    except RecursionError as error:
        raise UnsafeFileError("its records contain one another in a circle") from error


def strange_types(value: Any) -> list[str]:
    """Names of what a loaded object holds beside tensors, plain values and containers of them, sorted."""
    found: set[str] = set()
    seen: set[int] = set()
    pending = [value]
    while pending:
        entry = pending.pop()
        if type(entry) in _PLAIN or id(entry) in seen:
            continue
        seen.add(id(entry))
        if isinstance(entry, Stub):
            found.add(entry.path)
        elif isinstance(entry, dict | list | tuple | set | frozenset):
            pending += children(entry)
        else:
            found.add(type(entry).__name__)
    return sorted(found)


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Do the work of `plain`; `done` keeps a container that occurs twice from being spelled out twice."""
    if id(value) in done:
        return done[id(value)]
    result: Any = value
    if isinstance(value, Stub):
        content = _content(value)
        result = value if content is value else _plain(content, done)
    elif isinstance(value, Mapping):
        result = done[id(value)] = {}
        result.update((key, _plain(entry, done)) for key, entry in value.items())
    elif isinstance(value, list):
        result = done[id(value)] = []
        result.extend(_plain(entry, done) for entry in value)
    elif type(value) is tuple:
        result = tuple(_plain(entry, done) for entry in value)
    done[id(value)] = result
    return result


def _content(stub: Stub) -> Any:
    """Return what a record of a container or node holds, or the record itself."""
    if isinstance(stub.state, Mapping):
        if stub.path == "argparse.Namespace":
            return stub.state
        for key in ("_content", "_val"):
            if stub.path.startswith("omegaconf.") and key in stub.state:
                return stub.state[key]
    if bool(stub.entries) == bool(stub.elements):
        return stub
    return stub.entries or stub.elements


def _load_safetensors(path: Path, map_location: str | torch.device) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device=str(map_location))
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error}); is it complete?") from error


def _moved(value: Any, device: torch.device, seen: set[int]) -> Any:
    """Move the tensors of nested containers; tensors recorded in stubs stay on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, dict):
        value.update({key: _moved(entry, device, seen) for key, entry in value.items()})
    elif isinstance(value, list):
        value[:] = [_moved(entry, device, seen) for entry in value]
    return value
