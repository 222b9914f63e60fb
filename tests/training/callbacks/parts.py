"""A trainer that shows and writes nothing by itself, for tests of callbacks."""

from typing import Any

import lightning as L


def make_trainer(*callbacks: L.Callback, **settings: Any) -> L.Trainer:
    silent = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return L.Trainer(callbacks=[*callbacks], **{"accelerator": "cpu", **silent, **settings})
