"""Caching the features of a corpus on disk, so that training need not compute them in every epoch."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.progress import track
from torch import nn

from zoo.common.build import build
from zoo.common.locks import writes_into
from zoo.common.reading.configs import read_config
from zoo.miipher.inference.restore import FeatureExtractor
from zoo.miipher.nets.cleaner import Encoder
from zoo.runs.bulk import BulkRun, Row, plan
from zoo.runs.load import load


def read_encoder(path: Path) -> Encoder:
    """Build the encoder of a recipe (`.yaml`), a run, a checkpoint or an export, in evaluation mode.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when no encoder is described there, or one whose adapters a recipe leaves untrained.
    """
    if path.suffix not in (".yaml", ".yml"):
        inference = load(path)
        encoder = inference.parts().get("encoder")
        if encoder is None:
            raise ValueError(f"{path}: {type(inference).__name__} has no encoder")
        return encoder  # type: ignore[return-value]
    spec = ((read_config(path).get("model") or {}).get("init_args") or {}).get("encoder")
    if spec is None:
        raise ValueError(f"{path}: no model.init_args.encoder; name a recipe of this wing")
    encoder = build(spec, nn.Module)
    if hasattr(encoder, "adapters"):
        raise ValueError(f"{path}: its encoder has adapters, which only a training gives weights: name its run instead")
    return encoder.eval()


@writes_into("output")
def cache_features(input: Path, output: Path, encoder: Path, overwrite: bool = False, device: str = "cpu") -> Row:
    """Write the features of audio as memory-mappable .npy files, for training the vocoder without the encoder.

    The same call again computes only what is missing; manifest.jsonl tells the status of every file.

    Args:
        input: audio file, shard, or folder of them.
        output: folder to write: the same tree of (C, F) float16 files.
        encoder: a recipe (its model.encoder), or a run, checkpoint or export (its trained encoder).
        overwrite: compute also what is finished already.
        device: torch device.

    Returns:
        The summary of `BulkRun.finish`.
    """
    extractor = FeatureExtractor(read_encoder(encoder)).to(torch.device(device)).eval()
    jobs = plan(input, output, extractor.input_suffixes, extractor.output_suffix)
    run = BulkRun(output, overwrite)
    run.begin()
    for job in track(jobs, description=f"features of {input.name}"):
        run.process(extractor, job)
    return run.finish()
