"""The adversarial training step of all GANs: one generator against named discriminators."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer, do_nothing_closure
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.checkpoint import checkpoint

from zoo.common.checks import check_at_least, check_one_of, check_positive
from zoo.common.tensors import promote_to_float32
from zoo.training.adversarial import LOSSES, Discriminator, feature_matching_loss
from zoo.training.optimizers import prepare_optimizer, set_total_steps
from zoo.training.strategies.sharding import clip_gradients, gradient_norm
from zoo.training.task import OptimizerCallable, SchedulerCallable, ZooTask

_SCALER_KEY = "discriminator_scaler"


@dataclass(frozen=True)
class GANStep:
    """Options of the adversarial step.

    Args:
        clip_g: largest gradient norm of the generator, after unscaling, above 0; None for no clipping.
        clip_d: the same for the discriminators.
        accumulate: number of chunks in which a batch is processed. The generator's activations are recomputed chunk by
            chunk: memory falls with the chunk, and the gradient stays that of the full batch, but for spectral norm,
            which iterates once a chunk. Not with batch norm.
        discriminator_start: number of steps trained with the reconstruction terms alone; both schedules run from the
            first step.
        adversarial: "least_squares" or "hinge" losses; both add up the sub-discriminators.
    """

    clip_g: float | None = None
    clip_d: float | None = None
    accumulate: int = 1
    discriminator_start: int = 0
    adversarial: Literal["least_squares", "hinge"] = "least_squares"

    def __post_init__(self) -> None:
        limits = {"clip_g": self.clip_g, "clip_d": self.clip_d}
        check_positive(**{name: limit for name, limit in limits.items() if limit is not None})
        check_at_least(1, accumulate=self.accumulate)
        check_at_least(0, discriminator_start=self.discriminator_start)
        check_one_of(tuple(LOSSES), adversarial=self.adversarial)


DEFAULT_STEP = GANStep()


class _Chunk(NamedTuple):
    """Generated and real waveforms (b, 1, T) of a part of a batch, its items, its share of the batch."""

    fake: Tensor
    real: Tensor
    batch: Any
    weight: float


class GANTask(ZooTask):
    """Base of tasks that train a generator against discriminators; subclasses define `generate` and `reconstruction`.

    One step: a generator forward, a discriminator step on the detached output, a generator step on the same graph
    against the updated, frozen discriminators. Only the generator's steps are counted in `trainer.global_step` and
    `max_steps`. Losses are computed in float32. Logged terms are unweighted; `train/g/total` is their weighted sum.

    Args:
        generator: the net; the optimizer gets its trainable parameters.
        discriminators: by name, their prefix in checkpoints, in the optimizer's order. With none the reconstruction
            terms alone train the generator, and `optimizer_d` is not built.
        optimizer_g: builds the generator's optimizer from its parameters.
        optimizer_d: builds the discriminators' optimizer.
        loss_weights: a weight for each term: `d/<name>`, `g/adv_<name>` and `g/fm_<name>` of every discriminator and
            each key that `reconstruction` returns, such as `g/mel`. Weight 0 skips the computation.
        scheduler_g: builds the schedule of the generator's learning rate.
        scheduler_d: builds the schedule of the discriminators' learning rate.
        scheduler_interval: "epoch" steps the schedules at the last batch of an epoch, "step" at every batch.
        step: clipping, chunks and losses of a step.
        compile: compile the inference modules in place.

    Source: HiFi-GAN section 2.2 and its published training script (order of the steps).
    """

    optimizer_names = ("g", "d")

    def __init__(
        self,
        generator: nn.Module,
        discriminators: dict[str, Discriminator],
        optimizer_g: OptimizerCallable,
        optimizer_d: OptimizerCallable,
        loss_weights: dict[str, float],
        scheduler_g: SchedulerCallable | None = None,
        scheduler_d: SchedulerCallable | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        step: GANStep = DEFAULT_STEP,
        compile: bool = False,
    ) -> None:
        super().__init__(compile=compile)
        self.automatic_optimization = False
        check_one_of(("epoch", "step"), scheduler_interval=scheduler_interval)
        self.generator = generator
        for name, discriminator in discriminators.items():
            if name in dir(self) or not name.isidentifier():
                raise ValueError(f"discriminators: {name!r} is no name or is taken by the task; choose another")
            self.add_module(name, discriminator)
        self.discriminator_names = tuple(discriminators)
        self.reconstruction_keys = check_loss_weights(loss_weights, self.discriminator_names, step.discriminator_start)
        self.loss_weights = dict(loss_weights)
        self.optimizer_g, self.optimizer_d = optimizer_g, optimizer_d
        self.scheduler_g, self.scheduler_d = scheduler_g, scheduler_d
        self.scheduler_interval = scheduler_interval
        normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in generator.modules())
        if normed and step.accumulate > 1:
            raise ValueError("step.accumulate needs a generator without batch norm, whose statistics are of a chunk")
        self.step = step
        self.discriminator_start = step.discriminator_start
        self._grad_norms: dict[str, Tensor] = {}
        self._scaler_d: torch.amp.GradScaler | None = None

    @property
    def find_unused_parameters(self) -> bool:
        """Each optimizer's step leaves the other's parameters without gradients."""
        return True

    def generate(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Generate audio for a batch or a chunk of one; return generated and real waveforms (B, 1, T), -1 to 1."""
        raise NotImplementedError(f"{type(self).__name__} defines no generate()")

    def reconstruction(self, fake: Tensor, real: Tensor, batch: Any) -> dict[str, Tensor]:
        """Compare generated with real waveforms (B, 1, T), float32, without autocast.

        Returns:
            Means over the batch by the keys of `loss_weights` (`g/mel`); a key of weight 0 may be left out.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no reconstruction()")

    def setup(self, stage: str) -> None:
        """Give the discriminators a gradient scaler of their own under fp16: one scaler would be updated twice."""
        super().setup(stage)
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        self._scaler_d = copy.deepcopy(scaler) if stage == "fit" else None

    def configure_optimizers(self) -> Any:
        """Build the optimizers in the order generator, discriminators, and their schedules."""
        options = [("g", [self.generator], self.optimizer_g, self.scheduler_g)]
        if self.discriminator_names:
            discriminators = [getattr(self, name) for name in self.discriminator_names]
            options.append(("d", discriminators, self.optimizer_d, self.scheduler_d))
        optimizers, schedules = [], []
        for key, modules, build, build_schedule in options:
            weights = [p for module in modules for p in module.parameters() if p.requires_grad]
            optimizer = prepare_optimizer(build(weights), self._trainer)
            optimizers.append(optimizer)
            if build_schedule is not None:
                scheduler = build_schedule(optimizer)
                if isinstance(scheduler, ReduceLROnPlateau):
                    raise ValueError(f"scheduler_{key}: ReduceLROnPlateau needs a metric; use the callback "
                                     "zoo.training.Plateau")  # fmt: skip
                if self.scheduler_interval == "epoch" and hasattr(scheduler, "warmup_steps"):
                    raise ValueError(f"scheduler_{key}: {type(scheduler).__name__} counts batches; set "
                                     "scheduler_interval to step")  # fmt: skip
                set_total_steps(scheduler, self.trainer)
                schedules.append({"scheduler": scheduler, "interval": self.scheduler_interval, "name": f"lr_{key}"})
        return optimizers, schedules

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Step the discriminators, then the generator, then the schedules."""
        optimizers = self.optimizers()
        opt_g, *rest = cast(list[LightningOptimizer], optimizers if isinstance(optimizers, list) else [optimizers])
        adversarial = bool(rest) and self.global_step >= self.discriminator_start
        chunks = self._generate_chunks(batch)
        logs: dict[str, Tensor] = {}
        for opt_d in rest:
            # Lightning would count both steps; it sets these hooks again for every batch
            opt_d._on_before_step = opt_d._on_after_step = do_nothing_closure
            if adversarial and any(self.loss_weights[f"d/{name}"] for name in self.discriminator_names):
                with self._discriminator_scaler():
                    logs |= self._optimize(opt_d, chunks, self._discriminator_terms)
                logs["grad_norm_d"] = self._grad_norms["d"]
        terms = self._optimize(opt_g, chunks, lambda chunk: self._generator_terms(chunk, adversarial))
        logs |= {**terms, "g/total": self._weighted(terms), "grad_norm_g": self._grad_norms["g"]}
        self.log_terms("train", logs, batch_size=sum(len(chunk.real) for chunk in chunks))
        if self.scheduler_interval == "step" or batch_idx + 1 == self.trainer.num_training_batches:
            for config in self.trainer.lr_scheduler_configs:
                cast(LRScheduler, config.scheduler).step()

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Measure and clip the gradients, which are unscaled here."""
        key = "g" if optimizer is self.trainer.optimizers[0] else "d"
        norm = self._grad_norms[key] = gradient_norm(self.trainer, optimizer)
        limit = self.step.clip_g if key == "g" else self.step.clip_d
        if limit is not None:
            clip_gradients(optimizer, limit, norm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the second gradient scaler; Lightning saves the first."""
        super().on_save_checkpoint(checkpoint)
        if self._scaler_d is not None:
            checkpoint[_SCALER_KEY] = self._scaler_d.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the second gradient scaler."""
        super().on_load_checkpoint(checkpoint)
        if self._scaler_d is not None and _SCALER_KEY in checkpoint:
            self._scaler_d.load_state_dict(checkpoint[_SCALER_KEY])

    def _generate_chunks(self, batch: Any) -> list[_Chunk]:
        """Generate the full batch, chunk by chunk; several chunks keep their graphs without activations."""
        batches = split_batch(batch, self.step.accumulate) if self.step.accumulate > 1 else [batch]
        run_sharded = None if self._trainer is None else getattr(self._trainer.strategy, "run_sharded", None)
        generate = self.generate if run_sharded is None else partial(run_sharded, self.generator, self.generate)
        pairs = []
        for each in batches:
            if len(batches) > 1:
                # checkpoint() rewinds the dropout generator of the parameter's device
                weight = next(self.generator.parameters())
                fake, real = checkpoint(lambda batch, _: generate(batch), each, weight, use_reentrant=False)
            else:
                fake, real = generate(each)
            if fake.shape != real.shape:
                raise ValueError(f"generate() returned {tuple(fake.shape)} for real audio of {tuple(real.shape)}")
            pairs.append((promote_to_float32(fake), promote_to_float32(real)))
        size = sum(len(real) for _, real in pairs)
        return [_Chunk(*pair, each, len(pair[1]) / size) for pair, each in zip(pairs, batches, strict=True)]

    def _optimize(
        self,
        optimizer: LightningOptimizer,
        chunks: list[_Chunk],
        compute_terms: Callable[[_Chunk], dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Take one optimizer step on all chunks, all other parameters frozen; return the terms' means."""
        means: dict[str, Tensor] = {}
        strategy: Any = self.trainer.strategy
        with self.toggled_optimizer(optimizer):
            optimizer.zero_grad()
            for number, chunk in enumerate(chunks, start=1):
                terms = compute_terms(chunk)
                # ranks exchange gradients in the last chunk only
                waits = number < len(chunks) and isinstance(strategy, ParallelStrategy)
                with strategy.block_backward_sync() if waits else nullcontext():
                    self.manual_backward(self._weighted(terms) * chunk.weight)
                for key, term in terms.items():
                    value = term.detach() * chunk.weight
                    means[key] = means[key] + value if key in means else value
            optimizer.step()
        return means

    def _discriminator_terms(self, chunk: _Chunk) -> dict[str, Tensor]:
        terms = {}
        size = len(chunk.real)
        for name in self.discriminator_names:
            if self.loss_weights[f"d/{name}"]:
                # one call on real and generated waveforms together
                outputs = getattr(self, name)(torch.cat([chunk.real, chunk.fake.detach()]))
                real = [(scores[:size], [each[:size] for each in maps]) for scores, maps in outputs]
                fake = [(scores[size:], [each[size:] for each in maps]) for scores, maps in outputs]
                terms[f"d/{name}"] = LOSSES[self.step.adversarial][0](real, fake)
        return terms

    def _generator_terms(self, chunk: _Chunk, adversarial: bool) -> dict[str, Tensor]:
        scores: dict[str, Tensor] = {}
        distances: dict[str, Tensor] = {}
        for name in self.discriminator_names if adversarial else ():
            weight_adv, weight_fm = self.loss_weights[f"g/adv_{name}"], self.loss_weights[f"g/fm_{name}"]
            if not (weight_adv or weight_fm):
                continue
            discriminator: Discriminator = getattr(self, name)
            if weight_fm:
                with torch.no_grad():
                    real = discriminator(chunk.real)
            fake = discriminator(chunk.fake)
            if weight_adv:
                scores[f"g/adv_{name}"] = LOSSES[self.step.adversarial][1](fake)
            if weight_fm:
                distances[f"g/fm_{name}"] = feature_matching_loss(real, fake)
        return scores | distances | self._reconstruction_terms(chunk)

    def _reconstruction_terms(self, chunk: _Chunk) -> dict[str, Tensor]:
        active_keys = [key for key in self.reconstruction_keys if self.loss_weights[key]]
        if not active_keys:
            return {}
        with torch.autocast(chunk.fake.device.type, enabled=False):
            terms = self.reconstruction(chunk.fake, chunk.real, chunk.batch)
        for key in (*terms, *active_keys):
            if key not in self.loss_weights or key not in terms:
                raise ValueError(
                    f"loss_weights has the terms {sorted(self.reconstruction_keys)}, {type(self).__name__} computes "
                    f"{sorted(terms)}: {key!r} is missing in one"
                )
        return {key: terms[key] for key in active_keys}

    def _weighted(self, terms: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.loss_weights[key] * term for key, term in terms.items()]).sum()

    @contextmanager
    def _discriminator_scaler(self) -> Iterator[None]:
        plugin: Any = self.trainer.precision_plugin
        if self._scaler_d is None:
            yield
            return
        scaler_g, plugin.scaler = plugin.scaler, self._scaler_d
        try:
            yield
        finally:
            plugin.scaler = scaler_g


def check_loss_weights(weights: Mapping[str, float], names: Sequence[str], discriminator_start: int) -> list[str]:
    """Check that the discriminators have `d/<name>`, `g/adv_<name>` and `g/fm_<name>`, and the first step has a term.

    Returns the other keys, those of reconstruction terms.
    """
    required_keys = [f"{prefix}{name}" for prefix in ("d/", "g/adv_", "g/fm_") for name in names]
    others = [key for key in weights if key not in required_keys]
    missing = [key for key in required_keys if key not in weights]
    unknown = [key for key in others if key.startswith(("g/adv_", "g/fm_")) or not key.startswith("g/")]
    if missing or unknown:
        raise ValueError(
            f"loss_weights: missing (0 leaves a term out) {missing}, unknown {unknown}; discriminators: {list(names)}"
        )
    first_keys = others if discriminator_start else [key for key in weights if key.startswith("g/")]
    if not any(weights[key] for key in first_keys):
        raise ValueError("loss_weights: no term of the generator has a weight before step discriminator_start")
    return others


def split_batch(batch: Any, chunks: int) -> list[Any]:
    """Split a batch along its items into so many chunks, or one for each item, of sizes that differ by at most one.

    A batch is a tensor (B, ...), B > 0, or a mapping of such tensors, lists of B plain values, and values of all items.
    """
    values = list(batch.values()) if isinstance(batch, Mapping) else [batch]
    size = next((len(value) for value in values if isinstance(value, Tensor) and value.dim()), 0)
    if not size:
        raise ValueError(f"accumulate: a {type(batch).__name__} without a tensor (B, ...) and B > 0 cannot be split")
    count = min(chunks, size)
    spans = [slice(first, last) for first, last in pairwise(size * i // count for i in range(count + 1))]
    if not isinstance(batch, Mapping):
        return [batch[span] for span in spans]
    per_item = {
        key for key, value in batch.items()
        if ((isinstance(value, Tensor) and value.dim()) or isinstance(value, list | tuple)) and len(value) == size
    }  # fmt: skip
    return [{key: value[span] if key in per_item else value for key, value in batch.items()} for span in spans]
