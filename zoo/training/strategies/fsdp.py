"""FSDP2: weights, gradients and optimizer states in shards, on GPUs (NCCL) and on the CPU (gloo)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
import torch.distributed as dist
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.optim import Optimizer

from zoo.common.ranges import at_least
from zoo.runs import checkpoints as files
from zoo.runs.frozen import frozen_modules
from zoo.training.strategies.shards import placed_like

log = logging.getLogger(__name__)


class _Root(nn.Module):
    """Runs a function while the weights of a module that no block holds are whole."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


class FSDP2(DDPStrategy):
    """Trains with `torch.distributed.fsdp.fully_shard`: each process keeps a part of each weight.

    A thin strategy of our own over DDP's, which brings processes, groups and reductions. Lightning's FSDPStrategy
    refuses the CPU and knows one optimizer; its ModelParallelStrategy accepts the CPU, but asks each LightningModule to
    shard itself, saves past the checkpoint plugin straight into the final folder, and pickles on the way.

    What is sharded: each child of a ModuleList or Sequential with at least `min_block_parameters` parameters that no
    block within it holds is a group of its own, gathered when it is called and given back after; not within a task's
    `uneven_parts`, where ranks would wait for calls that do not come. The rest of a task with one optimizer is one
    group, whole from a training step's beginning to the end of its backward; the generator and each discriminator of a
    GAN are groups with their own passes. Frozen weights are sharded too, where they are
    floating-point. Buffers stay whole and each process's own, as under DDP with `broadcast_buffers: false`.

    Training alone is sharded; its validations, validate, test and predict compute with whole weights. Checkpoints are
    folders, see `zoo.runs.checkpoints`; they resume on any number of processes, also without shards, and this resumes
    from files of one process or DDP.

    Run on the CPU with gloo, 1 to 4 processes; the path over NCCL was not run.

    Args:
        min_block_parameters: of a block that is gathered by itself.
        param_dtype: of gathered weights; bfloat16 halves what is sent, for `precision: bf16-mixed`. By default the
            weights' own, which parts with spectral norm keep.
        reduce_dtype: in which gradients are summed over processes; by default `param_dtype`.
        process_group_backend: gloo or nccl; by default the device's own.
        timeout: after which a process that waits for another gives up.

    Raises:
        ValueError: when a trained weight is a scalar, which FSDP2 cannot cut, or a task steps its optimizers itself and
            is no GANTask.
    """

    def __init__(
        self,
        min_block_parameters: int = 1_000_000,
        param_dtype: Literal["bfloat16", "float16"] | None = None,
        reduce_dtype: Literal["float32", "bfloat16", "float16"] | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(process_group_backend=process_group_backend, timeout=timeout)
        at_least(1, min_block_parameters=min_block_parameters)
        self.min_block_parameters = min_block_parameters
        self.param_dtype = param_dtype
        self.reduce_dtype = reduce_dtype
        self.files: Any = None  # the process group that checkpoints are written in
        self._mesh: Any = None
        self._roots: dict[nn.Module, Any] = {}
        self._groups: list[Any] = []
        self._whole = False

    def setup_environment(self) -> None:
        """Join the processes, and again for checkpoints: written in a thread, they must not meet training's calls."""
        super().setup_environment()
        if self.files is None:
            self.files = dist.new_group(backend="gloo", timeout=self._timeout or default_pg_timeout)

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Shards are filled where they lie; whole weights, for evaluation, come before."""
        module = self.lightning_module
        return module is not None and module.trainer.state.fn == TrainerFn.FITTING

    def model_to_device(self) -> None:
        """Move the model, or wait: each group goes to the device when it is cut."""
        if not self.restore_checkpoint_after_setup:
            super().model_to_device()

    def configure_ddp(self) -> None:
        """Shard the model."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.utils import _sync_module_states

        task: Any = self.lightning_module
        for module in frozen_modules({"": task}).values():
            if module.is_frozen:
                module.fingerprint()  # of whole weights
        _sync_module_states(task, self.files, 2**28, 0, set())
        self._mesh = init_device_mesh(self.root_device.type, (self.world_size,), mesh_dim_names=("shard",))
        if task.automatic_optimization:
            parts = {task: _Root(task)}
        elif hasattr(task, "discriminator_names"):
            names = task.discriminator_names
            parts = {task.generator: _Root(task.generator), **{d: d for d in (getattr(task, n) for n in names)}}
        else:
            raise ValueError(f"FSDP2: {type(task).__name__} steps its optimizers itself and is no GANTask")
        self._groups = []
        self._roots = {}
        for part, root in parts.items():
            self._groups += self._sharded(part, root)
            self._roots[part] = root
        for root in self._roots.values():
            root._get_fsdp_state()._lazy_init()  # a block may be called before its root
        task.to(self.root_device)
        sizes = [sum(p.numel() for p in module.parameters()) for module in self._roots.values()]
        log.info("FSDP2: %d parameters in %d groups over %d processes", sum(sizes), len(self._groups), self.world_size)

    def _sharded(self, part: nn.Module, root: nn.Module) -> list[Any]:
        """Cut a part into groups, blocks before what contains them."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dtypes = {key: getattr(torch, name) for key, name in vars(self).items() if key.endswith("_dtype") and name}
        if any(isinstance(module, _SpectralNorm) for module in part.modules()):
            dtypes = {}  # its vectors are float32, and a buffer is not gathered
        policy = MixedPrecisionPolicy(**dtypes, cast_forward_inputs=False)
        whole = {p for p in part.parameters() if not (p.requires_grad or p.is_floating_point()) or not p.ndim}
        scalars = [name for name, p in part.named_parameters() if p.requires_grad and not p.ndim]
        if scalars:
            raise ValueError(f"FSDP2 cannot cut the scalar weight {scalars[0]}: freeze it, or train with DDP")
        repeated = {
            child for module in part.modules() if isinstance(module, nn.ModuleList | nn.Sequential)
            for child in module.children() if not isinstance(child, nn.ModuleList)
        }  # fmt: skip
        uneven = [getattr(part, name) for name in getattr(part, "uneven_parts", ())]
        repeated -= {module for each in uneven if each is not None for module in each.modules()}
        taken = set(whole)
        groups = []
        for module in reversed(list(part.modules())):
            free = set(module.parameters()) - taken
            if module in repeated and sum(p.numel() for p in free) >= self.min_block_parameters:
                groups.append(fully_shard(module, mesh=self._mesh, mp_policy=policy, ignored_params=whole))
                taken |= set(module.parameters())
        groups.append(fully_shard(root, mesh=self._mesh, mp_policy=policy, ignored_params=whole))
        return groups

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """A training step, within the root's forward pass; a GAN goes through those of its parts."""
        task: Any = self.lightning_module
        with self.precision_plugin.train_step_context():
            if task.automatic_optimization:
                return self.through(task, task.training_step, *args, **kwargs)
            output = task.training_step(*args, **kwargs)
            self.reshard()  # a part that was called without gradients
            return output

    def through(self, part: nn.Module, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that uses a part's weights in any way as if it were the part's forward pass.

        Args:
            part: the task, or a GAN's generator.
        """
        return self._roots[part](function, *args, **kwargs)

    def on_validation_start(self) -> None:
        """Gather all weights, once: processes may have different numbers of batches, so their steps must not meet."""
        self._gather()

    def on_validation_end(self) -> None:
        """Let go of them."""
        self.reshard()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold all weights whole; all processes enter together, and what is changed meanwhile is lost."""
        held = self._whole
        self._gather()
        try:
            yield
        finally:
            if not held:
                self.reshard()

    def _gather(self) -> None:
        self._whole = True
        for module in self._groups:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()

    def reshard(self) -> None:
        """Let go of all weights of others."""
        for module in self._groups:
            module.reshard()
            if self._whole and module not in self._roots.values():
                module.set_reshard_after_forward(True, recurse=False)
        self._whole = False

    def teardown(self) -> None:
        """Let go of all weights, also where an exception came in the middle of a pass; end."""
        for module in self._groups:
            if group := module._get_fsdp_state()._fsdp_param_group:
                group._to_sharded()
        super().teardown()

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Gather gradients of several backward passes before they are exchanged."""
        for root in self._roots.values():
            root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for root in self._roots.values():
                root.set_requires_gradient_sync(True)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Parts of the weights, under the names that whole ones have."""
        self.reshard()
        return super().lightning_module_state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        """Write a folder, all processes together."""
        files.save_sharded(checkpoint, Path(filepath), self.files)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a folder, of which this process takes its parts, or a file."""
        if not self._roots:
            return files.load_checkpoint(Path(checkpoint_path))
        return files.load_checkpoint(Path(checkpoint_path), empty=self._empty)

    def _empty(self, shape: list[int], dtype: torch.dtype) -> Tensor:
        from torch.distributed.tensor import Shard, empty

        return empty(*shape, dtype=dtype, device_mesh=self._mesh, placements=[Shard(0)])

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Put weights into their shards."""
        assert self.lightning_module is not None
        live = self.lightning_module.state_dict()
        state = {
            name: placed_like(value, live[name]) if name in live and live[name].shape == value.shape else value
            for name, value in checkpoint["state_dict"].items()
        }
        self.lightning_module.load_state_dict(state, strict=strict)

    def setup_optimizers(self, trainer: L.Trainer) -> None:
        """Build the optimizers, which treat many weights at once on the CPU, too.

        Every operation on a shard is planned anew where a number in it changes from step to step; with one operation a
        weight that took 35 times as long as all of them together (AdamW, 80 weights, CPU).
        """
        super().setup_optimizers(trainer)
        self._treat_many()

    def _treat_many(self) -> None:
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """An optimizer's state as it would be without shards, its tensors aside."""
        state = super().optimizer_state(optimizer)
        chosen = optimizer.defaults.get("foreach")
        groups = [group | ({"foreach": chosen} if "foreach" in group else {}) for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Put the optimizers' states where their weights are."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict({**saved, "state": placed_states(optimizer, saved)})
        self._treat_many()


def placed_states(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[int, Any]:
    """The states of an optimizer's weights as a checkpoint holds them, spread as the weights are."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    if len(weights) != len(numbers):
        raise ValueError(f"the checkpoint's optimizer has {len(numbers)} weights, this run's {len(weights)}")
    placed = {}
    for number, weight in zip(numbers, weights, strict=True):
        if number in saved["state"]:
            placed[number] = {
                key: placed_like(value, weight) if isinstance(value, Tensor) and value.shape == weight.shape else value
                for key, value in saved["state"][number].items()
            }
    return placed
