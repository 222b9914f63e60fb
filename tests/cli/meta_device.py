"""A stand-in for an accelerator: tensors without values on the meta device, and a watch over what the host does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.trainer.connectors.data_connector import _DataHookSelector
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo.training.task import ZooTask

META = torch.device("meta")
_autocast = torch.autocast


class HostWork(TorchDispatchMode):
    """Refuses tensors of the CPU in what an accelerator computes.

    Python numbers come as CPU tensors without axes, which every kernel takes as an argument: they pass, and so do
    empty tensors, by which torch marks what it recomputes. What reads
    values back (`item`, `tolist`, `nonzero`, `unique`, boolean indices) has no answer on the meta device and fails by
    itself. What an operation gives for arguments of a kind is asked once: torch decides on it in Python, which takes
    most of the time of these tests.
    """

    cache: ClassVar[dict[Any, list[tuple[Any, ...]]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options: list[torch.Tensor] = []
        kind = func, _kind(args, options), _kind(tuple((kwargs or {}).items()), options)
        _refuse(func, options)
        is_cacheable = _makes_new_tensors(func) and all(value.device == META for value in options)
        if is_cacheable and kind in self.cache:
            made = [torch.empty_strided(*sizes, dtype=dtype, device=META) for *sizes, dtype in self.cache[kind]]
            return tuple(made) if len(made) > 1 else made[0]
        result = func(*args, **(kwargs or {}))
        _refuse(func, [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)])
        made = result if isinstance(result, tuple) and len(result) > 1 else [result]
        if is_cacheable and all(isinstance(value, torch.Tensor) and value.device == META for value in made):
            self.cache[kind] = [(value.shape, value.stride(), value.dtype) for value in made]
        return result


def _refuse(func: Any, values: list[torch.Tensor]) -> None:
    for value in values:
        if value.device.type == "cpu" and value.dim() and value.numel():
            raise AssertionError(f"{func} works on a CPU tensor of shape {tuple(value.shape)}")


def _kind(value: Any, tensors: list[torch.Tensor]) -> Any:
    """All of an argument that a result's shape depends on; its tensors are added to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.dtype, value.shape, value.stride()
    if isinstance(value, list | tuple):
        return tuple([_kind(each, tensors) for each in value])
    return type(value), value  # 1, 1.0 and True are not the same


@lru_cache
def _makes_new_tensors(func: Any) -> bool:
    """Whether an operation returns tensors of their own, none of those that it was given or a view of one."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    schema = func._schema
    return not any(each.alias_info for each in (*schema.arguments, *schema.returns))


class MetaGenerator(torch.Generator):
    """A generator for the meta device, which has none."""

    def __new__(cls, device: torch.device | str = "cpu") -> MetaGenerator:
        return super().__new__(cls, "cpu" if torch.device(device) == META else device)


def without_autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    """`torch.autocast`, which does not know the meta device."""
    return contextlib.nullcontext() if device_type == "meta" else _autocast(device_type, *args, **kwargs)


@contextlib.contextmanager
def weightless() -> Iterator[None]:
    """Modules built here have their parameters on the meta device from the start; buffers, which hold constants, not.

    So that the largest recipe takes no memory.
    """
    register = nn.Module.register_parameter

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device != META:
            parameter = nn.Parameter(parameter.detach().to(META), parameter.requires_grad)
        register(module, name, parameter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "register_parameter", registered)
        yield


def prepared(model: ZooTask, data: L.LightningDataModule) -> L.Trainer:
    """A trainer with model and data as they are when a fit begins, without Lightning's loops: those read values."""
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, log_every_n_steps=1000,
        max_steps=100_000,
    )  # fmt: skip
    trainer.state.fn = TrainerFn.FITTING
    trainer.training = True
    trainer.strategy._lightning_module = model
    model.trainer = data.trainer = trainer
    trainer._data_connector._datahook_selector = _DataHookSelector(model, data)
    trainer.datamodule = data
    data.setup("fit")
    model.setup("fit")
    model.to(META)
    trainer.strategy.setup_optimizers(trainer)
    return trainer


def _on_device(model: ZooTask, batch: Any) -> Any:
    return model._apply_batch_transfer_handler(model._on_before_batch_transfer(batch), META)


def train(model: ZooTask, data: L.LightningDataModule) -> None:
    """Forward, losses and backward of a batch; the steps of the optimizers too, where they are part of the task's."""
    batch = _on_device(model, next(iter(data.train_dataloader())))
    with HostWork(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", MetaGenerator)
        loss = model.training_step(batch, 0)
        if model.automatic_optimization:
            loss.backward()
            model.on_after_backward()


def validate(model: ZooTask, data: L.LightningDataModule) -> None:
    """The losses of a validation batch."""
    model.trainer.training, model.trainer.validating = False, True
    model.eval()
    loaders = data.val_dataloader()
    for loader in loaders if isinstance(loaders, list) else [loaders]:
        batch = _on_device(model, next(iter(loader)))
        with HostWork(), torch.no_grad():
            model.validation_step(batch, 10**6)
