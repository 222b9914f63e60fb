"""The adapter configurations of the Miipher-2 reproduction as our recipes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from zoo.convert.network_description import component
from zoo.convert.settings import PRECISIONS, SettingsReader, read_settings_file, to_number

DATA = "${oc.env:ZOO_DATA,data}"
# read by the original's script alone, or the same here without being said
IMPLIED = ("loader.pin_memory", "training.dataloader_drop_last", "checkpoint.save_wandb_metadata")


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn an adapter's YAML into a recipe for `zoo fit`; `hubert_layer` is counted from 1, as since 2025-06-27.

    Returns the recipe, and the keys without a counterpart: the original's shards, logger and process settings.
    ValueError when it is no configuration of the adapter's training.
    """
    settings = SettingsReader(read_settings_file(Path(path)), Path(path), IMPLIED)
    if "upsample_rates" in settings.values:
        raise ValueError(
            f"{settings.path} configures the vocoder with a prenet, which is not trained here: begin with "
            "miipher/hifigan_pretrain_layer_6 or miipher/hifigan_finetune_layer_6"
        )
    trainer, accumulate = _trainer(settings)
    recipe = {
        "seed_everything": settings.number("seed", 1234, int),
        "trainer": trainer,
        "checkpoints": {
            "every_n_steps": max(1, settings.number("checkpoint.save_interval", 1000, int) // accumulate),
            "keep_last": settings.number("checkpoint.keep_last_n", 2, int),
            "monitor": "val/loss",
        },
        "model": component("zoo.miipher.AdapterTask", **_model(settings)),
        "data": component(
            "zoo.miipher.SpeechData",
            root=f"{DATA}/libritts_r",
            degradation={
                "degrader": component("zoo.audio.Degrader"),
                "noise": f"{DATA}/noise",
                "rir": f"{DATA}/rir",
            },
            split={"items": settings.number("validation_batches", 25, int) * _required(settings, "batch_size")},
            batch_size=_required(settings, "batch_size"),
            num_workers=settings.number("loader.num_workers", 0, int),
        ),
    }
    return recipe, settings.unused()


def _required(settings: SettingsReader, key: str) -> int:
    """Read a whole number that must be present."""
    return to_number(settings.require(key), int, f"{settings.path}: {key}")


def _trainer(settings: SettingsReader) -> tuple[dict[str, Any], int]:
    """The trainer's settings and the batches of an optimizer step; the original's steps are batches."""
    accumulate = settings.number("training.gradient_accumulation_steps", 1, int)
    trainer = {
        "max_steps": math.ceil(_required(settings, "steps") / accumulate),
        "val_check_interval": _required(settings, "validation_interval"),  # in batches, as Lightning counts it
        "check_val_every_n_epoch": None,
        "gradient_clip_val": settings.number("optim.max_grad_norm", 1.0),
        "accumulate_grad_batches": accumulate,
        "log_every_n_steps": max(1, settings.number("log_interval", 100, int) // accumulate),
        "precision": settings.choice("training.mixed_precision", "no", PRECISIONS),
    }
    return trainer | ({"accelerator": "cpu"} if settings.get("training.force_cpu", False) else {}), accumulate


def _model(settings: SettingsReader) -> dict[str, Any]:
    kind, layer = str(settings.get("model.model_type", "auto")), _required(settings, "model.hubert_layer")
    of_accelerate = any(key.startswith("accelerate.") for key in settings.values)
    if of_accelerate:
        settings.notes.append(
            f"model.hubert_layer: block {layer}, from 1; a configuration of before 2025-06-27 counted from 0 and means "
            f"block {layer + 1}: set model.init_args.encoder.init_args.backbone.init_args.layer"
        )
    backbone = {
        "layer": layer,
        "source": settings.require("model.hubert_model_name"),
    }
    if kind == "hubert" and "wavlm" in backbone["source"].lower():
        backbone["family"] = "wavlm_as_hubert"
    adapters = component("zoo.miipher.ParallelAdapters", hidden_dim=_required(settings, "model.adapter_hidden_dim"))
    return {
        "encoder": component(
            "zoo.miipher.Cleaner", backbone=component("zoo.miipher.Backbone", **backbone), adapters=adapters
        ),
        "reduction": "item" if of_accelerate else "batch",
        "loss_weights": {"mae": 1.0, "mse": 1.0, "sc": 1.0},
        "optimizer": component(
            "torch.optim.AdamW",
            lr=to_number(settings.require("optim.lr"), float, f"{settings.path}: optim.lr"),
            betas=settings.get("optim.betas", [0.9, 0.95]),
            weight_decay=settings.number("optim.weight_decay", 0.01),
        ),
        "scheduler": _schedule(settings),
    }


def _schedule(settings: SettingsReader) -> dict[str, Any]:
    """The schedule as the original ran it: with restarts it never applied the warm-up."""
    name = settings.get("optim.scheduler.name", "constant_with_warmup")
    if name == "constant_with_warmup":
        return component(
            "zoo.training.WarmupConstant", warmup_steps=settings.number("optim.scheduler.warmup_steps", 0, int)
        )
    if name == "cosine_with_restarts":
        return component(
            "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts",
            T_0=_required(settings, "optim.scheduler.first_cycle_steps"),
            T_mult=settings.number("optim.scheduler.cycle_mult", 1, int),
            eta_min=settings.number("optim.scheduler.min_lr", 0.0),
        )
    raise ValueError(f"{settings.path}: no schedule for optim.scheduler.name {name!r}")
