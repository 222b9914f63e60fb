"""`trainer.precision: auto`: each precision is tried on the first batches, and the fastest sound one is taken."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities.seed import isolate_rng

from zoo.common.ranges import above, at_least, between, positive
from zoo.common.reading.configs import read_config
from zoo.runs.folder import find_config, has_config

log = logging.getLogger(__name__)

AUTO = "auto"
PRECISION_TYPE: Any = Literal["auto"] | inspect.signature(L.Trainer).parameters["precision"].annotation
EXACT = "32-true"
PRECISIONS = (EXACT, "bf16-mixed", "16-mixed")  # the most exact first; float16 not on the CPU
LOSS_SCALE = 2.0**10  # of float16's gradients; the usual first 2**16 is lowered by overflows that mean nothing
BATCHES = 4
TURNS = 2  # the first also warms up
TOLERANCE = 0.02
_CHOSEN_VARIABLE = "ZOO_PRECISION"  # set by the first process, for the ranks that it starts


@dataclass(frozen=True)
class Trial:
    """What became of one precision.

    Args:
        precision: value of `trainer.precision`.
        loss: mean over the batches; NaN where memory did not suffice.
        seconds: least time of a step, forth and back, mean over the batches.
        finite: whether loss and gradients were.
        sound: finite, with the loss of the most exact precision that memory allows, within the tolerance.
    """

    precision: str
    loss: float
    seconds: float
    finite: bool
    sound: bool

    def __str__(self) -> str:
        outcome = "sound" if self.sound else "loss differs" if self.finite else "loss or gradients not finite"
        if self.seconds == math.inf:
            outcome = "out of memory"
        return f"{self.precision:<10} {self.seconds:.4g} s per step, loss {self.loss:.5g}: {outcome}"


def settle(command: str, checkpoint: Path | None, build: Callable[[], dict[str, Any]]) -> str | None:
    """What `auto` stands for: the precision of the run that goes on; for a new one, what a trial finds.

    Args:
        command: fit, validate, test or predict; without a run, the latter three take float32.
        build: gives the first arguments of `try_precisions`, built for the trial alone.

    Returns:
        A value of `trainer.precision`.

    Raises:
        ValueError: as `try_precisions`, or when several processes that were started from outside would each choose.
    """
    inherited = os.environ.get(_CHOSEN_VARIABLE)
    if inherited and os.environ.get("LOCAL_RANK", "0") != "0":
        return inherited
    if checkpoint is not None and has_config(checkpoint):
        return (read_config(find_config(checkpoint)).get("trainer") or {}).get("precision")
    if command != "fit":
        return EXACT
    processes = int(os.environ.get("SLURM_NTASKS" if SLURMEnvironment.detect() else "WORLD_SIZE", 1))
    if processes > 1:
        raise ValueError(
            f"trainer.precision is auto, and each of the {processes} processes would choose for itself: try it in one "
            "(--trainer.devices 1 --trainer.max_steps 1) and set what it chose"
        )
    with isolate_rng():  # the run is the same as with the chosen value from the start
        trials = try_precisions(**build())
    for trial in trials:
        log.info("precision %s", trial)
    chosen = choose(trials).precision
    log.info("trainer.precision auto: %s", chosen)
    os.environ[_CHOSEN_VARIABLE] = chosen
    gc.collect()  # module and trainer refer to each other; the real one needs the memory
    torch.cuda.empty_cache()
    return chosen


def choose(trials: Sequence[Trial]) -> Trial:
    """The fastest sound trial."""
    return min((trial for trial in trials if trial.sound), key=lambda trial: trial.seconds)


def try_precisions(
    model: L.LightningModule,
    data: L.LightningDataModule,
    accelerator: Any = "auto",
    devices: Any = 1,
    precisions: Sequence[str] | None = None,
) -> list[Trial]:
    """Compute losses and gradients of the first batches in each precision, on one device; no weight moves.

    The precisions take turns, so that a busy machine slows all of them. All see the same batches and dropout masks.

    Args:
        model: to be thrown away afterwards: its optimizers are replaced, and what it counts has counted.
        data: likewise.
        precisions: of `PRECISIONS`, the most exact first; by default all that the device computes in.

    Returns:
        A trial for each precision.

    Raises:
        ValueError: when the task steps its optimizers itself, or not even the most exact precision is sound.
    """
    if not model.automatic_optimization:
        raise ValueError(
            f"trainer.precision auto cannot try {type(model).__name__}, which steps its optimizers itself: "
            f"set one of {', '.join(PRECISIONS)}"
        )
    if precisions is None:
        on_gpu = accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
        precisions = PRECISIONS if on_gpu else PRECISIONS[:2]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    model.configure_optimizers = lambda: _Still(weights)  # type: ignore[method-assign]
    meters: dict[str, list[_Meter]] = {name: [] for name in precisions}
    for _ in range(TURNS):
        for name in precisions:
            with _quiet(), isolate_rng():
                meters[name].append(_pass(model, data, name, accelerator=accelerator, devices=devices))
    reference = next((last for *_, last in meters.values() if last.losses), None)
    if reference is None or not reference.finite:
        why = "the device's memory suffices for none" if reference is None else "loss or gradients are not finite"
        raise ValueError(f"no precision helps ({', '.join(precisions)}): {why}; lower the batch size, or look at data")
    return [_judge(name, measured, reference.loss) for name, measured in meters.items()]


def _judge(name: str, measured: Sequence[_Meter], wanted: float) -> Trial:
    last = measured[-1]
    if not last.losses:
        return Trial(name, math.nan, math.inf, finite=False, sound=False)
    seconds = min(sum(meter.seconds) for meter in measured if meter.losses) / BATCHES
    sound = last.finite and abs(last.loss - wanted) <= TOLERANCE * abs(wanted)
    return Trial(name, last.loss, seconds, last.finite, sound)


def _pass(model: L.LightningModule, data: L.LightningDataModule, precision: Any, **device: Any) -> _Meter:
    """Train on the first batches; the meter is empty where memory did not suffice."""
    meter = _Meter()
    trainer = L.Trainer(
        **device,
        precision=precision,
        callbacks=[meter],
        plugins=[LightningEnvironment()],
        max_steps=BATCHES,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        plugin.scaler = torch.amp.GradScaler(trainer.strategy.root_device.type, init_scale=LOSS_SCALE)
    try:
        trainer.fit(model, data)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return _Meter()
    return meter


class _Meter(Callback):
    """Notes times and losses, and whether losses and gradients are finite."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.finite = True
        self._began = 0.0

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)

    def on_train_batch_start(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        # reading it waits for the device, so that the time is that of the work and not of its launch
        self.finite = self.finite and bool(torch.stack([gradient.norm() for gradient in gradients]).isfinite().all())

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))
        self.finite = self.finite and math.isfinite(self.losses[-1])
        self.seconds.append(time.perf_counter() - self._began)


class _Still(torch.optim.Optimizer):
    """Leaves the weights as they are: a rate of 0 would let gradients that are not finite spoil them."""

    def __init__(self, weights: list[torch.nn.Parameter]) -> None:
        super().__init__(weights, {})

    def step(self, closure: Any = None) -> Any:
        return None if closure is None else closure()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Lightning says of devices and settings to the real Trainer."""
    messages = logging.getLogger("lightning.pytorch")
    level = messages.level
    messages.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        messages.setLevel(level)


class LossScale(L.Callback):
    """Sets how the loss is scaled in float16, where small gradients would vanish otherwise.

    A resumed run goes on with its own scale. `train/amp_scale` shows it; it falls by itself while gradients overflow.
    In precisions that need no scale (the CPU takes bf16 in place of fp16) nothing is set.

    Args:
        init_scale: of the first step, > 0.
        growth_factor: of the scale after `growth_interval` steps without overflow, > 1.
        backoff_factor: of the scale after an overflow, in (0, 1).
        growth_interval: steps.

    Raises:
        ValueError: when a number is out of its range.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        positive(init_scale=init_scale)
        above(1, growth_factor=growth_factor)
        between(0, 1, backoff_factor=backoff_factor)
        at_least(1, growth_interval=growth_interval)
        self.state = {
            "scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
        }

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Set the scaler, before a GAN copies it for its discriminators and a checkpoint restores it."""
        if stage != "fit":
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None or not scaler.is_enabled():
            log.info("LossScale: precision %s scales no loss", trainer.precision)
            return
        scaler.load_state_dict(scaler.state_dict() | self.state)
