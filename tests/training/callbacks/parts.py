"""A trainer that shows and writes nothing by itself, for tests of callbacks, and the comparison of states."""

from typing import Any

import lightning as L
import torch


def make_trainer(*callbacks: L.Callback, **settings: Any) -> L.Trainer:
    silent = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return L.Trainer(callbacks=[*callbacks], **{"accelerator": "cpu", **silent, **settings})


def equal_states(a: Any, b: Any) -> bool:
    """Whether nested dictionaries and lists hold the same values."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal_states(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal_states, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
