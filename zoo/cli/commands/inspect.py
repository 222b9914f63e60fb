"""`zoo inspect`."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.cli.log_filters import printable
from zoo.cli.recipes import shorten_list
from zoo.common.systems import list_systems
from zoo.runs.run_info import path_size

Components = dict[str, list[tuple[int, str]]]
"""Number of values and dtype of each tensor of a component."""


def main(path: Path) -> int:
    """Tell what a file or a run folder holds and whether it is valid.

    That is: a checkpoint, an export or an original's file. Pickled code is never executed.

    Args:
        path: the file or folder.

    Returns:
        0, or 1 when the file (or every checkpoint of the folder) is corrupt.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    try:
        return inspect_folder(path) if path.is_dir() else inspect_file(path)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, re.error) as error:
        raise ValueError(f"{path}: its description makes no sense ({type(error).__name__}: {error})") from error


def inspect_folder(path: Path) -> int:
    """Describe a run folder, an export or a folder of an original; returns the exit code."""
    from zoo.runs.checkpoints import find_checkpoints, is_valid_checkpoint

    if not (path / "config.yaml").is_file() and (facts := describe_original(path)):
        return print_facts(path, facts)
    if checkpoints := {checkpoint: is_valid_checkpoint(checkpoint) for checkpoint in find_checkpoints(path)}:
        print(f"{path}: run folder, checkpoints: {len(checkpoints)}")
        for checkpoint, is_valid in checkpoints.items():
            size = f"{path_size(checkpoint) / 2**20:.1f} MiB"
            print(f"  {checkpoint.name}  {size}  {'valid' if is_valid else 'CORRUPT'}")
        newest = next((checkpoint for checkpoint, is_valid in checkpoints.items() if is_valid), None)
        return 1 if newest is None else inspect_file(newest)
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ValueError(f"{path}: neither a run folder (*.ckpt), nor an export (*.safetensors), nor an original's")
    return max(inspect_safetensors(file) for file in weights)


def inspect_file(path: Path) -> int:
    """Describe a checkpoint or a file of another project; returns the exit code."""
    from zoo.common.safe_load import UnsafeFileError, load_foreign_checkpoint
    from zoo.convert.engine import load_original
    from zoo.runs.checkpoints import is_valid_checkpoint

    if path.suffix == ".safetensors":
        return inspect_safetensors(path)
    if path.suffix == ".ckpt" and not is_valid_checkpoint(path):
        return print_facts(path, {"kind": "checkpoint", "valid": "NO: its checksums do not match"}, code=1)
    try:
        # a .ckpt is compared with its checksums above
        content: Any = load_foreign_checkpoint(path, mmap=True) if path.suffix == ".ckpt" else load_original(path)
    except UnsafeFileError:
        raise
    except ValueError:
        if facts := describe_original(path):  # an original's format need not be torch's
            return print_facts(path, facts)
        raise
    if isinstance(content, Mapping) and isinstance(content.get("zoo"), Mapping):
        return print_facts(path, describe_checkpoint(path, content), count_tensors(content.get("state_dict")))
    facts = describe_original(path, content)
    if facts is None:
        keys = list(map(str, content)) if isinstance(content, Mapping) else [f"none, a {type(content).__name__}"]
        facts = {"kind": "file of another project", "keys": shorten_list(keys)}
    return print_facts(path, facts, count_tensors(content))


def inspect_safetensors(path: Path) -> int:
    """Describe a safetensors file by its header and the export that it belongs to; returns the exit code."""
    from safetensors import SafetensorError, safe_open

    from zoo.runs.components import is_export, read_export_config

    components: Components = {}
    try:
        with safe_open(path, "numpy") as file:
            facts: dict[str, Any] = {"kind": "safetensors", **(file.metadata() or {})}
            for key in file.keys():
                tensor = file.get_slice(key)
                entry = (math.prod(tensor.get_shape()), tensor.get_dtype().lower())
                components.setdefault(key.partition(".")[0], []).append(entry)
    except SafetensorError as error:
        return print_facts(path, {"kind": "safetensors", "valid": f"NO: {error}"}, code=1)
    if is_export(path.parent):
        config = read_export_config(path.parent)
        facts = {
            "kind": "export of the zoo",
            "task": config.get("task"),
            "inference": config["inference"],
            "version": config["zoo"],
            "source": config.get("source"),
            "step": f"{config.get('step')} batches",
            "weight norm folded in": ", ".join(config.get("fused", [])) or "none",
            **describe_frozen(config.get("frozen", {}), path.parent),
        }
    return print_facts(path, {**facts, "valid": "yes (header and length)"}, components)


def describe_checkpoint(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the facts of a checkpoint that this project wrote."""
    from zoo.runs.checkpoints import HASH_SUFFIX

    optimizers = content.get("optimizer_states") or []
    values = sum(count for count, _ in count_tensors(optimizers).get("content", []))
    has_hash = path.with_name(path.name + HASH_SUFFIX).is_file()
    return {
        "kind": "checkpoint of the zoo",
        "task": content["zoo"].get("task"),
        "version": content["zoo"].get("version"),
        "step": f"{content.get('global_step')} batches",
        "epoch": content.get("epoch"),
        "optimizers": f"{len(optimizers)}, {values:,} values" if optimizers else "none",
        "EMA": f"after {content['ema'].get('updates')} updates" if content.get("ema") else "none",
        **describe_frozen(content.get("frozen", {}), path.parent),
        "valid": f"yes ({'sha256' if has_hash else 'checksums of its own'})",
    }


def describe_frozen(records: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Describe the backbones whose weights lie elsewhere, by `frozen <module path>`."""
    from zoo.runs.frozen import describe_record

    facts = {}
    for path, record in records.items():
        is_missing = record["folder"] is not None and not (folder / record["folder"]).is_dir()
        facts[f"frozen {path}"] = describe_record(record) + (
            ", its copy {record['folder']} is MISSING" if is_missing else ""
        )
    return facts


def describe_original(path: Path, content: Any = None) -> dict[str, Any] | None:
    """Ask every system's converter whether the file is an original's; `content` where it has been read."""
    for system in list_systems():
        if system.has_converter:
            converter = importlib.import_module(f"{system.package}.convert")
            if hasattr(converter, "is_original") and converter.is_original(path, content):
                return {"kind": f"original's file, system {system.name}", **converter.describe(path, content)}
    return None


def count_tensors(content: Any) -> Components:
    """List size and dtype of the tensors of a nested object by its first keys up to their first dot.

    A container that several keys share counts for the first; keys without tensors are left out.
    """
    import torch

    components: Components = {}
    visited: set[int] = set()
    for key, value in content.items() if isinstance(content, Mapping) else [("content", content)]:
        for tensor in iterate_contents(value, visited):
            if isinstance(tensor, torch.Tensor):
                entry = (tensor.numel(), str(tensor.dtype).removeprefix("torch."))
                components.setdefault(str(key).partition(".")[0], []).append(entry)
    return components


def iterate_contents(content: Any, visited: set[int]) -> Iterator[Any]:
    """Yield the tensors and records inside a loaded object; each container is opened once."""
    import torch

    from zoo.common.safe_load import Record

    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor | Record) or (isinstance(value, type) and issubclass(value, Record)):
            yield value
        if id(value) not in visited and isinstance(value, Mapping | list | tuple | set | frozenset | Record):
            visited.add(id(value))
            if isinstance(value, Record):
                pending += [*value.args, value.state]
            else:
                pending += [*value.keys(), *value.values()] if isinstance(value, Mapping) else value


def print_facts(path: Path, facts: Mapping[str, Any], components: Components | None = None, code: int = 0) -> int:
    """Print facts, then tensors, values and dtypes of each component; returns the exit code."""
    rows = {key: ", ".join(map(str, each)) if isinstance(each, list | tuple) else each for key, each in facts.items()}
    for name, entries in (components or {}).items():
        dtypes = ", ".join(sorted({dtype for _, dtype in entries}))
        rows[name] = f"{len(entries)} tensors, {sum(count for count, _ in entries):,} values, {dtypes}"
    print(f"{path}  ({path_size(path) / 2**20:.1f} MiB)")
    width = max((len(printable(key)) for key in rows), default=0)
    for key, value in rows.items():
        print(f"  {printable(key):<{width}}  {printable(value)}")
    return code
