"""Bases of all systems' LightningModules: logging, evaluation over all items, inference from the task's modules."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, TypeAlias

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zoo.common.registry import constructor_annotations, get_class
from zoo.common.tensors import widest_float
from zoo.training.callbacks import media
from zoo.training.optimizers import LrScaling, prepare_optimizer, set_total_steps, short_window_factor
from zoo.training.strategies.sharding import is_sharded

log = logging.getLogger(__name__)

OptimizerCallable: TypeAlias = Callable[[Iterable], Optimizer]
SchedulerCallable: TypeAlias = Callable[[Optimizer], LRScheduler]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]


class WeightedMeans:
    """Sums of values and their weights by key, reduced over ranks, which may hold different numbers of items."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}

    def add(self, values: Mapping[str, Tensor | float], weight: float = 1.0) -> None:
        """Add the mean values of `weight` items."""
        for key, value in values.items():
            number = torch.as_tensor(value).detach()
            term = number.to(widest_float(number.device)) * weight
            self._sums[key] = self._sums[key] + term if key in self._sums else term
            self._weights[key] = self._weights.get(key, 0.0) + weight

    def compute(self) -> dict[str, float]:
        """Reduce over all ranks and return the means."""
        local = {key: (float(total), self._weights[key]) for key, total in self._sums.items()}
        ranks: list[dict[str, tuple[float, float]]] = [local]
        if dist.is_available() and dist.is_initialized():
            ranks = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(ranks, local)
        means = {}
        for key in dict.fromkeys(key for rank in ranks for key in rank):
            entries = [rank[key] for rank in ranks if key in rank]
            weight = sum(entry[1] for entry in entries)
            means[key] = sum(entry[0] for entry in entries) / weight if weight else float("nan")
        return means

    def reset(self) -> None:
        """Remove all values."""
        self._sums.clear()
        self._weights.clear()


class ZooTask(L.LightningModule):
    """Base of all systems' LightningModules; subclasses implement `training_step` and `evaluate`.

    A task receives built nets and optimizer callables, and defines none. It names the class of its inference and the
    modules that this needs.

    Args:
        compile: compile the inference modules in place.

    Attributes:
        logged_metric_names: of the validations and tests so far.
        undefined_metrics: those that the last one did not give.
        specs: how the modules were built, for checkpoints; set by the command line.
    """

    inference_class: ClassVar[str]
    inference_modules: ClassVar[tuple[str, ...]]
    optimizer_names: ClassVar[tuple[str, ...]] = ()
    """Names of several optimizers, for logs and messages."""
    usage_command: ClassVar[str] = "zoo predict --ckpt_path {run} --input FILES --output FOLDER"
    """Suggested at the end of a fit."""
    fsdp_excluded_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that ranks call a different number of times in a step, within which FSDP must not wait for others."""

    def __init__(self, compile: bool = False) -> None:
        super().__init__()
        self.specs: dict[str, Any] | None = None
        self.compile_modules = compile
        self._means = WeightedMeans()
        self._inference: Any = None
        self.logged_metric_names: tuple[str, ...] = ()
        self.undefined_metrics: tuple[str, ...] = ()

    def store_options(self, arguments: Mapping[str, Any]) -> None:
        """Store the options of inference among a constructor's arguments (its `locals()`) as attributes."""
        for name in self.inference_options:
            setattr(self, name, arguments[name])

    @property
    def inference_options(self) -> tuple[str, ...]:
        """Arguments that task and inference class share besides the modules; prediction may change them."""
        arguments = constructor_annotations(type(self))
        shared = (name for name in constructor_annotations(get_class(self.inference_class)) if name in arguments)
        return tuple(name for name in shared if name not in self.inference_modules)

    def inference(self, **changes: Any) -> Any:
        """Return the inference object built from this task's modules; changed options build a new one."""
        if changes or self._inference is None:
            arguments = {key: getattr(self, key) for key in (*self.inference_modules, *self.inference_options)}
            inference = get_class(self.inference_class)(**{**arguments, **changes})
            if changes:
                return inference
            self._inference = inference
        return self._inference

    @property
    def find_unused_parameters(self) -> bool:
        """Whether a step may leave trained parameters without gradients, which DDP must then find."""
        return False

    def log_terms(
        self,
        stage: str,
        terms: Mapping[str, Tensor],
        batch_size: int | None = None,
        weight: Tensor | float | None = None,
    ) -> None:
        """Log loss terms as `<stage>/<key>`, means over all ranks; between two logging steps they are dropped.

        `weight` is that of this rank in the means; the number of items when None.
        """
        if stage == "train" and self._trainer is not None and not self._trainer._logger_connector.should_update_logs:
            return  # Lightning would collect and never write them, which takes time
        values: Mapping[str, Any] = {f"{stage}/{key}": value.detach() for key, value in terms.items()}
        loop = None if self._trainer is None else self.trainer.fit_loop.epoch_loop
        accumulates = self.automatic_optimization and loop is not None and loop._should_accumulate()
        if loop is not None and self.trainer.world_size > 1 and not accumulates:
            means = WeightedMeans()
            means.add(values, float((batch_size or 1) if weight is None else weight))
            values = means.compute()
        self.log_dict(values, batch_size=batch_size, on_step=True, on_epoch=False)

    def prepare_training_batch(self, batch: Any) -> Any:
        """Add what the host samples for a training batch, while that is on the CPU; return a prepared batch as is."""
        return batch

    def prepare_evaluation_batch(self, batch: Any) -> Any:
        """Add the same to a batch of validation or test."""
        return batch

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Prepare a batch before it moves to the device."""
        return self.prepare_training_batch(batch) if self.trainer.training else self.prepare_evaluation_batch(batch)

    def evaluate(self, batch: Any, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Evaluate one batch of the stage "val" or "test"; return means by metric name and their number of items."""
        raise NotImplementedError(f"{type(self).__name__} defines no evaluate()")

    def log_samples(self, batches: list[Any], last: bool) -> None:
        """Write samples of a validation by `write_media`; called by the callback `Samples` on every rank.

        `batches` are the first of the validation, on the device; `last` says whether it is the last of the fit.
        """

    @property
    def sample_settings(self) -> Any:
        """The trainer's callback `Samples`; disabled settings without one."""
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        disabled = SimpleNamespace(showing=False, items=0, seed=0)
        return next((each for each in callbacks if hasattr(each, "showing")), disabled)

    @property
    def can_sample_on_rank_zero(self) -> bool:
        """Whether this process may sample without the others: a pass through shards (FSDP) needs all ranks."""
        return self.trainer.is_global_zero and not is_sharded(self.trainer)

    def log_media(self, stage: str, batch_idx: int, function: Callable[[], object]) -> None:
        """Call a function that writes samples of a batch of one clip within `evaluate`, where a validation has samples.

        `media_items` limits their number. Random numbers and errors are isolated as those of `log_samples`.
        """
        count = getattr(self, "media_items", self.sample_settings.items)
        if stage == "val" and batch_idx < count and self.sample_settings.showing:
            self.sample_settings.run_isolated(function)

    def write_media(self, kind: str, name: str, *content: Any) -> None:
        """Write a sample by `zoo.training.callbacks.media.log_<kind>`, with its arguments."""
        getattr(media, f"log_{kind}")(self, name, *content)

    def setup(self, stage: str) -> None:
        """Configure DDP."""
        super().setup(stage)
        if isinstance(self.trainer.strategy, DDPStrategy):
            settings = self.trainer.strategy._ddp_kwargs
            settings["find_unused_parameters"] = settings.get("find_unused_parameters") or self.find_unused_parameters

    def configure_model(self) -> None:
        """Shard the weights for a fit, where the strategy does so."""
        shard_modules = getattr(self.trainer.strategy, "shard_modules", None)
        if shard_modules is not None and self.trainer.state.fn == "fit":
            shard_modules(self)

    def on_fit_start(self) -> None:
        """Compile the inference modules when asked to."""
        for name in self.inference_modules if self.compile_modules else ():
            if isinstance(module := getattr(self, name), nn.Module):
                compile_module(module)

    def on_validation_epoch_start(self) -> None:
        """Remove the values of the last validation."""
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
        stage = "test" if self.trainer.testing else "val"
        values = {f"{stage}/{key}": value for key, value in self._means.compute().items()}
        # callbacks would take the value of an earlier validation for one that this does not give
        self.undefined_metrics = tuple(
            name for name in self.logged_metric_names if name not in values and name.startswith(stage)
        )
        self.logged_metric_names = (*values, *self.undefined_metrics)
        if not self.trainer.sanity_checking:
            self.log_dict(values, on_step=False, on_epoch=True, rank_zero_only=True)
            scores = values | dict.fromkeys(self.undefined_metrics, math.nan)
            self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in scores.items()})
        elif math.isinf(float(self.trainer.num_sanity_val_steps)):
            # Lightning drops the values of a complete validation before step 1 (num_sanity_val_steps: -1)
            for logger in self.trainer.loggers:
                logger.log_metrics(values, step=0)
            log.info("before step 1: %s", ", ".join(f"{key}={value:.4f}" for key, value in values.items()))

    on_test_epoch_end = on_validation_epoch_end


class SingleOptimizerTask(ZooTask):
    """Base of tasks with one optimizer and automatic optimization; subclasses add `training_step` and `evaluate`.

    Args:
        optimizer: builds the optimizer from the parameters that train.
        scheduler: builds the schedule of the learning rate; it counts optimizer steps.
        compile: compile the inference modules in place.
        lr_scaling: scales the rates with the effective batch; None leaves them.
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
        super().backward(loss * short_window_factor(self.trainer), *args, **kwargs)

    def configure_optimizers(self) -> Any:
        """Build the optimizer and its schedule."""
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not trainable:
            raise ValueError(f"{type(self).__name__}: no parameter trains; unfreeze a module")
        optimizer = prepare_optimizer(self.optimizer(trainable), self._trainer)
        if self.lr_scaling is not None:
            self.lr_scaling.scale(optimizer, self.trainer)
        if self.scheduler is None:
            return optimizer
        scheduler = self.scheduler(optimizer)
        set_total_steps(scheduler, self.trainer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step", "name": "lr"}}


def compile_module(module: nn.Module, mode: CompileMode = "default", fullgraph: bool = False) -> None:
    """Compile a module in place; names in checkpoints stay as they are.

    Without `fullgraph`, what cannot be compiled (no C++ compiler, an unsupported operation) runs uncompiled. With it,
    breaks of the graph and failures are errors.
    """
    torch._dynamo.config.suppress_errors = not fullgraph
    module.compile(mode=mode, fullgraph=fullgraph)
