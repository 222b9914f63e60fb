"""`zoo inspect`."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zoo.cli.help_text import align_rows
from zoo.cli.log_filters import printable
from zoo.cli.recipes import shorten_list
from zoo.common.safe_load import Record, UnsafeFileError, load_foreign_checkpoint
from zoo.common.systems import list_systems
from zoo.convert.engine import load_original
from zoo.runs.checkpoints import HASH_SUFFIX, find_checkpoints, is_valid_checkpoint
from zoo.runs.components import is_export, read_export_config
from zoo.runs.frozen_files import describe_record
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
    if not (path / "config.yaml").is_file() and (facts := describe_original(path)):
        return print_facts(path, facts)
    if checkpoints := find_checkpoints(path):
        print(f"{path}: run folder, checkpoints: {len(checkpoints)}")
        valid = [checkpoint for checkpoint in checkpoints if is_valid_checkpoint(checkpoint)]
        for checkpoint in checkpoints:
            state = "valid" if checkpoint in valid else "CORRUPT"
            print(f"  {checkpoint.name}  {path_size(checkpoint) / 2**20:.1f} MiB  {state}")
        return inspect_file(valid[0]) if valid else 1
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ValueError(f"{path}: neither a run folder (*.ckpt), nor an export (*.safetensors), nor an original's")
    return max(inspect_safetensors(file) for file in weights)


def inspect_file(path: Path) -> int:
    """Describe a checkpoint or a file of another project; returns the exit code."""
    if path.suffix == ".safetensors":
        return inspect_safetensors(path)
    if path.suffix == ".ckpt" and not is_valid_checkpoint(path):
        return print_facts(path, {"kind": "checkpoint", "valid": "NO: its checksums do not match"}, code=1)
    try:
        # a .ckpt is compared with its checksums above
        content: Any = load_foreign_checkpoint(path, mmap=True) if path.suffix == ".ckpt" else load_original(path)
    except ValueError as error:  # an original's format need not be torch's
        if isinstance(error, UnsafeFileError) or not (facts := describe_original(path)):
            raise
        return print_facts(path, facts)
    if isinstance(content, Mapping) and isinstance(content.get("zoo"), Mapping):
        return print_facts(path, describe_checkpoint(path, content), count_tensors(content.get("state_dict")))
    if facts := describe_original(path, content):
        return print_facts(path, facts, count_tensors(content))
    keys = list(map(str, content)) if isinstance(content, Mapping) else [f"none, a {type(content).__name__}"]
    return print_facts(path, {"kind": "file of another project", "keys": shorten_list(keys)}, count_tensors(content))


def inspect_safetensors(path: Path) -> int:
    """Describe a safetensors file by its header and the export that it belongs to; returns the exit code."""
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
        facts = {"kind": "export of the zoo", **{key: config.get(key) for key in ("task", "zoo", "source", "step")}}
        facts |= describe_frozen(config.get("frozen", {}), path.parent)
    return print_facts(path, {**facts, "valid": "yes (header and length)"}, components)


def describe_checkpoint(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the facts of a checkpoint that this project wrote."""
    optimizers = content.get("optimizer_states") or []
    values = sum(count for count, _ in count_tensors(optimizers).get("content", []))
    return {
        "kind": "checkpoint of the zoo",
        "task": content["zoo"].get("task"),
        "zoo": content["zoo"].get("version"),
        "step": content.get("global_step"),
        "epoch": content.get("epoch"),
        "optimizers": f"{len(optimizers)}, {values:,} values" if optimizers else "none",
        "EMA": f"after {content['ema'].get('updates')} updates" if content.get("ema") else "none",
        **describe_frozen(content.get("frozen", {}), path.parent),
        "valid": "yes (sha256)" if path.with_name(path.name + HASH_SUFFIX).is_file() else "yes (checksums of its own)",
    }


def describe_frozen(records: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Describe the backbones whose weights lie elsewhere, by `frozen <module path>`."""
    facts = {f"frozen {path}": describe_record(record) for path, record in records.items()}
    for path, record in records.items():
        if record["folder"] is not None and not (folder / record["folder"]).is_dir():
            facts[f"frozen {path}"] += f", its copy {record['folder']} is MISSING"
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
    components: Components = {}
    visited: set[int] = set()
    for key, value in content.items() if isinstance(content, Mapping) else [("content", content)]:
        for tensor in iterate_contents(value, visited):
            if isinstance(tensor, torch.Tensor):
                entry = (tensor.numel(), str(tensor.dtype).removeprefix("torch."))
                components.setdefault(str(key).partition(".")[0], []).append(entry)
    return components


def iterate_contents(content: Any, visited: set[int]) -> Iterator[Any]:
    """Yield a loaded object and all inside it; each container is opened once."""
    pending = [content]
    while pending:
        value = pending.pop()
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
    print("\n".join(align_rows([(printable(key), printable(value)) for key, value in rows.items()])))
    return code
