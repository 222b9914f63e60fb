"""DeepSpeed's ZeRO with one engine per optimizer, so that GANs train with it, too."""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

ELEMENTWISE = (*"Adam AdamW NAdam RAdam Adamax Adadelta SGD RMSprop Rprop".split(), "Lion", "FusedAdam")
PRECISIONS = ("32-true", "bf16-mixed")
BUCKET = 50_000_000  # largest number of values that are reduced together: 200 MB in float32


class ZeROStrategy(DDPStrategy):
    """Shards optimizer states, gradients and weights over the processes by DeepSpeed's ZeRO.

    The trainer, schedules and callbacks see the task's own optimizers; each has an engine of DeepSpeed that does its
    backward passes and steps with shards. Lightning's strategy takes one optimizer, wants a GPU and writes folders of
    pickles; with this one a checkpoint is the ordinary single file, whole weights and optimizer states gathered
    weight by weight into the memory of rank 0. It goes on under DDP, under another stage and on another number of
    processes.

    Run on CPUs over gloo with 2 and 4 processes. GPUs, NCCL and offloading were not run.

    Args:
        stage: 1 shards optimizer states, 2 also gradients, 3 also weights.
        settings: further keys of DeepSpeed's `zero_optimization`, such as `overlap_comm` or `reduce_bucket_size`.
        process_group_backend: "nccl", "gloo"; that of the device when not given.
        timeout: after which a collective operation that does not end raises.

    Raises:
        ValueError: when the precision, the optimizer or the clipping is none that ZeRO's flat shards allow.
    """

    def __init__(
        self,
        stage: Literal[1, 2, 3] = 2,
        settings: dict[str, Any] | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(process_group_backend=process_group_backend, timeout=timeout)
        if stage not in (1, 2, 3):
            raise ValueError(f"stage is {stage!r}; ZeRO has the stages 1, 2 and 3")
        self.stage = stage
        self.settings = dict(settings or {})
        self._engines: dict[Optimizer, Any] = {}
        self._used: set[tuple[int, int]] = set()  # groups with gradients in this step
        self._exchange = True

    @property
    def shards_weights(self) -> bool:
        """Whether a rank alone cannot use the nets."""
        return self.stage == 3

    def setup_environment(self) -> None:
        """Start the process group, then DeepSpeed on top of it."""
        super().setup_environment()
        deepspeed = self._import()
        # its shared-memory operation for CPUs would be compiled here, for minutes, and is used for inference alone
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend=self._process_group_backend, dist_init_required=False)

    def configure_ddp(self) -> None:
        """Leave the task unwrapped."""

    def setup_optimizers(self, trainer: L.Trainer) -> None:
        """Build the task's optimizers and an engine for each."""
        super().setup_optimizers(trainer)
        precision = self.precision_plugin.precision
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision} does not go with ZeROStrategy: use {' or '.join(PRECISIONS)}")
        if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
            raise ValueError("ZeROStrategy clips by norm: trainer.gradient_clip_algorithm 'value' does not go with it")
        self._engines = {}
        for optimizer in self.optimizers:
            self._engines[optimizer] = self._engine(optimizer)
            self.limit_gradients(optimizer, float(trainer.gradient_clip_val or 0))

    def _import(self) -> Any:
        if self.root_device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        # DeepSpeed reads these at any launcher
        ranks = {"RANK": self.global_rank, "LOCAL_RANK": self.local_rank, "WORLD_SIZE": self.world_size}
        os.environ.update({key: str(value) for key, value in ranks.items()})
        import deepspeed
        from deepspeed.utils import logger

        logger.setLevel("WARNING")
        return deepspeed

    def _engine(self, optimizer: Optimizer) -> Any:
        if type(optimizer).__name__ not in ELEMENTWISE:
            raise ValueError(
                f"{type(optimizer).__name__} does not go with ZeROStrategy, whose shards cut through weights: "
                f"use one of {', '.join(ELEMENTWISE)}"
            )
        parts = self._parts(optimizer)
        values = sum(p.numel() for p in parts.parameters())
        zero = {"stage": self.stage, "reduce_bucket_size": min(BUCKET, values), "allgather_bucket_size": BUCKET}
        inner = copy.copy(optimizer)  # with settings of its own, since DeepSpeed puts shards in the place of weights
        inner.state = defaultdict(dict)
        inner.param_groups = self._groups(optimizer)
        inner.register_step_pre_hook(_pass_over_idle)
        config = {
            "train_micro_batch_size_per_gpu": 1,  # its throughput log is off; nothing else reads it
            "gradient_accumulation_steps": 1,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {**zero, **self.settings},
        }
        engine = self._import().initialize(model=parts, optimizer=inner, config=config, dist_init_required=False)[0]
        if self.stage == 3:
            for module in parts.modules():  # a weight used by another module than its own is gathered on access
                module._parameters._in_forward = True  # type: ignore[attr-defined]
        return engine

    def _groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """An optimizer's groups; cut by modules of the second level where a step may leave some without gradients."""
        task = _task(self)
        cut = task.automatic_optimization and getattr(task, "find_unused_parameters", False)
        names = {id(weight): name.split(".")[:2] if cut else [] for name, weight in task.named_parameters()}
        groups: list[dict[str, Any]] = []
        for source, group in enumerate(optimizer.param_groups):
            pieces: dict[str, list[Any]] = defaultdict(list)
            for weight in group["params"]:
                pieces[".".join(names[id(weight)])].append(weight)
            for weights in pieces.values():
                place = (id(optimizer), len(groups))
                groups.append({**group, "params": weights, "source": source, "place": place, "idle": False})
                for weight in weights if cut else ():
                    weight.register_post_accumulate_grad_hook(partial(self._note, place))
        return groups

    def _note(self, place: tuple[int, int], _: Tensor) -> None:
        self._used.add(place)

    def _parts(self, optimizer: Optimizer) -> nn.ModuleDict:
        """The task's parts that hold the weights of an optimizer."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        parts = {}
        for name, child in _task(self).named_children():
            trained = {id(p) for p in child.parameters() if p.requires_grad}
            if trained & mine and trained - mine:
                raise ValueError(f"ZeROStrategy: {name} is trained by several optimizers; an engine needs whole parts")
            if trained & mine:
                parts[name] = child
        if left := mine - {id(p) for part in parts.values() for p in part.parameters()}:
            raise ValueError(f"ZeROStrategy: {len(left)} trained weights belong to no part of the task but to itself")
        return nn.ModuleDict(parts)

    # steps

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Let backward passes inside gather gradients for a later step."""
        self._exchange = False
        try:
            yield
        finally:
            self._exchange = True

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Run the backward pass of the engine whose weights take gradients now."""
        task = _task(self)
        active = [
            engine
            for each, engine in self._engines.items()
            if any(p.requires_grad for group in each.param_groups for p in group["params"])
        ]
        if len(active) != 1:
            raise RuntimeError(f"a backward pass under ZeROStrategy serves one optimizer, {len(active)} are toggled on")
        engine = active[0]
        closure_loss = self.precision_plugin.pre_backward(closure_loss, task)
        engine.set_gradient_accumulation_boundary(self._exchange)
        # what engine.forward() does, which a task that calls its parts as it likes goes past
        engine.optimizer.clear_backward_seen_flag()
        closure_loss.register_hook(lambda _: engine._backward_prologue())
        engine.backward(closure_loss, **kwargs)
        return self.precision_plugin.post_backward(closure_loss, task)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Run the closure, then the engine's step with the optimizer's present rates."""
        result = self.precision_plugin._wrap_closure(model or _task(self), optimizer, closure)
        engine = self._engines[optimizer]
        zero = engine.optimizer
        groups = zero.optimizer.param_groups
        for group in groups:
            source = optimizer.param_groups[group["source"]]
            group.update({key: value for key, value in source.items() if key != "params"})
        if len(groups) > len(optimizer.param_groups):  # cut; idle is what has no gradients on any rank
            used = torch.tensor([float(group["place"] in self._used) for group in groups], device=self.root_device)
            for group, share in zip(groups, self.reduce(used, reduce_op="sum").tolist(), strict=True):
                group["idle"] = not share
            self._used.clear()
        engine.step()
        if self.stage == 3:
            zero.grad_partitions_flat_buffer.zero_()  # a weight without a gradient would take that of the step before
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what torch's schedules look at
        return result

    def gradient_norm(self, optimizer: Optimizer) -> Tensor:
        """The norm over an optimizer's gradients on all ranks, before clipping."""
        zero = self._engines[optimizer].optimizer
        if self.stage < 3:
            return torch.as_tensor(zero.scaled_global_norm())
        from deepspeed.runtime.utils import combine_grad_norm_groups

        return torch.as_tensor(combine_grad_norm_groups(zero._get_norm_groups()))

    def limit_gradients(self, optimizer: Optimizer, limit: float) -> None:
        """Set the norm to which the engine's steps clip; 0 for none."""
        self._engines[optimizer].optimizer.clip_grad = limit

    def drop_gradients(self, optimizer: Optimizer) -> None:
        """Make the next step one that DeepSpeed skips, cleaning up: it does so where gradients are not finite."""
        for gradients in self._engines[optimizer].optimizer.averaged_gradients.values():
            for gradient in gradients or ():
                gradient.fill_(torch.nan)

    # passes without a step

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Lightning's, from the beginning of what the engines know about the order of modules."""
        self._begin()
        return super().training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """The same for validation."""
        self._begin()
        return super().validation_step(*args, **kwargs)

    def _begin(self) -> None:
        for engine in self._engines.values() if self.stage == 3 else ():
            engine.optimizer.parameter_offload.get_param_coordinator().reset_step()

    # checkpoints

    def gathered(self, parameters: Iterable[Tensor], write: bool = False) -> AbstractContextManager[Any]:
        """A context in which sharded weights are whole on every rank."""
        sharded = [p for p in parameters if hasattr(p, "ds_id")]
        if not sharded:
            return nullcontext()
        return self._import().zero.GatheredParameters(sharded, modifier_rank=0 if write else None)

    def gather_weights(self, everything: bool = False) -> AbstractContextManager[Any]:
        """A context in which every rank has all weights whole; else parts gather themselves when they are called.

        Args:
            everything: for what reads weights without calling the parts.
        """
        return self.gathered(_task(self).parameters()) if everything else nullcontext()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The task's state, on rank 0 with whole weights."""
        task = _task(self)
        state = task.state_dict()
        for key, value in task.state_dict(keep_vars=True).items():
            if hasattr(value, "ds_id"):
                with self.gathered([value]):
                    state[key] = value.detach().cpu().clone() if self.is_global_zero else value.detach()
        return state

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """An optimizer's state as it would have it alone, on rank 0 with whole tensors."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        from deepspeed.utils import safe_get_full_optimizer_state

        states: dict[int, dict[str, Any]] = {}
        zero = self._engines[optimizer].optimizer
        self._link(zero)
        for flat, members in self._flat(optimizer):
            inner = zero.optimizer.state.get(flat, {})
            for number, weight in members:
                states[number] = {}
                for key, value in inner.items():
                    whole = safe_get_full_optimizer_state(weight, key) if _is_whole(key, value, flat) else value
                    if self.is_global_zero:
                        states[number][key] = whole.detach().cpu().clone() if isinstance(whole, Tensor) else whole
        state = {number: states[number] for number in sorted(states) if states[number]}
        return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Cut the shards of this rank out of whole states."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict({"state": {}, "param_groups": saved["param_groups"]})
            if not saved["state"]:
                continue
            zero = self._engines[optimizer].optimizer
            saved_states, flats = saved["state"], self._flat(optimizer)
            for flat, members in flats:
                known = [(saved_states[number], weight) for number, weight in members if number in saved_states]
                if known:  # a weight that never had a gradient may lack a state, and counts the others' steps here
                    state, like = max(known, key=lambda each: float(each[0].get("step", 0)))
                    shards = {k: torch.zeros_like(flat) if _is_whole(k, v, like) else v for k, v in state.items()}
                    zero.optimizer.state[flat] = copy.deepcopy(shards)
            self._link(zero)
            for _, members in flats:
                for number, weight in members:
                    for key, value in saved_states.get(number, {}).items():
                        if _is_whole(key, value, weight):
                            self._set_state(weight, key, value.to(self.root_device))

    def _link(self, zero: Any) -> None:
        """Let DeepSpeed find the shard of a weight in that of its group, also in groups that got their state late."""
        if self.stage < 3:
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()

    def _set_state(self, weight: Any, key: str, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if self.stage < 3:
            safe_set_full_optimizer_state(weight, value, key)
        else:
            size = weight.ds_tensor.numel()
            padded = nn.functional.pad(value.flatten(), (0, size * self.world_size - value.numel()))
            safe_set_local_optimizer_state(weight, padded[size * self.global_rank :][:size], key)

    def _flat(self, optimizer: Optimizer) -> list[tuple[Tensor, list[tuple[int, Tensor]]]]:
        """Flat shards of this rank, each with the weights it has pieces of and their numbers in the optimizer."""
        zero = self._engines[optimizer].optimizer
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        number = {id(weight): n for n, weight in enumerate(weights)}
        flats, groups = (
            (zero.single_partition_of_fp32_groups, zero.bit16_groups)
            if self.stage < 3
            else (zero.fp32_partitioned_groups_flat, zero.fp16_groups)
        )
        return [(flat, [(number[id(w)], w) for w in group]) for flat, group in zip(flats, groups, strict=True)]


def _pass_over_idle(optimizer: Optimizer, *_: Any) -> None:
    """Let a group without gradients keep its weights and moments, as it would under DDP."""
    for group in optimizer.param_groups:
        for shard in group["params"] if group["idle"] else ():
            shard.grad = None


def _is_whole(key: str, value: Any, weight: Any) -> bool:
    """Whether a value of an optimizer's state has an entry for each of the weight's, so that it is sharded like it."""
    return key != "step" and isinstance(value, Tensor) and value.shape == getattr(weight, "ds_shape", weight.shape)


def _task(strategy: DDPStrategy) -> L.LightningModule:
    assert strategy.lightning_module is not None
    return strategy.lightning_module
