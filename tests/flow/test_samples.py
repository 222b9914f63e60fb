"""What a run shows at its validations."""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.callbacks.parts import make_trainer
from zoo.flow import FlowTask, Guidance, ImageData, PointData, Solver, ToyNet, UNet, UniformTimes, rendering
from zoo.flow.process.paths import ConditionalOT
from zoo.training.callbacks.rng import RNGState
from zoo.training.callbacks.samples import Samples

ADAM = partial(torch.optim.Adam, lr=1e-3)
PICTURES = ["val_samples.png", "val_trajectory.png"]


def images(classes: int = 10, size: int = 8, channels: int = 1, **options: Any) -> FlowTask:
    torch.manual_seed(0)
    net = UNet(size, channels, 8, (1, 2), (1,), 1, 0.0, classes)
    drop = 0.1 if classes else 0.0
    return FlowTask(
        net, ConditionalOT(), UniformTimes(), ADAM, label_drop=drop, solver=Solver("euler", 3), chunk=4, **options
    )


def digits(**options: Any) -> ImageData:
    return ImageData(**{"image_resolution": 8, "channels": 1, "batch_size": 8, "max_per_class": 10, **options})


def fit(task: L.LightningModule, data: Any, folder: Path, **samples: Any) -> list[list[str]]:
    """Train two steps and validate after each; returns the names in media/ of each step."""
    trainer = make_trainer(
        RNGState(), Samples(**{"every_n_validations": 1, **samples}), default_root_dir=folder, max_steps=2,
        val_check_interval=1, check_val_every_n_epoch=None, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(task, data)
    return [sorted(file.name for file in step.iterdir()) for step in sorted((folder / "media").glob("*"))]


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def test_images_by_class_and_guidance_with_their_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = fit(images(guidance=Guidance(3.0)), digits(), tmp_path)
    assert result == [PICTURES, ["val_animation.gif", *PICTURES]]
    assert "no samples" not in caplog.text
    # ten classes of 8 x 8 pixels enlarged to 48 with 2 between them; names, and four rows with their titles
    assert size(tmp_path / "media" / "step_00000001" / "val_samples.png") == (500, 12 + 4 * (12 + 50))
    # four samples at the noise and after three steps
    assert size(tmp_path / "media" / "step_00000001" / "val_trajectory.png") == (200, 12 + 4 * (12 + 50))
    with Image.open(tmp_path / "media" / "step_00000002" / "val_animation.gif") as animation:
        assert animation.n_frames >= 4


def test_without_classes_in_odd_colours_and_more_items_than_data(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 6, 6, 3), np.uint8)
    for number, image in enumerate(pixels):
        rendering.write_png(tmp_path / "set" / f"{number:02d}.png", image)
    options = {"image_resolution": 6, "channels": 3, "val_every": 12, "batch_size": 5, "max_per_class": 0}
    data = digits(root=str(tmp_path / "set"), cache=None, **options)
    result = fit(images(0, 6, 3), data, tmp_path / "run", items=15)
    assert len(data.val_set) == 1 and result == [PICTURES, ["val_animation.gif", *PICTURES]]
    assert size(tmp_path / "run" / "media" / "step_00000001" / "val_samples.png") == (15 * 50, 2 * (12 + 50))


def test_points_over_the_data(tmp_path: Path) -> None:
    net, solver = ToyNet(widths=(8,)), Solver("euler", 2)
    task = FlowTask(net, ConditionalOT(), UniformTimes(), ADAM, label_drop=0.0, solver=solver)
    result = fit(task, PointData(train_points=40, val_points=3, batch_size=16), tmp_path)
    assert result == [["val_samples.png"], ["val_animation.gif", "val_samples.png"]]
