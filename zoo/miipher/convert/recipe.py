"""The adapter configurations of the Miipher-2 reproduction as our recipes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.common.reading.text import safe_load

PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
DATA = "${oc.env:ZOO_DATA,data}"
# read by the original's script alone, or the same here without being said
IMPLIED = ("loader.pin_memory", "training.dataloader_drop_last", "checkpoint.save_wandb_metadata")


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn an adapter's YAML into a recipe for `zoo fit`.

    `hubert_layer` is taken as counted from 1, as the original does since 2025-06-27.

    Args:
        path: the original's YAML file.

    Returns:
        The recipe, and the keys without a counterpart: the original's shards, logger and process settings.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no configuration of the adapter's training.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {path}")
    try:
        config = safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    settings = _Settings(config if isinstance(config, dict) else {}, path)
    if "upsample_rates" in settings.values:
        raise ValueError(
            f"{path} configures the vocoder with a prenet, which is not trained here: begin with "
            "configs/miipher/hifigan_pretrain_layer_6.yaml or hifigan_finetune_layer_6.yaml"
        )
    recipe = {
        "seed_everything": settings.take("seed", 1234),
        "trainer": _trainer(settings),
        "checkpoints": {
            "every_n_batches": settings.take("checkpoint.save_interval", 1000),
            "keep_last": settings.take("checkpoint.keep_last_n", 2),
            "monitor": "val/loss",
        },
        "model": {"class_path": "zoo.miipher.AdapterTask", "init_args": _model(settings)},
        "data": {
            "class_path": "zoo.miipher.SpeechData",
            "init_args": {
                "root": f"{DATA}/libritts_r",
                "noise": f"{DATA}/noise",
                "rir": f"{DATA}/rir",
                "batch_size": settings.take("batch_size"),
                "num_workers": settings.take("loader.num_workers", 0),
                "degrader": {"class_path": "zoo.audio.Degrader", "init_args": {}},
            },
        },
    }
    return recipe, settings.left()


class _Settings:
    """Values of a nested configuration by dotted key, and which of them were asked for."""

    def __init__(self, config: Mapping[str, Any], path: Path) -> None:
        self.path = path
        self.values = dict(_flat(config))
        self.taken = set(IMPLIED)

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key; without default it must be there."""
        self.taken.add(key)
        value = self.values.get(key)
        if value is None and default is None:
            known = ", ".join(list(self.values)[:6]) or "nothing"
            raise ValueError(f"{self.path} lacks {key}, which every adapter configuration has; it has {known}")
        return default if value is None else value

    def left(self) -> list[str]:
        """Keys nobody asked for that hold something."""
        return [key for key, value in self.values.items() if key not in self.taken and value is not None]


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return pairs


def _trainer(settings: _Settings) -> dict[str, Any]:
    precision = str(settings.take("training.mixed_precision", "no"))
    if precision not in PRECISIONS:
        raise ValueError(
            f"{settings.path}: training.mixed_precision is {precision!r}, expected one of {', '.join(PRECISIONS)}"
        )
    accumulate = int(settings.take("training.gradient_accumulation_steps", 1))
    trainer = {
        "max_steps": settings.take("steps"),
        "val_check_interval": settings.take("validation_interval") * accumulate,  # Lightning counts batches there
        "check_val_every_n_epoch": None,
        "limit_val_batches": settings.take("validation_batches", 25),
        "gradient_clip_val": float(settings.take("optim.max_grad_norm", 1.0)),
        "accumulate_grad_batches": accumulate,
        "log_every_n_steps": settings.take("log_interval", 100),
        "precision": PRECISIONS[precision],
    }
    return trainer | ({"accelerator": "cpu"} if settings.take("training.force_cpu", False) else {})


def _model(settings: _Settings) -> dict[str, Any]:
    kind = str(settings.take("model.model_type", "auto"))
    backbone = {"layer": settings.take("model.hubert_layer"), "source": settings.take("model.hubert_model_name")}
    if kind == "hubert" and "wavlm" in backbone["source"].lower():
        backbone["family"] = "wavlm_as_hubert"
    optimizer = {
        "lr": float(settings.take("optim.lr")),
        "betas": settings.take("optim.betas", [0.9, 0.95]),
        "weight_decay": float(settings.take("optim.weight_decay", 0.01)),
    }
    return {
        "encoder": {
            "class_path": "zoo.miipher.Cleaner",
            "init_args": {
                "backbone": {"class_path": "zoo.miipher.Backbone", "init_args": backbone},
                "adapters": {
                    "class_path": "zoo.miipher.ParallelAdapters",
                    "init_args": {"hidden_dim": settings.take("model.adapter_hidden_dim")},
                },
            },
        },
        "loss_weights": {"mae": 1.0, "mse": 1.0, "sc": 1.0},
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": optimizer},
        "scheduler": _schedule(settings),
    }


def _schedule(settings: _Settings) -> dict[str, Any]:
    """The schedule as the original ran it: with restarts it never applied the warm-up."""
    name = settings.take("optim.scheduler.name", "constant_with_warmup")
    if name == "constant_with_warmup":
        arguments = {"warmup_steps": settings.take("optim.scheduler.warmup_steps", 0)}
        return {"class_path": "zoo.training.WarmupConstant", "init_args": arguments}
    if name == "cosine_with_restarts":
        arguments = {
            "T_0": settings.take("optim.scheduler.first_cycle_steps"),
            "T_mult": int(settings.take("optim.scheduler.cycle_mult", 1)),
            "eta_min": float(settings.take("optim.scheduler.min_lr", 0.0)),
        }
        return {"class_path": "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", "init_args": arguments}
    raise ValueError(f"{settings.path}: no schedule for optim.scheduler.name {name!r}")
