"""A gain on top of a frozen backbone: weights from a folder, or drawn here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from toy_system.inference import Amplifier
from zoo.runs.frozen import FrozenModule
from zoo.training.task import OptimizerCallable, SingleOptimizerTask


def draw(seed: int) -> Tensor:
    return 1 + torch.rand(8, generator=torch.Generator().manual_seed(seed))


class Scale(FrozenModule):
    """Multiplies 8 channels; drops some and counts its calls in training mode, which it must never be in."""

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, int] | None = None,
        trained: bool = False,
    ) -> None:
        super().__init__(source, revision)
        if (source is None) == (config is None):
            raise ValueError("give source or config")
        self.weight = nn.Parameter(draw((config or {}).get("seed", 0)), requires_grad=trained)
        self.register_buffer("seen", torch.zeros(()))
        self.drop = nn.Dropout(0.5)
        if source is not None:
            self.load_state_dict(load_file(Path(source) / "scale.safetensors"))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return self.drop(self.weight * x)

    def frozen_state(self) -> dict[str, Tensor]:
        return {} if self.weight.requires_grad else self.state_dict()

    def save_source(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "scale.safetensors")


class Scaled(nn.Module):
    def __init__(self, backbone: Scale) -> None:
        super().__init__()
        self.backbone = backbone
        self.gain = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.backbone(x)


class Louder(Amplifier):
    def __init__(self, net: Scaled, offset: float = 0.0) -> None:
        super().__init__(net)
        self.offset = offset

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        gain = float((self.net.gain * self.net.backbone.weight.sum()).detach())
        return (gain * audio + self.offset).astype(np.float32)


class FrozenTask(SingleOptimizerTask):
    inference_class = "toy_system.Louder"
    inference_modules = ("net",)

    def __init__(self, net: Scaled, optimizer: OptimizerCallable, offset: float = 0.0) -> None:
        super().__init__(optimizer)
        self.net = net
        self.offset = offset

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = (self.net(batch["x"]) - batch["y"]).square().mean()
        self.log_terms("train", {"loss": loss})
        return loss

    def evaluate(self, batch: dict[str, Tensor], batch_idx: int, stage: str) -> tuple[Mapping[str, Any], int]:
        return {"error": (self.net(batch["x"]) - batch["y"]).square().mean()}, len(batch["x"])
