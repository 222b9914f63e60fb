"""`zoo inspect`."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.cli.log_filters import printable
from zoo.common.systems import list_systems

MAX_KEYS = 12  # of an unknown file that are printed
Components = dict[str, list[tuple[int, str]]]
"""Number of values and dtype of each tensor of a component."""


def main(path: Path) -> int:
    """Tell what a checkpoint, run folder, export or original's file holds and whether it is valid.

    Pickled code is never executed.

    Args:
        path: the file or folder.

    Returns:
        0, or 1 when the file (or every checkpoint of the folder) is corrupt.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: the file is of no supported kind, or its description makes no sense.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    try:
        return inspect_folder(path) if path.is_dir() else inspect_file(path)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, re.error) as error:
        raise ValueError(f"{path}: its description makes no sense ({type(error).__name__}: {error})") from error


def inspect_folder(path: Path) -> int:
    """Describe a run folder, an export or a folder of an original; returns the exit code."""
    from zoo.runs.checkpoints import find_checkpoints, is_sound

    is_run = (path / "config.yaml").is_file()
    if not is_run and (facts := describe_original(path)):
        return print_facts(path, facts)
    if checkpoints := find_checkpoints(path):
        print(f"{path}: run folder, checkpoints: {len(checkpoints)}")
        if not is_run:
            print("  config.yaml is missing: name the recipe with --config to resume this run")
        valid = [checkpoint for checkpoint in checkpoints if is_sound(checkpoint)]
        for checkpoint in checkpoints:
            print(f"  {checkpoint.name}  {format_size(checkpoint)}  {'valid' if checkpoint in valid else 'CORRUPT'}")
        return inspect_file(valid[0]) if valid else 1
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ValueError(
            f"{path}: neither a run folder (*.ckpt), nor an export (*.safetensors), nor an original's folder"
        )
    return max(inspect_safetensors(file) for file in weights)


def inspect_file(path: Path) -> int:
    """Describe a checkpoint or a file of another project; returns the exit code."""
    from zoo.common.safe_load import UnsafeFileError, load_foreign_checkpoint
    from zoo.convert.engine import load_original
    from zoo.runs.checkpoints import is_sound

    if path.suffix == ".safetensors":
        return inspect_safetensors(path)
    if path.suffix == ".ckpt" and not is_sound(path):
        return print_facts(
            path, {"kind": "checkpoint", "valid": "NO: its contents do not match their checksums"}, code=1
        )
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
        more = f", … ({len(keys)} in all)" if len(keys) > MAX_KEYS else ""
        facts = {"kind": "file of another project", "keys": ", ".join(keys[:MAX_KEYS]) + more}
    if classes := sorted({entry.path for entry in iterate_contents(content) if hasattr(entry, "path")}):
        facts["pickled classes"] = f"{', '.join(classes)} (read as records, never executed)"
    return print_facts(path, facts, count_tensors(content))


def inspect_safetensors(path: Path) -> int:
    """Describe a safetensors file by its header and the export that it belongs to; returns the exit code."""
    from safetensors import SafetensorError, safe_open

    from zoo.runs.export import export_config, is_export

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
        config = export_config(path.parent)
        facts = {
            "kind": "export of the zoo",
            "system": find_system_name(str(config.get("task"))),
            "inference": config["inference"],
            "version": config["zoo"],
            "source": config.get("source"),
            "step": "unknown" if config.get("step") is None else f"{config['step']} batches",
            "weight norm folded in": ", ".join(config.get("fused", [])) or "none",
            **describe_frozen(config.get("frozen", {}), path.parent),
        }
    return print_facts(path, {**facts, "valid": "yes (header and length)"}, components)


def describe_checkpoint(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the facts of a checkpoint that this project wrote."""
    from zoo.runs.checkpoints import HASH_SUFFIX

    is_hashed = path.is_dir() or path.with_name(path.name + HASH_SUFFIX).is_file()
    optimizers = content.get("optimizer_states") or []
    values = sum(count for count, _ in count_tensors({"": optimizers}).get("", []))
    return {
        "kind": "checkpoint of the zoo",
        "system": find_system_name(str(content["zoo"].get("task"))),
        "task": content["zoo"].get("task"),
        "version": content["zoo"].get("version"),
        "step": f"{content.get('global_step')} batches",
        "epoch": content.get("epoch"),
        "optimizers": f"{len(optimizers)}, {values:,} values" if optimizers else "none",
        "EMA": f"after {content['ema'].get('updates')} updates" if content.get("ema") else "none",
        **describe_frozen(content.get("frozen", {}), path.parent),
        "valid": "yes (sha256)" if is_hashed else "yes (its own checksums; it has no sha256 file)",
    }


def describe_frozen(records: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Describe the backbones whose weights lie elsewhere, by `frozen <module path>`."""
    from zoo.runs.frozen import described

    facts = {}
    for path, record in records.items():
        copy = record["folder"]
        location = "" if copy is None else f", copy in {copy}" + ("" if (folder / copy).is_dir() else ": MISSING")
        facts[f"frozen {path}"] = described(record) + location
    return facts


def describe_original(path: Path, content: Any = None) -> dict[str, Any] | None:
    """Ask every system's converter whether the file is an original's; `content` where it has been read."""
    for system in list_systems():
        if system.has_converter:
            converter = importlib.import_module(f"{system.package}.convert")
            if hasattr(converter, "is_original") and converter.is_original(path, content):
                return {"kind": f"original's file, system {system.name}", **converter.describe(path, content)}
    return None


def find_system_name(task: str) -> str:
    """Return the system whose package holds a task."""
    names = [system.name for system in list_systems() if task.startswith(system.package + ".")]
    return names[0] if names else "unknown (its package is not named by --allow-import)"


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


def iterate_contents(content: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the tensors and records inside a loaded object, including classes that were not called.

    Args:
        seen: ids of the containers to pass over; added to. Every container is opened once.
    """
    import torch

    from zoo.common.safe_load import Record

    seen = set() if seen is None else seen
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor | Record) or (isinstance(value, type) and issubclass(value, Record)):
            yield value
        if id(value) not in seen and isinstance(value, Mapping | list | tuple | set | frozenset | Record):
            seen.add(id(value))
            if isinstance(value, Record):
                pending += [*value.args, value.state]
            else:
                pending += [*value.keys(), *value.values()] if isinstance(value, Mapping) else value


def format_size(path: Path) -> str:
    """Format the size of a file or folder in MiB."""
    files = path.rglob("*") if path.is_dir() else [path]
    return f"{sum(file.stat().st_size for file in files if file.is_file()) / 2**20:.1f} MiB"


def print_facts(path: Path, facts: Mapping[str, Any], components: Components | None = None, code: int = 0) -> int:
    """Print facts, then tensors, values and dtypes of each component; returns the exit code."""
    rows = {key: ", ".join(map(str, each)) if isinstance(each, list | tuple) else each for key, each in facts.items()}
    for name, entries in (components or {}).items():
        dtypes = ", ".join(sorted({dtype for _, dtype in entries}))
        rows[name] = f"{len(entries)} tensors, {sum(count for count, _ in entries):,} values, {dtypes}"
    print(f"{path}  ({format_size(path)})")
    width = max((len(printable(key)) for key in rows), default=0)
    for key, value in rows.items():
        print(f"  {printable(key):<{width}}  {printable(value)}")
    return code
