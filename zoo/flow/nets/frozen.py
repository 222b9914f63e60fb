"""A trained net of flow matching that a later stage uses and does not train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from zoo import __version__
from zoo.common.build import build
from zoo.flow.nets.velocity import VelocityNet
from zoo.runs.export import CONFIG_NAME, WEIGHTS_NAME, is_export, parts_state
from zoo.runs.folder import newest_run
from zoo.runs.frozen import FrozenModule
from zoo.runs.load import read_parts

PART = "net"


class FrozenNet(FrozenModule):
    """The net of a run, with averaged weights where it has them; called as that net is.

    Args:
        source: a run of flow matching, a folder of such runs (the newest is taken), a checkpoint or an export; null for
            random weights.
        revision: not used; our runs have none.
        config: `class_path` and `init_args` of the net where there is no source.
        seed: of random weights.

    Raises:
        FileNotFoundError: when there is nothing at the source.
        ValueError: when the source holds no such net, or not one of source and config is given.
    """

    net: VelocityNet

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source, revision)
        if (source is None) == (config is None):
            raise ValueError("FrozenNet: give source (a run, a checkpoint, an export) or config (of random weights)")
        self.spec: dict[str, Any] = dict(config or {})
        state: dict[str, Tensor] | None = None
        if source is not None:
            self.spec, state = read_part(Path(source), PART)
        with torch.random.fork_rng(devices=[]):  # its random weights depend on the seed alone
            torch.manual_seed(seed)
            self.net = build(self.spec, VelocityNet)
        if state is not None:
            self.net.load_state_dict(state)
        self.requires_grad_(False)
        self.eval()

    @property
    def is_local(self) -> bool:
        """Always: no hub has these weights, so runs and exports keep a copy."""
        return True

    def frozen_state(self) -> dict[str, Tensor]:
        """All tensors."""
        return dict(self.state_dict())

    def save_source(self, folder: Path) -> None:
        """Write weights and description in the layout of an export."""
        weights = {f"{PART}.{key}": value.contiguous() for key, value in self.net.state_dict().items()}
        save_file(weights, folder / WEIGHTS_NAME)
        parts = {PART: self.spec}
        config = {"zoo": __version__, "inference": "zoo.flow.Sampler", "parts": parts, "fused": []}
        (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")

    def forward(self, *inputs: Any) -> Tensor:
        """Predict, see `VelocityNet.forward`."""
        return self.net(*inputs)


def run_of(source: Path) -> Path | None:
    """The run, checkpoint or export that a path means, of a folder of runs the newest; None where it is none."""
    if source.suffix == ".ckpt" or (source.is_dir() and (is_export(source) or any(source.glob("*.ckpt")))):
        return source
    return newest_run(source) if source.is_dir() else None


def read_part(source: Path, part: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors of a part of a run, checkpoint or export, with averaged weights where it has them."""
    path = run_of(source) or source
    if not path.exists():
        raise FileNotFoundError(f"no run, checkpoint or export at {source}: train it first, or name its folder")
    specs, state, _ = read_parts(path)
    if part not in specs["parts"]:
        raise ValueError(f"{path}: expected a part {part}, found {', '.join(specs['parts'])}")
    return dict(specs["parts"][part]), parts_state(state, part)
