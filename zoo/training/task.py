"""What every system's LightningModule shares: logging, evaluation over all items, inference from its parts."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zoo.common.build import completed
from zoo.common.registry import constructor_annotations, get_class
from zoo.runs import frozen
from zoo.runs.inference.base import Inference
from zoo.runs.run_folder import run_folder
from zoo.training.callbacks.samples import Samples
from zoo.training.resume import apply_hyperparameters
from zoo.training.schedules import LrScaling, set_total_steps
from zoo.training.strategies.fsdp import FSDP
from zoo.training.strategies.sharding import is_sharded

OptimizerCallable: TypeAlias = Callable[[Iterable], Optimizer]
SchedulerCallable: TypeAlias = Callable[[Optimizer], LRScheduler]


class WeightedMeans:
    """Sums of values and their weights by key, reduced over ranks at the end.

    Ranks may hold different numbers of items, none included: the keys are gathered with the sums, so no collective
    call depends on what a rank has seen.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}

    def add(self, values: Mapping[str, Tensor | float], weight: float = 1.0) -> None:
        """Add the mean values of `weight` items."""
        for key, value in values.items():
            number = torch.as_tensor(value).detach()
            # MPS has no float64
            term = number.to(torch.float32 if number.device.type == "mps" else torch.float64) * weight
            self._sums[key] = self._sums[key] + term if key in self._sums else term
            self._weights[key] = self._weights.get(key, 0.0) + weight

    def compute(self) -> dict[str, float]:
        """Reduce over all ranks and return the means."""
        local = {key: (float(total), self._weights[key]) for key, total in self._sums.items()}
        parts: list[dict[str, tuple[float, float]]] = [local]
        if dist.is_available() and dist.is_initialized():
            parts = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(parts, local)
        keys = dict.fromkeys(key for part in parts for key in part)
        means = {}
        for key in keys:
            entries = [part[key] for part in parts if key in part]
            weight = sum(entry[1] for entry in entries)
            means[key] = sum(entry[0] for entry in entries) / weight if weight else float("nan")
        return means

    def reset(self) -> None:
        """Forget everything."""
        self._sums.clear()
        self._weights.clear()


log = logging.getLogger(__name__)


class ZooTask(L.LightningModule):
    """Base of all systems' LightningModules.

    A task receives built nets and optimizer callables, and defines none. It names the parts that are enough for
    inference; `specs` (set by the command line) describes how they were built, goes into every checkpoint and makes
    the checkpoint usable without its run folder.

    Weights of `FrozenModule`s stay out of the checkpoints and of training mode; see `zoo.runs.frozen`.

    Subclasses implement `training_step` and `evaluate`.

    Args:
        compile: run the nets through torch.compile.
    """

    inference_class: ClassVar[str]
    inference_parts: ClassVar[tuple[str, ...]]
    use_command: ClassVar[str] = "zoo predict --ckpt_path {run} --input FILES --output FOLDER"
    """What the end of a fit proposes to do with the run."""
    optimizer_names: ClassVar[tuple[str, ...]] = ()
    """Of several optimizers, for logs and messages."""
    uneven_parts: ClassVar[tuple[str, ...]] = ()
    """Parts that a step passes through more or less often by what its items are, so that ranks must not meet there."""

    def __init__(self, compile: bool = False) -> None:
        super().__init__()
        self.specs: dict[str, Any] | None = None
        self.compile_parts = compile
        self._means = WeightedMeans()
        self._inference: Inference | None = None
        self._samples = Samples()
        self.evaluated: tuple[str, ...] = ()  # names of the values of the last validation or test

    def keep_options(self, given: Mapping[str, Any]) -> None:
        """Keep the options of inference among a constructor's arguments (its `locals()`) as attributes."""
        for name in self.inference_options:
            setattr(self, name, given[name])

    @property
    def inference_options(self) -> tuple[str, ...]:
        """Arguments that task and Inference share besides the parts: plain values, or objects without weights.

        The task keeps them as attributes; prediction may change them.
        """
        taken = constructor_annotations(type(self))
        shared = (name for name in constructor_annotations(get_class(self.inference_class, Inference)) if name in taken)
        return tuple(name for name in shared if name not in self.inference_parts)

    @property
    def find_unused_parameters(self) -> bool:
        """Whether a step may leave trained parameters without gradients, which DDP must then look for."""
        return False

    @property
    def batches_done(self) -> int:
        """Batches trained so far, kept over a resume."""
        return self.global_step

    def log_terms(
        self,
        stage: str,
        terms: Mapping[str, Tensor],
        batch_size: int | None = None,
        weight: Tensor | float | None = None,
    ) -> None:
        """Log loss terms as `<stage>/<key>`, means over all ranks; between two logging intervals they are dropped.

        Args:
            stage: "train", "val" or "test".
            terms: means over this rank's batch.
            weight: of this rank in the means over all; the items when not given.
        """
        if stage == "train" and self._trainer is not None and not self._trainer._logger_connector.should_update_logs:
            return  # Lightning would collect and never write them, at a cost that small nets feel
        values: Mapping[str, Any] = {f"{stage}/{key}": value.detach() for key, value in terms.items()}
        if self._trainer is not None and self.trainer.world_size > 1 and not self._accumulates():
            means = WeightedMeans()
            means.add(values, float((batch_size or 1) if weight is None else weight))
            values = means.compute()
        self.log_dict(values, batch_size=batch_size, on_step=True, on_epoch=False)

    def _accumulates(self) -> bool:
        """Whether further batches belong to this step; Lightning writes what the last of them logs."""
        return self.automatic_optimization and self.trainer.fit_loop.epoch_loop._should_accumulate()

    def drawn(self, batch: Any) -> Any:
        """Add what the host draws and decides for a training batch, while the batch lies on the CPU.

        So a training step neither makes tensors on the CPU nor asks the device for values. A batch that has it already
        comes back as it is.
        """
        return batch

    def located(self, batch: Any) -> Any:
        """The same for a batch of validation or test."""
        return batch

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Complete a batch before it goes to the device; see `drawn` and `located`."""
        return self.drawn(batch) if self.trainer.training else self.located(batch)

    def evaluate(self, batch: Any, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Evaluate one batch.

        Args:
            batch: a batch of the validation or test loader.
            stage: "val" or "test".

        Returns:
            Mean values by metric name, and the number of items they are the mean of.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no evaluate()")

    def draw_samples(self, batches: list[Any], last: bool) -> None:
        """Show what the task makes, by the functions of `zoo.training.callbacks.media`; called on every rank.

        Args:
            batches: the first of the validation, on the device, that together hold `samples.items` items.
            last: whether this validation is the fit's last.
        """

    @property
    def sample_settings(self) -> Samples:
        """The trainer's callback `Samples`; one of default settings where there is none."""
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        return next((each for each in callbacks if isinstance(each, Samples)), self._samples)

    @property
    def draws_alone(self) -> bool:
        """Whether this process may make samples without the others: the first one, if its nets are whole.

        For samples whose length differs from rank to rank. A pass through shards (FSDP, DeepSpeed) needs all ranks.
        """
        return self.trainer.is_global_zero and not is_sharded(self.trainer)

    def shows(self, stage: str, batch_idx: int) -> bool:
        """Whether a batch of whole clips is among those that this validation shows; `media_items` limits them."""
        count = getattr(self, "media_items", self.sample_settings.items)
        return stage == "val" and batch_idx < count and self.sample_settings.showing

    def show(self, draw: Callable[[], object]) -> None:
        """Show something in the middle of `evaluate`, within the bounds that `Samples` sets."""
        self.sample_settings.run(draw)

    def setup(self, stage: str) -> None:
        """Set up the strategy; rest frozen modules, hash and copy them before precision changes their weights.

        Raises:
            ValueError: when a weight that is not saved would be trained.
        """
        super().setup(stage)
        if isinstance(self.trainer.strategy, DDPStrategy):
            settings = self.trainer.strategy._ddp_kwargs
            settings["find_unused_parameters"] = settings.get("find_unused_parameters") or self.find_unused_parameters
        for path, module in frozen.frozen_modules({"": self}).items():
            if not module.is_frozen:
                continue
            module.train(stage == "fit")  # for a subclass to set up its modes; it rests nevertheless
            kept = module.frozen_state().keys()
            trained = [name for name, weight in module.named_parameters() if name in kept and weight.requires_grad]
            if trained:
                raise ValueError(
                    f"{path}.{trained[0]} is trained, and frozen_state() of {type(module).__name__} names it: "
                    "its changes would not be saved"
                )
        keeps_checkpoints = bool(self.trainer.checkpoint_callbacks) and not getattr(self.trainer, "fast_dev_run", False)
        if stage == "fit" and keeps_checkpoints:
            self._save_frozen(unless_resuming=True)

    def configure_model(self) -> None:
        """Shard the weights for training under `FSDP`."""
        if isinstance(self.trainer.strategy, FSDP) and self.trainer.state.fn == "fit":
            self.trainer.strategy.shard_modules(self)

    def _save_frozen(self, unless_resuming: bool = False) -> dict[str, Any]:
        """Copy local frozen modules into the run folder, once; returns all their records.

        Whether the run is resumed is known only after its checkpoint was read.
        """
        modules = frozen.frozen_modules({"": self})
        recorded = frozen.frozen_records(modules)
        if recorded:
            folder = run_folder(self.trainer)
            if self.trainer.is_global_zero and not (unless_resuming and next(folder.glob("*.ckpt"), None)):
                frozen.save_copies(modules, recorded, folder)
        return recorded

    def on_fit_start(self) -> None:
        """Compile the inference parts in place when asked for; in place keeps `_orig_mod.` out of the checkpoint."""
        if self.compile_parts:
            for name in self.inference_parts:
                if isinstance(part := getattr(self, name), nn.Module):
                    part.compile()

    def on_validation_epoch_start(self) -> None:
        """Forget the values of the last validation."""
        self._means.reset()

    on_test_epoch_start = on_validation_epoch_start

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate a validation batch."""
        self._means.add(*self.evaluate(batch, batch_idx, "val"))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate a test batch."""
        self._means.add(*self.evaluate(batch, batch_idx, "test"))

    def on_validation_epoch_end(self) -> None:
        """Log the means over all items of all ranks."""
        self._log_means("val")

    def on_test_epoch_end(self) -> None:
        """Log the means over all items of all ranks."""
        self._log_means("test")

    def _log_means(self, stage: str) -> None:
        values = {f"{stage}/{key}": value for key, value in self._means.compute().items()}
        self.evaluated = tuple(values)
        if not self.trainer.sanity_checking:
            self.log_dict(values, on_step=False, on_epoch=True, rank_zero_only=True)
            self.trainer.callback_metrics.update({k: torch.tensor(v) for k, v in values.items()})
        elif math.isinf(float(self.trainer.num_sanity_val_steps)):
            # a complete validation before step 1 (num_sanity_val_steps: -1) is worth a row; Lightning drops it
            for logger in self.trainer.loggers:
                logger.log_metrics(values, step=0)
            log.info("before step 1: %s", ", ".join(f"{key}={value:.4f}" for key, value in values.items()))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Describe the system and its parts in the checkpoint; replace frozen weights by records."""
        configs = self.trainer.lr_scheduler_configs
        checkpoint["scheduler_classes"] = [type(config.scheduler).__name__ for config in configs]
        if self.specs is not None:
            checkpoint["zoo"] = self.specs
        recorded = self._save_frozen()
        if recorded:
            left_out = frozen.frozen_keys(frozen.frozen_modules({"": self}))
            state = checkpoint["state_dict"]
            checkpoint["state_dict"] = {key: value for key, value in state.items() if key not in left_out}
            checkpoint["frozen"] = recorded

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint whose parts were built otherwise (another mel, another net), or one that cannot go on."""
        if self.trainer.state.fn == "fit" and not checkpoint.get("optimizer_states"):
            raise ValueError("the checkpoint holds weights without optimizers: begin with them by --init_from")
        if self.trainer.state.fn == "fit":
            self._apply_hyperparameters(checkpoint)
        modules = frozen.frozen_modules({"": self})
        self._check_parts(checkpoint.get("zoo"), [path for path, module in modules.items() if module.is_frozen])
        frozen.verify_frozen_weights(modules, checkpoint.get("frozen", {}), "the checkpoint")
        if self.trainer.state.fn == "fit":
            self._save_frozen()  # it may go on in another folder than its own

    def _apply_hyperparameters(self, checkpoint: dict[str, Any]) -> None:
        optimizers, schedulers = split_optimizers(self.configure_optimizers())
        changes = apply_hyperparameters(checkpoint, optimizers, schedulers, self.optimizer_names)
        if changes is not None and self.trainer.is_global_zero:
            rates = ", ".join(f"{group['lr']:.6g}" for optimizer in optimizers for group in optimizer.param_groups)
            log.warning(
                "resumed with %s; the next step's learning rate is %s: this is no longer the run that was interrupted",
                changes,
                rates,
            )

    def _check_parts(self, saved: dict[str, Any] | None, frozen_paths: list[str]) -> None:
        """Compare the parts' descriptions.

        Left out are the sources of frozen modules, whose hashes are compared, and what changes memory only.
        """
        if saved is None or self.specs is None:
            return
        theirs, ours = copy.deepcopy(saved["components"]), copy.deepcopy(self.specs["components"])
        for parts in (theirs, ours):
            for path in frozen_paths:
                for key in ("source", "revision", "config", "gradient_checkpointing"):
                    (frozen.find_init_args(parts, path) or {}).pop(key, None)
        for part in self.inference_parts:
            saved_part = completed(theirs.get(part), ours.get(part))
            if part in theirs and saved_part != ours[part]:
                raise ValueError(
                    f"the checkpoint's {part} differs from the config's: {_difference(saved_part, ours[part])}; "
                    "use the run's own config.yaml, or init_from: to start anew from its weights"
                )

    def inference(self, **changes: Any) -> Inference:
        """The object that turns arrays or files into results, built from this task's own parts.

        Args:
            changes: options that replace the task's; with any, the object is a new one.
        """
        if changes or self._inference is None:
            arguments = {key: getattr(self, key) for key in (*self.inference_parts, *self.inference_options)}
            made = get_class(self.inference_class, Inference)(**{**arguments, **changes})
            if changes:
                return made
            self._inference = made
        return self._inference


class SingleOptimizerTask(ZooTask):
    """Base of tasks with one optimizer and automatic optimization; subclasses add `training_step` and `evaluate`.

    Args:
        optimizer: builds the optimizer from the parameters that train.
        scheduler: builds the schedule of the learning rate; it counts optimizer steps.
        compile: compile the inference parts in place.
        lr_scaling: of the optimizer's rates with the effective batch; null leaves them.
    """

    def __init__(
        self,
        optimizer: OptimizerCallable,
        scheduler: SchedulerCallable | None = None,
        compile: bool = False,
        lr_scaling: LrScaling | None = None,
    ) -> None:
        super().__init__(compile=compile)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.lr_scaling = lr_scaling

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Back-propagate; Lightning divides by `accumulate_grad_batches`, and an epoch may end with fewer of them."""
        loop = self.trainer.fit_loop.epoch_loop
        window = self.trainer.accumulate_grad_batches
        left = self.trainer.num_training_batches - loop.batch_idx // window * window
        super().backward(loss * (window / left) if left < window else loss, *args, **kwargs)

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule stepped with it: a state change inside the step, which a resume replays."""
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not trainable:
            raise ValueError(f"{type(self).__name__}: no parameter trains; unfreeze a part")
        optimizer = stepping_at_once(self.optimizer(trainable), self._trainer)
        if self.lr_scaling is not None:
            self.lr_scaling.scale(optimizer, self.trainer)
        if self.scheduler is None:
            return optimizer
        scheduler = self.scheduler(optimizer)
        set_total_steps(scheduler, self.trainer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step", "name": "lr"}}


def split_optimizers(configured: Any) -> tuple[list[Optimizer], list[LRScheduler]]:
    """Split what `configure_optimizers` returns: an optimizer, a dictionary, or a list of each kind."""
    if isinstance(configured, Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        schedules = [configured["lr_scheduler"]] if "lr_scheduler" in configured else []
        optimizers = [configured["optimizer"]]
    else:
        optimizers, schedules = configured
    return optimizers, [each["scheduler"] if isinstance(each, Mapping) else each for each in schedules]


def stepping_at_once(optimizer: Optimizer, trainer: L.Trainer | None) -> Optimizer:
    """Let one kernel step all weights of an Adam on the CPU, where torch's default goes through them one by one.

    What a recipe says of `fused` or `foreach` stays. The choice is part of the optimizer's state, so a resumed run
    steps as it began.

    Args:
        trainer: of the task; a strategy that shards weights chooses for itself. None outside of a training.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    on_cpu = all(weight.device.type == "cpu" and weight.is_floating_point() for weight in weights)
    if on_cpu and isinstance(optimizer, Adam) and (trainer is None or not is_sharded(trainer)):
        for group in optimizer.param_groups:
            if group["fused"] is None and group["foreach"] is None:
                group["fused"] = True
    return optimizer


def _difference(saved: Any, ours: Any, path: str = "") -> str:
    """The first key in which two specs differ, with both values."""
    if isinstance(saved, dict) and isinstance(ours, dict):
        for key in dict.fromkeys([*saved, *ours]):
            if saved.get(key) != ours.get(key):
                return _difference(saved.get(key), ours.get(key), f"{path}.{key}" if path else key)
    return f"{path} is {saved!r} in the checkpoint and {ours!r} in the config"
