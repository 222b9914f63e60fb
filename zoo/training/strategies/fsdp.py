"""Fully sharded data parallelism (`torch.distributed.fsdp.fully_shard`) for tasks with one optimizer and for GANs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from torch import nn
from torch.optim import Optimizer

from zoo.common.checks import check_at_least
from zoo.runs.frozen import frozen_keys, frozen_modules
from zoo.training.strategies.sharding import distribute_like, gather_to_first_rank

log = logging.getLogger(__name__)


class ForwardScope(nn.Module):
    """Runs a function as a module's forward pass, so that the module's weights are gathered around the call."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return function(*args, **kwargs)


class FSDP(ModelParallelStrategy):
    """Trains with weights, gradients and optimizer states sharded over the processes.

    Units are the children of ModuleLists and Sequentials, except within a task's `fsdp_excluded_modules`; each is
    gathered when it is called. The rest of a task with one optimizer is gathered for the whole step; generator and
    discriminators of a GAN have their own passes. Buffers are each process's own. Validation and test compute with full
    weights. Rank 0 writes an ordinary checkpoint, so a run resumes on any number of processes, also without shards.

    Args:
        min_block_parameters: number of parameters from which on a block is a unit.
        process_group_backend: gloo or nccl; by default the device's own.
        timeout: after which a process that waits for another gives up.
    """

    shards_weights = True
    lightning_restore_optimizer = ParallelStrategy.lightning_restore_optimizer  # from the checkpoint file
    load_checkpoint = ParallelStrategy.load_checkpoint  # on each process

    def __init__(
        self,
        min_block_parameters: int = 1_000_000,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        check_at_least(1, min_block_parameters=min_block_parameters)
        super().__init__(
            save_distributed_checkpoint=False, process_group_backend=process_group_backend, timeout=timeout
        )
        self.min_block_parameters = min_block_parameters
        self._roots: dict[nn.Module, Any] = {}  # outermost unit of each module with its own passes
        self._units: list[Any] = []
        self._gathered = False

    def shard_modules(self, task: Any) -> None:
        """Shard a task's weights; called before the optimizers are built."""
        from torch.distributed.device_mesh import init_device_mesh

        for module in frozen_modules({"": task}).values():
            if module.is_frozen:
                module.fingerprint()  # of full weights
        for tensor in (*task.parameters(), *task.buffers()):
            value = tensor.detach().to(self.root_device, copy=True)
            dist.broadcast(value, 0)
            tensor.data.copy_(value)
        if task.automatic_optimization:
            self._roots = {task: ForwardScope(task)}
        elif hasattr(task, "discriminator_names"):
            discriminators = [getattr(task, name) for name in task.discriminator_names]
            self._roots = {task.generator: ForwardScope(task.generator), **{each: each for each in discriminators}}
        else:
            raise ValueError(f"FSDP: {type(task).__name__} steps its optimizers itself and is no GANTask")
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        self._units = [unit for module, root in self._roots.items() for unit in self._shard(module, root, mesh)]
        for root in self._roots.values():
            if isinstance(root, ForwardScope):  # FSDP's first pass must begin at the root: a block may be called alone
                root(lambda: None)
                root.reshard()  # type: ignore[operator]
        log.info("FSDP: %d units over %d processes", len(self._units), self.world_size)

    def _shard(self, module: nn.Module, root: nn.Module, mesh: Any) -> list[Any]:
        """Shard a module in units, blocks before what contains them."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        scalars = [name for name, p in module.named_parameters() if p.requires_grad and not p.ndim]
        if scalars:
            raise ValueError(f"FSDP cannot shard the scalar weight {scalars[0]}: freeze it, or train with DDP")
        options: Any = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(cast_forward_inputs=False)}
        ignored = options["ignored_params"] = {
            p for p in module.parameters() if not (p.requires_grad or p.is_floating_point()) or not p.ndim
        }  # fmt: skip
        containers = [each for each in module.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
        blocks = {child for each in containers for child in each.children() if not isinstance(child, nn.ModuleList)}
        for name in getattr(module, "fsdp_excluded_modules", ()):
            if (excluded := getattr(module, name)) is not None:
                blocks -= set(excluded.modules())
        assigned, units = set(ignored), []
        for each in reversed(list(module.modules())):
            free = set(each.parameters()) - assigned
            if each in blocks and sum(p.numel() for p in free) >= self.min_block_parameters:
                units.append(fully_shard(each, **options))
                assigned |= set(each.parameters())
        return [*units, fully_shard(root, **options)]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a training step within the root's forward pass; a GAN goes through those of its modules."""
        task: Any = self.lightning_module
        with self.precision_plugin.train_step_context():
            if task.automatic_optimization:
                return self.run_sharded(task, task.training_step, *args, **kwargs)
            output = task.training_step(*args, **kwargs)
            self.reshard()  # a module that was called without gradients
            return output

    def run_sharded(self, module: nn.Module, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that uses the weights of the task, or of a GAN's generator, as its forward pass."""
        return self._roots[module](function, *args, **kwargs)

    @contextmanager
    def gather_weights(self) -> Iterator[None]:
        """Hold full weights on each process; all enter together, and changes made meanwhile are lost."""
        was_gathered = self._gathered
        self._gather()
        try:
            yield
        finally:
            if not was_gathered:
                self.reshard()

    def _gather(self) -> None:
        self._gathered = True
        for unit in self._units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()

    def reshard(self) -> None:
        """Free the shards of other processes."""
        for unit in self._units:
            unit.reshard()
            if self._gathered and unit not in self._roots.values():
                unit.set_reshard_after_forward(True, recurse=False)
        self._gathered = False

    on_validation_start = _gather  # once: processes may have different numbers of batches and must not wait in a step
    on_validation_end = reshard

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients of several backward passes before they are exchanged."""
        for root in self._roots.values():
            root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for root in self._roots.values():
                root.set_requires_gradient_sync(True)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the task's state, with full tensors on rank 0; frozen weights, which are not saved, stay sharded."""
        self.reshard()
        task: Any = self.lightning_module
        frozen = frozen_keys(frozen_modules({"": task}))
        state = task.state_dict()
        return {name: value if name in frozen else gather_to_first_rank(value) for name, value in state.items()}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Put full weights into the shards."""
        task: Any = self.lightning_module
        current = task.state_dict()
        state = {k: distribute_like(v, current[k]) if k in current else v for k, v in checkpoint["state_dict"].items()}
        task.load_state_dict(state, strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return an optimizer's state as one process has it, with full tensors on rank 0."""
        saved: dict[str, Any] = ParallelStrategy.optimizer_state(self, optimizer)
        states = {i: {k: gather_to_first_rank(v) for k, v in state.items()} for i, state in saved["state"].items()}
        return {**saved, "state": states}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Put full optimizer states into the shards."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            states = {
                index: {key: distribute_like(value, weights[index]) for key, value in state.items()}
                for index, state in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": states})
