"""Fully sharded data parallelism (`torch.distributed.fsdp.fully_shard`) for tasks with one optimizer and for GANs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
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
    """Trains with `torch.distributed.fsdp.fully_shard`: each process keeps a part of each weight.

    Sharded units: each child of a ModuleList or Sequential with at least `min_block_parameters` parameters that no
    block within it holds is gathered when it is called and resharded after; not within a task's
    `fsdp_excluded_modules`, where ranks would wait for calls that do not come. The
    rest of a task with one optimizer is one unit, gathered from a
    training step's beginning to the end of its backward; the generator and each discriminator of a GAN are units with
    their own passes. Frozen floating-point weights are sharded, too. Buffers are replicated and each process's own, as
    under DDP with `broadcast_buffers: false`.

    Only training is sharded; its validations, validate, test and predict compute with full weights. Rank 0 gathers
    weights and optimizer states in CPU memory and writes the ordinary checkpoint file, so a run resumes on any number
    of processes, also without shards.

    Args:
        min_block_parameters: of a block that is a unit.
        param_dtype: of gathered weights; bfloat16 halves what is sent, for `precision: bf16-mixed`. By default the
            weights' own, which modules with spectral norm keep.
        reduce_dtype: in which gradients are summed over processes; by default `param_dtype`.
        process_group_backend: gloo or nccl; by default the device's own.
        timeout: after which a process that waits for another gives up.
    """

    shards_weights = True

    def __init__(
        self,
        min_block_parameters: int = 1_000_000,
        param_dtype: Literal["bfloat16", "float16"] | None = None,
        reduce_dtype: Literal["float32", "bfloat16", "float16"] | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(
            save_distributed_checkpoint=False, process_group_backend=process_group_backend, timeout=timeout
        )
        check_at_least(1, min_block_parameters=min_block_parameters)
        self.min_block_parameters = min_block_parameters
        self.param_dtype = param_dtype
        self.reduce_dtype = reduce_dtype
        self._roots: dict[nn.Module, Any] = {}
        self._units: list[Any] = []
        self._gathered = False

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Optimizer states come from the checkpoint file."""
        return True

    def shard_modules(self, task: Any) -> None:
        """Shard a task's weights; `ZooTask.configure_model` calls this before the optimizers are built.

        Raises:
            ValueError: when a trained weight is a scalar, which FSDP cannot shard, or a task steps its optimizers
                itself and is no GANTask.
        """
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
        sizes = [parameter.numel() for root in self._roots.values() for parameter in root.parameters()]
        log.info("FSDP: %d parameters in %d units over %d processes", sum(sizes), len(self._units), self.world_size)

    def _shard(self, module: nn.Module, root: nn.Module, mesh: Any) -> list[Any]:
        """Shard a module in units, blocks before what contains them."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dtypes = {key: getattr(torch, name) for key, name in vars(self).items() if key.endswith("_dtype") and name}
        if any(isinstance(each, _SpectralNorm) for each in module.modules()):
            dtypes = {}  # its vectors are float32, and a buffer is not gathered
        policy = MixedPrecisionPolicy(**dtypes, cast_forward_inputs=False)
        ignored = {p for p in module.parameters() if not (p.requires_grad or p.is_floating_point()) or not p.ndim}
        scalars = [name for name, p in module.named_parameters() if p.requires_grad and not p.ndim]
        if scalars:
            raise ValueError(f"FSDP cannot shard the scalar weight {scalars[0]}: freeze it, or train with DDP")
        blocks = {
            child for each in module.modules() if isinstance(each, nn.ModuleList | nn.Sequential)
            for child in each.children() if not isinstance(child, nn.ModuleList)
        }  # fmt: skip
        uneven = [getattr(module, name) for name in getattr(module, "fsdp_excluded_modules", ())]
        blocks -= {child for each in uneven if each is not None for child in each.modules()}
        assigned = set(ignored)
        units = []
        for each in reversed(list(module.modules())):
            free = set(each.parameters()) - assigned
            if each in blocks and sum(p.numel() for p in free) >= self.min_block_parameters:
                units.append(fully_shard(each, mesh=mesh, mp_policy=policy, ignored_params=ignored))
                assigned |= set(each.parameters())
        return [*units, fully_shard(root, mesh=mesh, mp_policy=policy, ignored_params=ignored)]

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
        """Call a function that uses a module's weights in any way as if it were the module's forward pass.

        Args:
            module: the task, or a GAN's generator.
        """
        return self._roots[module](function, *args, **kwargs)

    def on_validation_start(self) -> None:
        """Gather all weights once: processes may have different numbers of batches and must not wait in a step."""
        self._gather()

    def on_validation_end(self) -> None:
        """Leave each process its part."""
        self.reshard()

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
        """Free the parts of other processes."""
        for unit in self._units:
            unit.reshard()
            if self._gathered and unit not in self._roots.values():
                unit.set_reshard_after_forward(True, recurse=False)
        self._gathered = False

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

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint file on each process."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Put full weights into the shards."""
        assert self.lightning_module is not None
        current = self.lightning_module.state_dict()
        state = {
            name: distribute_like(value, current[name])
            if name in current and current[name].shape == value.shape
            else value
            for name, value in checkpoint["state_dict"].items()
        }
        self.lightning_module.load_state_dict(state, strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return an optimizer's state as one process has it, with full tensors on rank 0."""
        saved: dict[str, Any] = ParallelStrategy.optimizer_state(self, optimizer)
        states = {
            index: {key: gather_to_first_rank(value) for key, value in state.items()}
            for index, state in saved["state"].items()
        }
        return {**saved, "state": states}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Put full optimizer states into the shards."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict({**saved, "state": _distribute_states(optimizer, saved)})


def _distribute_states(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[int, Any]:
    """Shard the full optimizer states of a checkpoint as the optimizer's weights are."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    if len(weights) != len(indices):
        raise ValueError(f"the checkpoint's optimizer has {len(indices)} weights, this run's {len(weights)}")
    return {
        index: {
            key: distribute_like(value, weight) if isinstance(value, Tensor) and value.shape == weight.shape else value
            for key, value in saved["state"][index].items()
        }
        for index, weight in zip(indices, weights, strict=True)
        if index in saved["state"]
    }
