"""Noise and its doubled copy, keyed by epoch and item."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import Key, item_seed


class Pairs(Dataset[dict[str, Tensor]]):
    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Key | int) -> dict[str, Tensor]:
        epoch, item = key if isinstance(key, tuple) else (-1, key)
        x = torch.randn(8, generator=torch.Generator().manual_seed(item_seed(self.seed, epoch, item)))
        return {"x": x, "y": 2 * x}


class PairData(ZooDataModule):
    def __init__(self, items: int = 20, batch_size: int = 2, num_workers: int = 0, seed: int = 0) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        self.items = items

    def setup(self, stage: str) -> None:
        self.train_set = Pairs(self.items, self.seed)
        self.val_set = Pairs(4, self.seed + 1)
