"""Benchmarks at tiny size: that they run and report, and that contestants compute the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from scripts.bench import flow as benchmark
from scripts.bench.flow import PlainStep
from scripts.bench.tools import Settings
from zoo.flow.data.datamodule import FlowData
from zoo.flow.data.items import Items, StoredValues
from zoo.flow.nets.unet import UNet
from zoo.flow.process.coupling import PooledTransport
from zoo.flow.process.guidance import Guidance, velocity_field
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.time_samplers import UniformTimes
from zoo.flow.task import FlowTask
from zoo.training.callbacks.ema import EMA
from zoo.training.schedules import WarmupConstant


class Squares(FlowData):
    """Twelve images of 4 x 4 pixels in two classes."""

    def setup(self, stage: str) -> None:
        values = torch.randn(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        self.train_set = self.val_set = Items(StoredValues(values), [1, 2] * 6, seed=3, pooled=self.pooled)


def build_task() -> FlowTask:
    torch.manual_seed(0)
    net = UNet(4, 1, 4, (1,), (), 1, dropout=0.0, num_classes=2)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)  # at its start a net predicts nothing
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    return FlowTask(net, ConditionalOT(0.1), UniformTimes(), optimizer, scheduler=WarmupConstant, label_drop=0.5)


def build_fit(folder: Path, args: list[str]) -> SimpleNamespace:
    """What the command line would build, at tiny size."""
    trainer = L.Trainer(
        accelerator="cpu", max_steps=100, gradient_clip_val=1.0, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[EMA(["net"])], default_root_dir=folder,
        limit_val_batches=0,
    )  # fmt: skip
    data = Squares(4, None if benchmark.UNPAIRED in args else PooledTransport())
    return SimpleNamespace(trainer=trainer, model=build_task(), datamodule=data)


def build_plain(task: FlowTask) -> PlainStep:
    images = torch.randn(10, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return PlainStep(task, images, torch.arange(10) % 2 + 1, batch_size=4, clip=1.0, decay=0.9)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(partial(build_fit, tmp_path), tmp_path, quick=True)


@pytest.mark.parametrize("name", benchmark.BENCHMARKS)
def test_reports_figures(name: str, settings: Settings) -> None:
    findings = benchmark.BENCHMARKS[name](settings)
    assert all(np.isfinite(each.value) for each in findings)


def test_plain_loop_and_task_have_the_same_loss_and_gradient() -> None:
    task = build_task()
    plain = build_plain(task)
    x1, label = plain.batch()
    x0, t = torch.randn_like(x1), torch.tensor([0.0, 0.3, 0.6, 0.9])
    losses = task.loss(x1, x0, t, label), plain.loss(x1, x0, t, label)
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(task.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_plain_loop_trains_its_own_net_and_averages_it() -> None:
    task = build_task()
    plain = build_plain(task)
    before = [parameter.clone() for parameter in task.net.parameters()]
    plain()
    for first, separate, average, reference in zip(
        before, plain.net.parameters(), plain.average, task.net.parameters(), strict=True
    ):
        assert torch.equal(first, reference)
        torch.testing.assert_close(average, first + 0.9 * (separate - first))  # decay of the first update: 1 / 10
    assert any(not torch.equal(a, b) for a, b in zip(before, plain.net.parameters(), strict=True))


def test_plain_loop_sees_an_image_at_most_once_an_epoch() -> None:
    plain = build_plain(build_task())
    plain.images = torch.arange(10)
    assert plain.epoch_steps == 2
    for _ in range(3):
        calls = torch.cat([plain.batch()[0] for _ in range(2)]).tolist()
        assert len(set(calls)) == 8


def test_both_ways_of_guiding_agree() -> None:
    task = build_task().eval()
    label, x = torch.tensor([1, 2, 1]), torch.randn(3, 1, 4, 4)
    joint = velocity_field(task.net, task.path, label, Guidance(benchmark.SCALE))
    with torch.no_grad():
        torch.testing.assert_close(joint(0.4, x), benchmark.two_passes(task, label)(0.4, x))
        assert not torch.allclose(joint(0.4, x), velocity_field(task.net, task.path, label)(0.4, x))
