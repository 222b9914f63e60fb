"""What a run shows at its validations."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.training.callbacks.parts import make_trainer
from zoo.flow import FlowTask, ImageData, PointData, Solver, ToyNet, UNet, UniformTimes, VelocityNet, rendering
from zoo.flow.process.paths import ConditionalOT
from zoo.training.callbacks.rng import RNGState
from zoo.training.callbacks.samples import Samples

PICTURES = ["val_samples.png", "val_trajectory.png"]


def make_task(net: VelocityNet) -> FlowTask:
    adam = partial(torch.optim.Adam, lr=1e-3)
    solver = Solver("euler", 3)
    return FlowTask(net, ConditionalOT(), UniformTimes(), adam, label_drop=0.0, solver=solver, chunk=4)


def fit(task: FlowTask, data: Any, folder: Path, **samples: Any) -> list[list[str]]:
    """Train two steps and validate after each; returns the names in media/ of each step."""
    trainer = make_trainer(
        RNGState(), Samples(**{"every_n_validations": 1, **samples}), default_root_dir=folder, max_steps=2,
        val_check_interval=1, check_val_every_n_epoch=None, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(task, data)
    return [sorted(file.name for file in step.iterdir()) for step in sorted((folder / "media").glob("*"))]


def test_images_without_classes_of_odd_size_and_more_items_than_data(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 6, 6, 3), np.uint8)
    for number, image in enumerate(pixels):
        rendering.write_png(tmp_path / "set" / f"{number:02d}.png", image)
    data = ImageData(str(tmp_path / "set"), image_resolution=6, val_every=12, batch_size=5, cache=None)
    task = make_task(UNet(6, 3, 8, (1, 2), (1,), 1, 0.0, 0))
    result = fit(task, data, tmp_path / "run", items=15)
    assert len(data.val_set) == 1 and result == [PICTURES, ["val_animation.gif", *PICTURES]]


def test_points_over_the_data(tmp_path: Path) -> None:
    task = make_task(ToyNet(widths=(8,)))
    result = fit(task, PointData(train_points=40, val_points=3, batch_size=16), tmp_path)
    assert result == [["val_samples.png"], ["val_animation.gif", "val_samples.png"]]
