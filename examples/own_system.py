"""Add a system of your own: `zoo fit own_system.yaml --allow-import own_system` in this folder."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import zoo
from zoo.audio.inference import AudioInference
from zoo.audio.io import files
from zoo.training.task import OptimizerCallable


class Pairs(TensorDataset):
    def __getitem__(self, key: tuple[int, int] | int) -> tuple[Tensor, ...]:
        return super().__getitem__(key[1] if isinstance(key, tuple) else key)  # training: (epoch, item)


class PairData(zoo.training.ZooDataModule):
    def setup(self, stage: str) -> None:
        x = torch.randn(64, 1, generator=torch.Generator().manual_seed(self.seed))
        self.train_set, self.val_set = Pairs(x, 2 * x), Pairs(x[:4], 2 * x[:4])


class Amplifier(AudioInference):
    output_suffix = ".wav"

    def __init__(self, net: nn.Linear) -> None:
        self.net = net

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        return self.net(torch.as_tensor(audio)[..., None])[..., 0].detach().numpy()

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        audio, sample_rate = files.read(source)
        files.write(target, self(audio, sample_rate), sample_rate)
        return {}


class GainTask(zoo.training.SingleOptimizerTask):
    inference_class = "own_system.Amplifier"  # zoo.load builds it from `inference_modules`
    inference_modules = ("net",)

    def __init__(self, net: nn.Linear, optimizer: OptimizerCallable) -> None:
        super().__init__(optimizer)
        self.net = net

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (self.net(batch[0]) - batch[1]).square().mean()

    def evaluate(self, batch: list[Tensor], batch_idx: int, stage: str) -> tuple[dict[str, Tensor], int]:
        return {"error": self.training_step(batch, batch_idx)}, len(batch[0])


__getattr__, __dir__, __all__ = zoo.register(__name__, {"": "PairData Amplifier GainTask"})
