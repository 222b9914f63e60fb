"""Benchmarks of flow matching: python -m scripts.bench.flow step|guidance|all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.tools import (
    ENDLESS,
    Finding,
    Fit,
    Settings,
    command,
    in_folders,
    interleave,
    interleave_with_trainer,
    times_as_fast,
)
from zoo.cli.trainer import ZooCLI
from zoo.common.systems import recipe_root
from zoo.flow.data.items import Items
from zoo.flow.nets.unet import UNet
from zoo.flow.nets.velocity import NULL_LABEL, VectorField
from zoo.flow.process.guidance import Guidance, velocity_field
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.sampling import noise
from zoo.flow.process.solvers import Solver
from zoo.flow.rendering import write_png
from zoo.flow.task import FlowTask
from zoo.training.callbacks.ema import EMA

IMAGES, BATCH = 36, 2
UNPAIRED = "--model.init_args.coupling=null"
SMALL = ("--model.init_args.net.init_args.channels=32", "--model.init_args.net.init_args.res_blocks=1")
SCALE = 2.0  # of guidance


class PlainStep:
    """The recipe's training as a plain loop: images by index, noise of the batch, loss, clipping, AdamW, rate, EMA.

    Noise, times and dropped labels come from torch's global generator, nothing is logged, and no noise is paired.

    Args:
        task: whose net, optimizer, rate and path are taken; its own net stays as it is.
        images: (N, C, H, W), float32.
        labels: of them (N,), int64.
        batch_size: images of a step.
        clip: largest norm of the gradients.
        decay: of the average of the weights, with the warm-up of `zoo.training.EMA`.
    """

    def __init__(
        self, task: FlowTask, images: Tensor, labels: Tensor, batch_size: int, clip: float, decay: float
    ) -> None:
        assert isinstance(task.path, ConditionalOT) and isinstance(task.net, UNet) and task.scheduler is not None
        self.net = self.copy_net(task.net).train()
        self.slope = 1 - task.path.sigma_min
        self.label_drop = task.label_drop
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.optimizer = task.optimizer(self.net.parameters())
        self.scheduler = task.scheduler(self.optimizer)
        self.clip, self.decay = clip, decay
        self.average = [parameter.detach().clone() for parameter in self.net.parameters()]
        self.updates = 0
        self._rows: list[Tensor] = []

    def copy_net(self, net: UNet) -> nn.Module:
        """The net to train, made of the task's."""
        return copy.deepcopy(net)

    def __call__(self) -> None:
        """Train on one batch."""
        x1, label = self.batch()
        t = torch.rand(len(x1))
        label = torch.where(torch.rand(len(x1)) < self.label_drop, NULL_LABEL, label)
        loss = self.loss(x1, torch.randn_like(x1), t, label)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self._update()

    @property
    def epoch_steps(self) -> int:
        """Batches of an epoch; an incomplete one is left out."""
        return len(self.images) // self.batch_size

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next images and labels, each at most once an epoch."""
        if not self._rows:
            self._rows = list(torch.randperm(len(self.images)).split(self.batch_size))[: self.epoch_steps]
        rows = self._rows.pop()
        return self.images[rows], self.labels[rows]

    def loss(self, x1: Tensor, x0: Tensor, t: Tensor, label: Tensor) -> Tensor:
        """What `FlowTask.loss` computes, for straight lines and velocities."""
        at = t[:, None, None, None]
        x = at * x1 + (1 - self.slope * at) * x0
        return F.mse_loss(self.net(x, t, label), x1 - self.slope * x0)

    @torch.no_grad()
    def _update(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for average, parameter in zip(self.average, self.net.parameters(), strict=True):
            average.lerp_(parameter, 1 - decay)
        self.updates += 1


class TorchCFMStep(PlainStep):
    """The same loop with torchcfm's paths and U-Net, noise and images paired by optimal transport in the batch."""

    def copy_net(self, net: UNet) -> nn.Module:
        """A net of equal widths, with attention as in torchcfm's example."""
        from torchcfm.models.unet.unet import UNetModelWrapper

        attention = ",".join(str(net.sample_shape[-1] >> level) for level in net.attention_levels)
        classes = net.num_classes + 1
        widths = {"channel_mult": net.channel_mult, "dropout": net.dropout, "class_cond": True, "num_classes": classes}
        heads = {"attention_resolutions": attention, "num_heads": 4, "num_head_channels": 64}
        return UNetModelWrapper(net.sample_shape, net.channels, net.res_blocks, **widths, **heads)

    def loss(self, x1: Tensor, x0: Tensor, t: Tensor, label: Tensor) -> Tensor:
        """As in torchcfm's example of conditional images."""
        from torchcfm import ExactOptimalTransportConditionalFlowMatcher

        matcher = ExactOptimalTransportConditionalFlowMatcher(0.0)
        t, x, velocity, _, label = matcher.guided_sample_location_and_conditional_flow(x0, x1, y1=label, t=t)
        return F.mse_loss(self.net(t, x, label), velocity)


def step(settings: Settings) -> list[Finding]:
    """A step of `zoo fit`, from its items on, against plain loops of an equal net and of torchcfm's."""
    findings = []
    contestants: dict[str, tuple[list[str], type[PlainStep], float]] = {
        "a plain loop, independent noise": ([UNPAIRED], PlainStep, 1.0),
        "the package torchcfm, noise paired in the batch": ([], TorchCFMStep, 0.97),
    }
    for name, (extra, loop, at_least) in contestants.items():
        fit = fit_of(settings, extra)
        other = plain_step(fit, loop)
        costs = interleave_with_trainer(fit, other, settings.few(3, 1), steps=1, warmup=1)
        nets = {"ours": fit.model.net, "other": other.net}
        million = {f"million, {key}": sum(each.numel() for each in net.parameters()) / 1e6 for key, net in nets.items()}
        findings.append(times_as_fast(f"training step to {name}: times as fast", costs, at_least, **million))
    return findings


def plain_step(fit: Fit, loop: type[PlainStep]) -> PlainStep:
    """The plain loop of a class that is equal to a training."""
    fit.datamodule.setup("fit")
    items: Items = fit.datamodule.train_set
    average = next(each for each in fit.trainer.callbacks if isinstance(each, EMA))  # type: ignore[attr-defined]
    clip = float(fit.trainer.gradient_clip_val or 0)
    images = items.data(range(len(items)))
    return loop(fit.model, images, items.labels, fit.datamodule.batch_size, clip, average.decay)


def guidance(settings: Settings) -> list[Finding]:
    """Both branches of guidance as one forward pass of twice the batch against two passes: a step of Euler."""
    task: FlowTask = fit_of(settings, []).model
    task.eval()
    findings = []
    for count in (1, 4):
        x0 = noise(range(count), task.net.sample_shape)
        label = torch.arange(count) % task.net.num_classes + 1
        fields = {
            "joint": velocity_field(task.net, task.path, label, Guidance(SCALE)),
            "two passes": two_passes(task, label),
        }
        runs = {name: partial(Solver("euler", 1).solve, field, x0) for name, field in fields.items()}
        costs = interleave(runs, settings.few(3, 1))
        name = f"joint guidance, {count} image{'s' if count > 1 else ''}: times as fast as two passes"
        findings.append(times_as_fast(name, costs))
    return findings


def two_passes(task: FlowTask, label: Tensor) -> VectorField:
    """The guided field of a net that predicts velocities, by one pass for each branch."""
    null = torch.full_like(label, NULL_LABEL)

    def field(t: float, x: Tensor) -> Tensor:
        conditional, unconditional = task.net(x, t, label), task.net(x, t, null)
        return unconditional + SCALE * (conditional - unconditional)

    return field


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {each.__name__: each for each in (step, guidance)}


def fit_of(settings: Settings, extra: Sequence[str]) -> Fit:
    """The training of the recipe `base` on made-up images, without flips, validation and checkpoints."""
    root, rng = settings.folder / "images", np.random.default_rng(0)
    for number in range(IMAGES):
        write_png(root / f"class{number % 3}" / f"{number}.png", rng.integers(256, size=(64, 64, 3), dtype=np.uint8))
    data = {"root": root, "batch_size": BATCH, "flips": "false", "num_workers": 0}
    return settings.build_fit(
        [
            f"--config={recipe_root() / 'flow' / 'base'}.yaml",
            f"--trainer.default_root_dir={settings.folder / 'run'}",
            "--trainer.accelerator=cpu",
            "--trainer.precision=32-true",
            *(f"--data.init_args.{key}={value}" for key, value in data.items()),
            *(SMALL if settings.quick else ()),
            *ENDLESS,
            *extra,
        ]
    )


if __name__ == "__main__":
    command("flow", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
