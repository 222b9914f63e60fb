"""Exponential moving average of chosen parts' weights, used for evaluation and kept in the checkpoint."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from zoo.common.checks import check_at_least, check_below
from zoo.training.strategies.sharding import distribute_like, gather_to_first_rank, is_sharded, reshard

log = logging.getLogger(__name__)


class EMA(L.Callback):
    """Averages the trainable parameters of named parts; validation, test and predict run with the average.

    Frozen parameters are not copied. Persistent float buffers (running statistics) are copied as they are, not
    averaged. The first update copies the weights; before it, evaluation uses the live ones. The checkpoint's
    `state_dict` always holds the live weights, `checkpoint["ema"]["shadow"]` the average under the same names. Steps
    are those of the optimizer: batches that only accumulate gradients do not count.

    Args:
        modules: names of the task's parts, such as `generator`.
        decay: weight of the old average in one update, in [0, 1).
        start_step: steps made before the first update.
        every_n_steps: steps between updates.
        warm_up: lower the decay of update n to (1 + n) / (10 + n) where that is less, so that a short run's average
            is not its beginning.

    Raises:
        ValueError: when a number is out of its range or the task has no such part.
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
            raise ValueError("EMA: modules names no part")
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
        self._step = 0
        self._swapped = False
        self._restored = False
        self._places: dict[str, tuple[nn.Module, str]] | None = None

    @property
    def state_key(self) -> str:
        """Same key whatever the arguments, so that a resume may change them."""
        return "EMA"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Check that the parts exist."""
        self._places = None
        for name in self.modules:
            if not isinstance(_find(pl_module, name), nn.Module):
                known = ", ".join(child for child, _ in pl_module.named_children())
                raise ValueError(f"EMA: {type(pl_module).__name__} has no part {name!r}; its parts: {known}")

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Move a restored average to where the task has moved since."""
        if self.updates:
            for name, value in self._live(pl_module).items():
                self._on(name, value)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say so when a resumed checkpoint brought no average."""
        self._step = trainer.global_step
        if trainer.ckpt_path is not None and not self._restored:
            log.warning("EMA: %s holds no average; it starts from the live weights", trainer.ckpt_path)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Update, unless a guard threw this batch away or it only accumulated gradients."""
        done = trainer.global_step - self.start_step
        stepped = trainer.global_step != self._step
        self._step = trainer.global_step
        guarded = any(getattr(callback, "skipped", False) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        if stepped and done > 0 and done % self.every_n_steps == 0 and not guarded:
            self._update(self._live(pl_module))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the average in."""
        self._swap(pl_module, into_average=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the live weights back."""
        self._swap(pl_module, into_average=False)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Put the live weights back when an evaluation broke off; shards need ranks that may be gone."""
        if not is_sharded(trainer):
            self._swap(pl_module, into_average=False)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the average; also in the middle of an evaluation `state_dict` gets the live weights."""
        shadow = self.shadow
        if self._swapped:
            state = checkpoint["state_dict"]
            average = {name: gather_to_first_rank(value) for name, value in shadow.items()}
            checkpoint["state_dict"] = {key: average.get(key, value) for key, value in state.items()}
            shadow = {name: state[name].detach() for name in shadow}
        shadow = {name: gather_to_first_rank(value) for name, value in shadow.items()}
        checkpoint["ema"] = {"shadow": shadow, "updates": self.updates}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the average."""
        saved = checkpoint.get("ema")
        if saved is None:
            return
        live = self._live(pl_module)
        names = set(saved["shadow"])
        if names and names != set(live):
            missing, unexpected = sorted(set(live) - names), sorted(names - set(live))
            raise ValueError(
                f"EMA: the checkpoint averages other weights than modules {self.modules}: "
                f"missing {missing[:3]}, unexpected {unexpected[:3]}"
            )
        self.shadow = {name: distribute_like(value, live[name]) for name, value in saved["shadow"].items()}
        self.updates = saved["updates"]
        self._restored = True

    def _live(self, pl_module: L.LightningModule) -> dict[str, Tensor]:
        """The trainable parameters and persistent float buffers of the parts, by their names in the task."""
        if self._places is None:  # walking the modules costs more than averaging a small net
            self._places = {}
            for part in self.modules:
                module = pl_module.get_submodule(part)
                kept = module.state_dict().keys()
                names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
                names += [name for name, b in module.named_buffers() if name in kept and b.is_floating_point()]
                for name in names:
                    owner, _, attribute = name.rpartition(".")
                    self._places[f"{part}.{name}"] = (module.get_submodule(owner), attribute)
        return {name: getattr(owner, attribute) for name, (owner, attribute) in self._places.items()}

    @torch.no_grad()
    def _update(self, live: dict[str, Tensor]) -> None:
        if self.updates == 0:
            self.shadow = {name: value.detach().clone() for name, value in live.items()}
        else:
            decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm_up else self.decay
            weights = {name: value for name, value in live.items() if isinstance(value, nn.Parameter)}
            if weights:
                average = get_ema_multi_avg_fn(decay)
                average([self._on(name, value) for name, value in weights.items()], list(weights.values()), None)
            for name in live.keys() - weights.keys():
                self._on(name, live[name]).copy_(live[name])
        self.updates += 1

    @torch.no_grad()
    def _swap(self, pl_module: L.LightningModule, into_average: bool) -> None:
        if self._swapped == into_average or self.updates == 0:
            return
        if pl_module._trainer is not None:
            reshard(pl_module.trainer)
        for name, value in self._live(pl_module).items():
            shadow = self._on(name, value)
            before = value.clone()
            value.copy_(shadow)
            shadow.copy_(before)
        self._swapped = into_average

    def _on(self, name: str, like: Tensor) -> Tensor:
        """The average of a weight on that weight's device: it was restored before the task moved there."""
        average = self.shadow[name]
        if average.device != like.device:
            average = self.shadow[name] = average.to(like.device)
        return average


def _find(module: nn.Module, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)  # type: ignore[assignment]
    return module
