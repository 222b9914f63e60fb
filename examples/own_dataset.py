"""Use a dataset of your own in a recipe: images that code draws, for flow matching.

In this folder: zoo fit flow/smoke --allow-import own_dataset --data own_dataset.SquareData \
    --model.net.num_classes 2 --model.net.in_channels 1 --model.net.image_resolution 8
"""

from typing import Any

import torch
from torch.utils.data import Dataset

import zoo
from zoo.training.resume import item_seed


class Squares(Dataset):
    """Grey images of one white square each, with noise of their own."""

    def __init__(self, items: int, seed: int) -> None:
        self.items, self.seed = items, seed

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, key: tuple[int, int] | int) -> dict[str, Any]:
        epoch, item = key if isinstance(key, tuple) else (-1, key)  # a training set is asked for (epoch, item)
        seed = item_seed(self.seed, epoch, item)  # all that is random follows from it: a resume repeats it
        image = -torch.ones(1, 8, 8)
        row, column = divmod(item % 36, 6)
        image[:, row : row + 3, column : column + 3] = 1
        noise = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(seed))
        return {"x1": image, "x0": noise, "label": 1 + row % 2, "seed": seed}


class SquareData(zoo.flow.FlowData):
    """Squares in two classes, by the parity of their row.

    Args:
        items: number of training images.
        batch_size: images per batch and process.
        num_workers: loader processes.
        seed: of order and noise.
    """

    def __init__(self, items: int = 512, batch_size: int = 16, num_workers: int = 0, seed: int = 1) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        self.items, self.sample_shape, self.classes = items, (1, 8, 8), ["even", "odd"]

    def setup(self, stage: str) -> None:
        """Build the sets for training and for validation."""
        self.train_set, self.val_set = Squares(self.items, self.seed), Squares(36, self.seed + 1)


__getattr__, __dir__, __all__ = zoo.register(__name__, {"": "SquareData"})
