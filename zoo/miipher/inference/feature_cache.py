"""Caching the features of a corpus on disk, so that training need not compute them in every epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from zoo.common.build import build
from zoo.common.configs import load_run_config
from zoo.common.environment import local_device
from zoo.common.registry import public_name
from zoo.common.reports import Row
from zoo.common.tensors import state_digest
from zoo.miipher.inference.restore import FeatureExtractor
from zoo.miipher.nets.cleaner import Encoder
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.components import is_export
from zoo.runs.inference.predict import content_digest, list_input_files, predict_files
from zoo.runs.load import load


def read_encoder(path: Path) -> Encoder:
    """Build the encoder of a recipe (`.yaml`), a run, a checkpoint or an export, in evaluation mode.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when no encoder is described there, or one whose adapters a recipe leaves untrained.
    """
    if path.suffix not in (".yaml", ".yml"):
        inference = load(path)
        encoder = inference.modules().get("encoder")
        if encoder is None:
            raise ValueError(f"{path}: {type(inference).__name__} has no encoder")
        return encoder  # type: ignore[return-value]
    encoder = build(read_encoder_spec(path), nn.Module)
    if hasattr(encoder, "adapters"):
        raise ValueError(f"{path}: its encoder has adapters, which only a training gives weights: name its run instead")
    return encoder.eval()


def read_encoder_spec(recipe: Path) -> dict[str, Any]:
    """The description of a recipe's encoder.

    Raises:
        ValueError: when the recipe has none.
    """
    spec = ((load_run_config(recipe).get("model") or {}).get("init_args") or {}).get("encoder")
    if spec is None:
        raise ValueError(f"{recipe}: no model.init_args.encoder; name a recipe of Miipher")
    return spec


def cache_features(
    input: Path,
    output: Path,
    encoder: Path,
    overwrite: bool = False,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
) -> Row:
    """Write the features of audio as memory-mappable .npy files, for training the vocoder without the encoder.

    The same call again computes only what is missing; manifest.jsonl tells the status of every file.

    Args:
        input: audio file, or folder of them.
        output: folder to write: the same tree of (C, F) float16 files.
        encoder: a recipe (its model.encoder), or a run, checkpoint or export (its trained encoder).
        overwrite: compute also what is finished already.
        device: torch device.
        rank: of this process.
        world_size: processes that share the files.

    Returns:
        The summary, as `predict_files` gives it.
    """
    if encoder.suffix in (".yaml", ".yml"):
        made = read_encoder(encoder)
        options, digest = {"encoder": read_encoder_spec(encoder)}, state_digest(made.state_dict())
    else:
        path = encoder if is_export(encoder) else find_checkpoint(encoder)
        made, options, digest = read_encoder(path), {}, content_digest(path)
    extractor = FeatureExtractor(made).to(local_device(device)).eval()
    files = list_input_files(input, output, extractor.input_suffixes, extractor.output_suffix)
    settings = {"checkpoint": digest, "inference": public_name(FeatureExtractor), "options": options}
    return predict_files(extractor, files, output, settings, overwrite, rank, world_size)
