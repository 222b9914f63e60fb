"""Train a task of the zoo in a plain Lightning Trainer: flow matching on images that are tensors in memory."""

import argparse
from functools import partial
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, Dataset

import zoo


class Squares(Dataset):
    """Grey images of one white square each."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, item: int) -> torch.Tensor:
        image = -torch.ones(1, 8, 8)
        row, column = divmod(item % 36, 6)
        image[:, row : row + 3, column : column + 3] = 1
        return image


def collate(images: list[torch.Tensor]) -> dict[str, Any]:
    """Make a batch with the keys that FlowTask reads; docs/python.md lists those of every task."""
    x1 = torch.stack(images)
    seeds = torch.randint(2**31, (len(images),)).tolist()
    return {"x1": x1, "x0": torch.randn_like(x1), "label": torch.zeros(len(images), dtype=torch.int64), "seeds": seeds}


def main() -> None:
    """Train, then sample four images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    net = zoo.flow.UNet(8, in_channels=1, channels=16, channel_mult=[1, 2], res_blocks=1, num_classes=0)
    task = zoo.flow.FlowTask(
        net=net,
        path=zoo.flow.ConditionalOT(),
        times=zoo.flow.UniformTimes(),
        optimizer=partial(torch.optim.Adam, lr=1e-3),
        label_drop=0.0,
    )
    trainer = lightning.Trainer(max_steps=options.steps, accelerator="auto", logger=False, enable_checkpointing=False)
    trainer.fit(task, DataLoader(Squares(), batch_size=16, shuffle=True, collate_fn=collate))
    images = zoo.flow.Sampler(net.eval(), zoo.flow.ConditionalOT())(seeds=[0, 1, 2, 3])
    print("samples", images.shape)


if __name__ == "__main__":
    main()
