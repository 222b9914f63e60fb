"""Copies of frozen modules in runs and exports, and the comparison of modules with their records.

Weights that no hub has, of a local folder or random ones, are copied once into `frozen/<hash>/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.common.atomic_files import replace_atomically
from zoo.runs.frozen import HASH_DIGITS, FrozenModule

Records = Mapping[str, Mapping[str, Any]]


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
    return f"{record['source'] or 'weights built here'}{revision} (sha256 {record['sha256'][:HASH_DIGITS]})"
