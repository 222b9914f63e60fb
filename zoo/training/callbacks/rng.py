"""The global random generators: in the checkpoint, and untouched by a validation."""

from __future__ import annotations

import random
import warnings
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist


class RNGState(L.Callback):
    """Saves and restores the global generators of every rank, and keeps validation from advancing them."""

    def __init__(self) -> None:
        self._restored: dict[str, Any] | None = None
        self._before_validation: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the generators of all ranks into the checkpoint."""
        state = self._before_validation or capture_rng()
        checkpoint["rng"] = [state]
        if dist.is_available() and dist.is_initialized():
            checkpoint["rng"] = [None] * dist.get_world_size()
            dist.all_gather_object(checkpoint["rng"], state)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take this rank's generators from the checkpoint."""
        states = checkpoint.get("rng", [])
        if trainer.global_rank < len(states):
            self._restored = states[trainer.global_rank]
        elif states:
            warnings.warn(
                f"resuming with {trainer.world_size} processes a run of {len(states)}: the data order stays defined, "
                "but the result is not bit-equal to an uninterrupted run",
                stacklevel=2,
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore after everything that samples numbers at start-up."""
        if self._restored is not None:
            restore_rng(self._restored)
            self._restored = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Store the generators of the training."""
        self._before_validation = capture_rng()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the generators of the training."""
        if self._before_validation is not None:
            restore_rng(self._before_validation)
            self._before_validation = None


def capture_rng() -> dict[str, Any]:
    """Return the states of Python's, NumPy's, torch's and each GPU's generators, as tensors and plain values."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = legacy
    numpy_words = torch.from_numpy(np.asarray(keys, dtype=np.int64))
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, numpy_words, int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "cuda_device": torch.cuda.current_device() if torch.cuda.is_available() else None,
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Restore the states that `capture_rng` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    states = [each.cpu() for each in state["cuda"]]
    if states and len(states) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states)
    if states and state.get("cuda_device") is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[state["cuda_device"]])  # to this process' device, which may have moved
    if state.get("mps") is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].cpu())
