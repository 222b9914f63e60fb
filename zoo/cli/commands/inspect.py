"""`zoo inspect`."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zoo.cli.quiet import printable
from zoo.common.reading.text import load_json
from zoo.common.systems import systems


class Component(NamedTuple):
    """What one part of a file holds."""

    tensors: int
    values: int
    dtypes: tuple[str, ...]


class Header(NamedTuple):
    """The header of a safetensors file: its bytes with their count before them, free texts, tensors by name."""

    size: int
    metadata: dict[str, Any]
    tensors: dict[str, dict[str, Any]]


def main(path: Path) -> int:
    """Tell what a checkpoint, run folder, export or original's file holds and whether it is sound.

    Pickled code is never executed.

    Args:
        path: the file or folder.

    Returns:
        0, or 1 when the file (or every checkpoint of the folder) is torn.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: the file is of no known kind.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    from zoo.runs.checkpoints import is_folder

    return _folder(path) if path.is_dir() and not is_folder(path) else _file(path)


def _folder(path: Path) -> int:
    from zoo.runs.checkpoints import find_checkpoints, is_sound

    checkpoints = find_checkpoints(path)
    original = None if (path / "config.yaml").is_file() else _original(path)
    if checkpoints and original is None:
        print(f"{path}: run folder, checkpoints: {len(checkpoints)}")
        if not (path / "config.yaml").is_file():
            print("  config.yaml is missing: name the recipe with --config to go on with this run")
        sound = {checkpoint: is_sound(checkpoint) for checkpoint in checkpoints}
        for checkpoint, whole in sound.items():
            print(f"  {checkpoint.name}  {_size(checkpoint)}  {'sound' if whole else 'TORN'}")
        usable = [checkpoint for checkpoint, whole in sound.items() if whole]
        if not usable:
            return 1
        return _file(usable[0])
    if original is not None:
        _show(path, original, {})
        return 0
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ValueError(
            f"{path}: neither a run folder (*.ckpt), nor an export (*.safetensors), nor an original's folder"
        )
    return max(_safetensors(file) for file in weights)


def _file(path: Path) -> int:
    if path.suffix == ".safetensors":
        return _safetensors(path)
    from zoo.common.safe_load import UnsafeFileError, iterate_contents, load_foreign_checkpoint
    from zoo.convert.engine import load_original
    from zoo.runs.checkpoints import folder_damage, is_folder, is_sound, load_checkpoint

    if path.suffix == ".ckpt" and not is_sound(path):
        reason = folder_damage(path) if is_folder(path) else "its zip directory or sha256 does not match"
        _show(path, {"kind": "checkpoint", "sound": f"NO: {reason}"}, {})
        return 1
    try:
        if is_folder(path):
            content = load_checkpoint(path, mapped=True)
        else:  # a .ckpt is compared with its checksums above
            content = load_foreign_checkpoint(path, mmap=True) if path.suffix == ".ckpt" else load_original(path)
    except UnsafeFileError:
        raise
    except ValueError:
        facts = _original(path)  # an original's format need not be torch's
        if facts is None:
            raise
        _show(path, facts, {})
        return 0
    if isinstance(content, Mapping) and isinstance(content.get("zoo"), Mapping):
        _show(path, _ours(path, content), grouped(content.get("state_dict")))
        return 0
    facts = _original(path, content)
    if facts is None:
        facts = {"kind": "file of another project", "keys": _keys(content)}
    classes = sorted({entry.path for entry in iterate_contents(content) if hasattr(entry, "path")})
    if classes:
        facts["pickled classes"] = f"{', '.join(classes)} (read as records, never executed)"
    _show(path, facts, grouped(content))
    return 0


def _ours(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a checkpoint that this project wrote."""
    from zoo.runs.checkpoints import HASH_SUFFIX

    specs = content["zoo"]
    hashed = path.with_name(path.name + HASH_SUFFIX).is_file()
    hashes = "yes (zip directory, sha256)" if hashed else "yes (its own checksums; no sha256 file beside it)"
    if path.is_dir():
        hashes = f"yes (sha256 of its {sum(1 for _ in path.iterdir()) - 1} files)"
    states = content.get("optimizer_states")
    optimizers = states if isinstance(states, list) else []
    ema = content.get("ema")
    return {
        "kind": "checkpoint of the zoo",
        "system": _system_of(str(specs.get("task"))),
        "task": specs.get("task"),
        "version": specs.get("version"),
        "step": f"{content.get('global_step')} batches",
        "epoch": content.get("epoch"),
        "optimizers": f"{len(optimizers)}, {sum(c.values for c in grouped(optimizers).values()):,} values"
        if optimizers
        else "none",
        "EMA": f"after {ema.get('updates')} updates" if isinstance(ema, Mapping) else "none",
        **_frozen(content.get("frozen", {}), path.parent),
        "sound": hashes,
    }


def _frozen(records: Any, folder: Path) -> dict[str, str]:
    """Backbones whose weights lie elsewhere, by `frozen <module path>`."""
    from zoo.runs.frozen import described

    if not isinstance(records, Mapping):
        return {"frozen": "NO: the record of its backbones cannot be read"}
    facts = {}
    for path, record in records.items():
        if not _is_frozen_record(record):
            facts[f"frozen {path}"] = "NO: its record cannot be read"
            continue
        copy = record["folder"]
        place = "" if copy is None else f", copy in {copy}" + ("" if (folder / copy).is_dir() else ": MISSING")
        facts[f"frozen {path}"] = described(record) + place
    return facts


def _is_frozen_record(record: Any) -> bool:
    return (
        isinstance(record, Mapping)
        and {"sha256", "source", "revision", "folder"} <= record.keys()
        and isinstance(record["sha256"], str)
        and all(isinstance(record[key], str | None) for key in ("source", "revision", "folder"))
    )


def _safetensors(path: Path) -> int:
    """Show a safetensors file from its header alone."""
    from zoo.runs.export import export_config, is_export

    size = path.stat().st_size
    header = _read_header(path)
    if header is None:
        _show(path, {"kind": "safetensors", "sound": "NO: its header cannot be read"}, {})
        return 1
    facts: dict[str, Any] = {"kind": "safetensors", **header.metadata}
    if is_export(path.parent):
        config = export_config(path.parent)
        facts = {
            "kind": "export of the zoo",
            "system": _system_of(str(config.get("task"))),
            "inference": config["inference"],
            "version": config["zoo"],
            "source": config.get("source"),
            "step": "unknown" if config.get("step") is None else f"{config['step']} batches",
            "weight norm folded in": ", ".join(config.get("fused", [])) or "none",
            **_frozen(config.get("frozen", {}), path.parent),
        }
    expected = header.size + max((entry["data_offsets"][1] for entry in header.tensors.values()), default=0)
    facts["sound"] = "yes (length)" if size == expected else f"NO: {size} bytes, its header says {expected}"
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for key, entry in header.tensors.items():
        parts.setdefault(key.partition(".")[0], []).append(entry)
    _show(path, facts, {name: _header_component(entries) for name, entries in parts.items()})
    return int(size != expected)


def _read_header(path: Path) -> Header | None:
    """The header of a safetensors file, None where it is none."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            content = load_json(stream.read(length)) if length < path.stat().st_size else None
        except ValueError:
            return None
    if not isinstance(content, dict):
        return None
    metadata = content.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(map(_is_header_entry, content.values())):
        return None
    return Header(8 + length, metadata, content)


def _is_header_entry(entry: Any) -> bool:
    def is_sizes(values: Any) -> bool:
        return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)

    return (
        isinstance(entry, dict)
        and isinstance(entry.get("dtype"), str)
        and is_sizes(entry.get("shape"))
        and is_sizes(entry.get("data_offsets"))
        and len(entry["data_offsets"]) == 2
    )


def _header_component(entries: list[Mapping[str, Any]]) -> Component:
    values = sum(math.prod(entry["shape"]) for entry in entries)
    return Component(len(entries), values, tuple(sorted({str(entry["dtype"]).lower() for entry in entries})))


def _original(path: Path, content: Any = None) -> dict[str, Any] | None:
    """Ask every system's converter whether the file is an original's; `content` where it is read already."""
    for system in systems():
        if not system.has_converter:
            continue
        converter = importlib.import_module(f"{system.package}.convert")
        if not hasattr(converter, "is_original"):
            continue
        try:
            if converter.is_original(path, content):
                return {"kind": f"original's file, system {system.name}", **converter.describe(path, content)}
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:  # its settings may be anything
            raise ValueError(f"{path}: damaged file of {system.name} ({type(error).__name__}: {error})") from error
    return None


def _system_of(task: str) -> str:
    names = [system.name for system in systems() if task.startswith(system.package + ".")]
    return names[0] if names else "unknown (its package is not named by --allow-import)"


def grouped(content: Any) -> dict[str, Component]:
    """Count the tensors of a nested object by its first keys up to their first dot.

    Args:
        content: dicts, lists and records of tensors.

    Returns:
        Component by name; names without tensors are left out. A container that several keys share counts for the first.
    """
    import torch

    from zoo.common.safe_load import iterate_contents

    parts: dict[str, Component] = {}
    seen: set[int] = set()
    for key, value in content.items() if isinstance(content, Mapping) else [("content", content)]:
        name = str(key).partition(".")[0]
        for entry in iterate_contents(value, seen):
            if isinstance(entry, torch.Tensor):
                tensors, values, dtypes = parts.get(name, Component(0, 0, ()))
                dtype = str(entry.dtype).removeprefix("torch.")
                kinds = dtypes if dtype in dtypes else tuple(sorted((*dtypes, dtype)))
                parts[name] = Component(tensors + 1, values + entry.numel(), kinds)
    return parts


def _keys(content: Any) -> str:
    if not isinstance(content, Mapping):
        return f"none, it holds a {type(content).__name__}"
    names = list(map(str, content))
    return ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")


def _size(path: Path) -> str:
    files = path.rglob("*") if path.is_dir() else [path]
    return f"{sum(file.stat().st_size for file in files if file.is_file()) / 2**20:.1f} MiB"


def _show(path: Path, facts: Mapping[str, Any], components: Mapping[str, Component]) -> None:
    print(f"{path}  ({_size(path)})")
    rows = [
        (key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else value) for key, value in facts.items()
    ]
    for name, part in components.items():
        tensors = "1 tensor" if part.tensors == 1 else f"{part.tensors} tensors"
        rows.append((name, f"{tensors}, {part.values:,} values, {', '.join(part.dtypes)}"))
    width = max((len(printable(key)) for key, _ in rows), default=0)
    for key, value in rows:
        print(f"  {printable(key):<{width}}  {printable(value)}")
