"""Tiny parts of the training stages, and a datamodule of synthetic clips."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tests.training.callbacks.parts import make_trainer
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.losses import Latent
from zoo.audiosr.nets.denoiser import Denoiser, GlobalEncoder
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder
from zoo.audiosr.nets.unet import UNet
from zoo.audiosr.task import DiffusionTask, ValidationOptions
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import item_seed

RATE = 16000
AUTOENCODER: dict[str, Any] = {
    "in_channels": 1, "out_channels": 1, "block_out_channels": [4, 8], "layers_per_block": 1, "latent_channels": 2,
    "norm_num_groups": 2,
}  # fmt: skip
VOCODER: dict[str, Any] = {
    "in_channels": 32, "initial_channels": 8, "upsample_rates": [16, 10], "upsample_kernel_sizes": [16, 10],
    "resblock": "2", "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1]],
}  # fmt: skip
UNET: dict[str, Any] = {
    "in_channels": 4, "out_channels": 2, "channels": 8, "multipliers": [1, 2], "blocks": 1, "attention_factors": [2],
    "head_channels": 8, "norm_groups": 4,
}  # fmt: skip


def features() -> MelFeatures:
    return MelFeatures(sample_rate=RATE, n_fft=512, hop_length=160, n_mels=32)


def denoiser(fusion: Any = "none", **settings: Any) -> Denoiser:
    width = None if fusion == "none" else 8
    torch.manual_seed(0)
    unet = UNet(**{**UNET, **settings}, fusion=fusion, context_channels=width)
    return Denoiser(unet, None if width is None else GlobalEncoder(32, 8, 2, 1, width, 16))


def task(
    net: Denoiser | None = None, kind: type[DiffusionTask] = DiffusionTask, restore_items: int = 0, **settings: Any
) -> Any:
    sampler = settings.pop("validation_sampler", None)
    settings = {
        "autoencoder": FrozenAutoencoder(config=AUTOENCODER),
        "features": features(),
        "diffusion": CosineDiffusion(),
        "losses": {"latent": Latent()},
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "validation": ValidationOptions(restore_items, sampler),
        **settings,
    }
    return kind(net or denoiser(), **settings)


class Clips(Dataset[dict[str, Tensor]]):
    """Noise, and its running mean as the band-limited twin."""

    def __init__(self, size: int, samples: int) -> None:
        self.size, self.samples = size, samples

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> dict[str, Tensor]:
        epoch, item = key if isinstance(key, tuple) else (-1, key)
        high = torch.randn(1, self.samples, generator=torch.Generator().manual_seed(item_seed(0, epoch, item))) / 4
        return {"high": high, "low": (high + high.roll(1, -1)) / 2, "cutoff_hz": torch.tensor(4000.0)}


class Data(ZooDataModule):
    def __init__(self, batch_size: int = 2, samples: int = 2560, size: int = 6) -> None:
        super().__init__(batch_size)
        self.samples, self.size = samples, size

    def setup(self, stage: str) -> None:
        self.train_set, self.val_set = Clips(self.size, self.samples), Clips(2, self.samples)


class Save(L.Callback):
    """A checkpoint after every step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt", weights_only=False)


def trainer(folder: Path, **settings: Any) -> L.Trainer:
    few = {"devices": 1, "max_steps": 3, "limit_val_batches": 0, "num_sanity_val_steps": 0}
    callbacks = settings.pop("callbacks", ())
    return make_trainer(*callbacks, default_root_dir=folder, use_distributed_sampler=False, **{**few, **settings})
