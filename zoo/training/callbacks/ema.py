"""Exponential moving average of chosen modules' weights, used for evaluation and kept in the checkpoint."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from zoo.common.checks import check_at_least, check_below
from zoo.training.strategies.sharding import distribute_like, gather_to_first_rank, is_sharded, reshard


class EMA(L.Callback):
    """Averages the trainable parameters of named modules; validation and test run with the average.

    Frozen parameters are not copied. Persistent float buffers (running statistics) are copied as they are, not
    averaged. The first update copies the weights; before it, evaluation uses the model's. The average of half-precision
    weights is kept in float32, in which a small change does not round away. The checkpoint's `state_dict` always holds
    the model's weights, `checkpoint["ema"]["shadow"]` the average under the same names.

    Args:
        modules: names in the task, such as `generator`.
        decay: weight of the old average in one update, in [0, 1).
        start_step: optimizer steps before the first update.
        every_n_steps: optimizer steps between updates.
        warm_up: lower the decay of update n to (1 + n) / (10 + n) where that is less, so that a short run's average
            is not its beginning.
    """

    def __init__(
        self,
        modules: list[str],
        decay: float = 0.999,
        start_step: int = 0,
        every_n_steps: int = 1,
        warm_up: bool = False,
    ) -> None:
        if not modules:
            raise ValueError("EMA: modules is empty")
        check_at_least(0, decay=decay, start_step=start_step)
        check_below(1, decay=decay)
        check_at_least(1, every_n_steps=every_n_steps)
        self.modules = modules
        self.decay = decay
        self.start_step = start_step
        self.every_n_steps = every_n_steps
        self.warm_up = warm_up
        self.shadow: dict[str, Tensor] = {}
        self.updates = 0
        self._weights: dict[str, Tensor] = {}  # the model's, while the average is in
        self._owners: dict[str, tuple[nn.Module, str]] = {}  # module and attribute of each tensor

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Check that the modules exist."""
        if sum(isinstance(callback, EMA) for callback in trainer.callbacks) > 1:  # type: ignore[attr-defined]
            raise ValueError("EMA: a run has one; name all modules in its `modules`")
        self._owners = {}
        for name in self.modules:
            try:
                pl_module.get_submodule(name)
            except AttributeError as error:
                names = ", ".join(child for child, _ in pl_module.named_children())
                raise ValueError(f"EMA: {type(pl_module).__name__} has no module {name!r}, only {names}") from error
            if not any(key.startswith(f"{name}.") for key in pl_module.state_dict()):
                raise ValueError(f"EMA: checkpoints have no weights of the name {name!r}; take the module's own name")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Update, unless a guard skipped this batch or it only accumulated gradients."""
        steps = trainer.global_step - self.start_step
        accumulates = trainer.fit_loop.epoch_loop._should_accumulate()
        skipped = any(getattr(callback, "skipped", False) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        if steps > 0 and steps % self.every_n_steps == 0 and not accumulates and not skipped:
            self._update(self._model_tensors(pl_module))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the average in."""
        self._swap(pl_module, into_average=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the model's weights back."""
        self._swap(pl_module, into_average=False)

    on_test_start = on_validation_start
    on_test_end = on_validation_end

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Put the model's weights back when an evaluation broke off; shards need ranks that may be gone."""
        if not is_sharded(trainer):
            self._swap(pl_module, into_average=False)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the average; also in the middle of an evaluation `state_dict` gets the model's weights."""
        if self._weights:
            weights = {name: gather_to_first_rank(value) for name, value in self._weights.items()}
            checkpoint["state_dict"] = {key: weights.get(key, value) for key, value in checkpoint["state_dict"].items()}
        shadow = {name: gather_to_first_rank(value) for name, value in self.shadow.items()}
        checkpoint["ema"] = {"shadow": shadow, "updates": self.updates}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the average."""
        if (saved := checkpoint.get("ema")) is None:
            return
        tensors = self._model_tensors(pl_module)
        names = saved["shadow"].keys()
        if names and names != tensors.keys():
            difference = ", ".join(sorted(names ^ tensors.keys())[:3])
            raise ValueError(f"EMA: the checkpoint averages other weights than modules {self.modules}: {difference}")
        self.shadow = {name: _widen(distribute_like(value, tensors[name])) for name, value in saved["shadow"].items()}
        self.updates = saved["updates"]

    def _model_tensors(self, pl_module: L.LightningModule) -> dict[str, Tensor]:
        """Return the trainable parameters and persistent float buffers of the modules, by their names in the task."""
        if not self._owners:  # walking the modules costs more than averaging a small net
            for path in self.modules:
                module = pl_module.get_submodule(path)
                persistent = module.state_dict().keys()
                names = [name for name, weight in module.named_parameters() if weight.requires_grad]
                names += [name for name, b in module.named_buffers() if name in persistent and b.is_floating_point()]
                for name in names:
                    owner, _, attribute = name.rpartition(".")
                    self._owners[f"{path}.{name}"] = (module.get_submodule(owner), attribute)
        return {name: getattr(owner, attribute) for name, (owner, attribute) in self._owners.items()}

    @torch.no_grad()
    def _update(self, tensors: dict[str, Tensor]) -> None:
        if self.updates == 0:
            self.shadow = {name: _widen(value.detach().clone()) for name, value in tensors.items()}
        else:
            decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm_up else self.decay
            shadow = self._shadow_like(tensors)
            weights = [name for name, value in tensors.items() if isinstance(value, nn.Parameter)]
            if weights:
                average = get_ema_multi_avg_fn(decay)
                current = [tensors[name].to(shadow[name].dtype) for name in weights]
                average([shadow[name] for name in weights], current, None)
            for name in tensors.keys() - set(weights):
                shadow[name].copy_(tensors[name])
        self.updates += 1

    @torch.no_grad()
    def _swap(self, pl_module: L.LightningModule, into_average: bool) -> None:
        if bool(self._weights) == into_average or self.updates == 0:
            return
        if pl_module._trainer is not None:
            reshard(pl_module.trainer)
        tensors = self._model_tensors(pl_module)
        values = self._shadow_like(tensors) if into_average else self._weights
        self._weights = {name: tensors[name].clone() for name in values} if into_average else {}
        for name, value in values.items():
            tensors[name].copy_(value)

    def _shadow_like(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the average on the weights' device: it may have been restored before the task moved there."""
        for name, value in self.shadow.items():
            if value.device != tensors[name].device:
                self.shadow[name] = value.to(tensors[name].device)
        return self.shadow


def _widen(value: Any) -> Any:
    """Return a half-precision tensor in float32, anything else as it is."""
    is_half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value
