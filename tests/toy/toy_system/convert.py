"""The "original" keeps its gain in a JSON file."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toy_system.nets import Gain


def is_original(path: Path, content: Any = None) -> bool:
    return path.suffix == ".json" and "toy_gain" in json.loads(path.read_text())


def describe(path: Path, content: Any = None) -> dict[str, Any]:
    return {"kind": "toy original", "gain": json.loads(path.read_text())["toy_gain"]}


def original_state(path: Path) -> dict[str, Tensor]:
    return {"net.gain": torch.tensor(float(json.loads(path.read_text())["toy_gain"]))}


def from_original(path: Path, config: Path | None = None) -> nn.Module:
    return Gain(json.loads(path.read_text())["toy_gain"])


def to_original(module: nn.Module, path: Path) -> None:
    path.write_text(json.dumps({"toy_gain": float(module.gain)}))


def convert(source: Path, target: Path) -> dict[str, Any]:
    from zoo.runs.export import write_export

    specs = {
        "inference": "toy_system.Amplifier",
        "components": {"net": {"class_path": "toy_system.Gain", "init_args": {"start": 0.0}}},
    }
    write_export(target, specs, {"net": from_original(source)}, source=source.name)
    unexpected = [key for key in json.loads(source.read_text()) if key != "toy_gain"]
    return {"direction": "original -> ours", "tensors": 1, "missing": [], "unexpected": unexpected}


def convert_config(path: Path) -> tuple[dict[str, Any], list[str]]:
    settings = json.loads(path.read_text())
    recipe = {"wandb": {"name": settings.pop("name")}, "seed_everything": settings.pop("seed")}
    return recipe, list(settings)
