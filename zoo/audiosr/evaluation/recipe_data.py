"""The data of a recipe or a run, without its model."""

from __future__ import annotations

from pathlib import Path

import lightning as L

from zoo.audiosr.data.datamodule import SuperResolutionData
from zoo.common.build import build
from zoo.common.configs import load_run_config


def read_data(config: Path, from_run: bool = False) -> SuperResolutionData:
    """Build the datamodule of a recipe alone; nothing is decoded yet. See `load_run_config` for `from_run`."""
    spec = load_run_config(config, from_run=from_run).get("data")
    data = None if spec is None else build(spec, L.LightningDataModule)
    if not isinstance(data, SuperResolutionData):
        raise ValueError(f"{config}: expected data of {SuperResolutionData.__name__}, found {type(data).__name__}")
    return data


def cache(config: Path) -> None:
    """Decode a recipe's corpus into its memory-mapped cache before training; a killed call is resumed.

    Args:
        config: a recipe whose data is AudioSR's.
    """
    data = read_data(config)
    data.prepare_data()
    data.setup("fit")
    print(f"{config}: ready, {len(data.train_set)} clips for training, {len(data.val_set)} items for validation")
