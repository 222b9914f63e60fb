"""`zoo convert`, `convert-config` and `export`: weights and settings for other programs and people."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import yaml

from zoo.cli.help_text import align_rows
from zoo.common.atomic_files import write_atomic
from zoo.common.systems import get_system


def convert(
    system: str, source: Path, target: Path, *, backbone: Path | None = None, allow_partial: bool = False
) -> None:
    """Convert an original's checkpoint to ours, or ours to its format.

    Pickled code in the source is never executed; the direction follows from the source.

    Args:
        system: which system's formats, as `zoo list` names it.
        source: the file or folder to read.
        target: the file or folder to write.
        backbone: folder of the frozen backbone, for systems whose files need one.
        allow_partial: convert a file that lacks some tensors, which stay random, for systems that can.
    """
    function = find_converter(system, "convert")
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    options = {name: value for name, value in {"backbone": backbone, "allow_partial": allow_partial}.items() if value}
    for name in options.keys() - inspect.signature(function).parameters:
        raise ValueError(f"--{name}: the converter of {system!r} has no such option; leave it out")
    report = function(source, target, **options)
    print(f"{source} -> {target}")
    rows = {key: list(value) if isinstance(value, list | tuple | set) else [value] for key, value in report.items()}
    for line in align_rows([(key, ", ".join(map(str, values)) or "none") for key, values in rows.items()]):
        print(line)


def convert_config(system: str, file: Path, output: Path | None = None) -> None:
    """Translate an original's settings into a recipe.

    Keys without a counterpart are listed as comments of the recipe and on standard error.

    Args:
        system: which system's format, as `zoo list` names it.
        file: the original's configuration.
        output: the YAML file to write; standard output when None.
    """
    translate = find_converter(system, "convert_config")
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    if output is not None and output.exists() and output.samefile(file):
        raise ValueError(f"--output {output} is the file that is read; choose another")
    recipe, unmapped = translate(file)
    lines = [f"# Translated from {file.name} by `zoo convert-config {system}`."]
    lines += [f"# not translated: {key}" for key in unmapped]
    text = "\n".join([*lines, yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)])
    if output is None:
        print(text, end="")
    else:
        write_atomic(output, lambda stream: stream.write(text.encode()))
        print(f"{file} -> {output}", file=sys.stderr)
    for key in unmapped:
        print(f"not translated: {key}", file=sys.stderr)


def find_converter(system: str, name: str) -> Any:
    """Import a function of a system's converter."""
    selected = get_system(system)
    module = importlib.import_module(f"{selected.package}.convert") if selected.has_converter else None
    if not hasattr(module, name):
        raise ValueError(f"system {selected.name!r} has no converter: {selected.package}.convert.{name} does not exist")
    return getattr(module, name)


def export(path: Path, output: Path, ema: bool = True, onnx: bool = False) -> None:
    """Write a run's weights as fused safetensors with a card, and as ONNX.

    Args:
        path: run folder or checkpoint.
        output: folder to write; appears only when complete.
        ema: export the averaged weights where the checkpoint holds them.
        onnx: also as model.onnx, compared with torch (needs the extra `export`); of a vocoder or of Miipher-2.
    """
    from zoo.runs.checkpoints import find_checkpoint
    from zoo.runs.components import is_export, read_components
    from zoo.runs.export import write_export
    from zoo.runs.load import load
    from zoo.runs.onnx_export import ONNX_NAME, check_onnx_packages
    from zoo.runs.run_folder import has_config_file, refuse_links

    if has_config_file(path):
        refuse_links(path if path.is_dir() else path.parent)
    if onnx:
        check_onnx_packages()
    name, path = path.name, path if is_export(path) else find_checkpoint(path)  # one, also while a run trains
    specs, _, _ = read_components(path, ema)
    model = load(path, ema=ema)
    graph = model.onnx_graph() if onnx else None  # refused before anything is written
    source, step = specs.get("source") or name, specs.get("step")
    difference = write_export(output, specs, model.modules(), source, step, model.usage, graph)
    print(f"wrote {output}")
    if difference is not None:
        print(f"wrote {output / ONNX_NAME}: largest difference from torch {difference:.1e}")
