"""Features of files: an encoder on chunks of long audio, and a cache on disk for training the vocoder without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.audio.inference import AudioInference, FeatureInference, FeatureLayout
from zoo.audio.io.chunking import Chunker, check_finite
from zoo.common.build import build
from zoo.common.configs import load_run_config
from zoo.common.environment import local_device
from zoo.common.registry import public_name
from zoo.common.reports import Row
from zoo.common.systems import recipe_paths
from zoo.common.tensors import state_digest
from zoo.miipher.nets.cleaner import Encoder
from zoo.miipher.options import check_padding
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.components import is_export
from zoo.runs.inference.predict import content_digest, list_input_files, predict_files
from zoo.runs.load import load

MIN_FRAMES = 16  # a shorter clip is zero-padded: the encoder's group norm needs some samples for its statistics


class ChunkedEncoder(AudioInference):
    """Base of an encoder on chunks, which lie on its frame grid and are cross-faded (`zoo.audio.io.chunking`)."""

    def __init__(
        self, encoder: Encoder, chunk_seconds: float = 20.0, overlap_seconds: float = 2.0, batch_size: int = 4
    ) -> None:
        check_padding(encoder)
        frame_rate = encoder.sample_rate / encoder.hop_samples
        frames, overlap = round(chunk_seconds * frame_rate), round(overlap_seconds * frame_rate)
        if frames < MIN_FRAMES:
            raise ValueError(f"chunk_seconds {chunk_seconds} is {frames} frames, expected at least {MIN_FRAMES}")
        self.encoder = encoder
        self.chunker = Chunker(frames, overlap, encoder.hop_samples, batch_size)

    def computed_samples(self, samples: int, sample_rate: int) -> int:
        """Count the samples that a clip is computed as, at the encoder's rate."""
        encoder = self.encoder
        return max(math.ceil(samples * encoder.sample_rate / sample_rate), MIN_FRAMES * encoder.hop_samples)

    def features(self, chunks: np.ndarray, valid: Sequence[int]) -> Tensor:
        """Compute features (N, C, F) of chunks (N, T) whose first `valid` samples count."""
        waveforms = torch.from_numpy(np.ascontiguousarray(chunks)).to(self.device)
        lengths = None if min(valid) == chunks.shape[1] else torch.tensor(valid, device=self.device)
        return self.encoder(waveforms, lengths).transpose(1, 2)


class FeatureExtractor(ChunkedEncoder, FeatureInference):
    """An encoder alone: audio files to feature files, cut and cross-faded like a restorer's chunks.

    Files are `.npy`, (C, F) float16, frame after frame, see `zoo.audio.inference.FeatureInference`.

    Args:
        encoder: waveforms (B, T) at 16 kHz to features (B, ceil(T / hop), C).
        chunk_seconds: length of a chunk, > 0.
        overlap_seconds: shared by neighbouring chunks, at most half a chunk.
        batch_size: chunks computed together, >= 1.
    """

    @property
    def layout(self) -> FeatureLayout:
        """The encoder's features, float16."""
        return FeatureLayout(self.encoder.sample_rate, self.encoder.hop_samples, self.encoder.dim, "<f2")

    @torch.inference_mode()
    def compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Encode chunks as features (N, C, F)."""
        return check_finite(self.features(chunks, valid).float().cpu().numpy())


def read_encoder(path: Path) -> tuple[Any, dict[str, Any]]:
    """Build the encoder of a recipe (`.yaml`), a run, a checkpoint or an export; return its settings as well.

    ValueError when no encoder is described there, or one whose adapters a recipe leaves untrained.
    """
    if path.suffix not in (".yaml", ".yml"):
        encoder: Any = load(path).modules().get("encoder")
        if encoder is None:
            raise ValueError(f"{path} has no encoder")
        digest = content_digest(path if is_export(path) else find_checkpoint(path))
        return encoder, {"checkpoint": digest, "options": {}}
    spec = ((load_run_config(path).get("model") or {}).get("init_args") or {}).get("encoder")
    if spec is None:
        raise ValueError(f"{path}: no model.init_args.encoder; name a recipe of Miipher")
    encoder = build(spec, nn.Module)
    if hasattr(encoder, "adapters"):
        raise ValueError(f"{path}: its encoder has adapters, which only a training gives weights: name its run instead")
    return encoder, {"checkpoint": state_digest(encoder.state_dict()), "options": {"encoder": spec}}


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

    The same call again computes only missing ones; manifest.jsonl has the status of every file.

    Args:
        input: audio file, or folder of them.
        output: folder to write: the same tree of (C, F) float16 files.
        encoder: a recipe by name or file (its model.encoder), or a run, checkpoint or export (its trained encoder).
        overwrite: compute also finished ones.
        device: torch device.
        rank: of this process.
        world_size: processes that share the files.
    """
    net, settings = read_encoder(recipe_paths().get(str(encoder), encoder))
    extractor = FeatureExtractor(net).to(local_device(device)).eval()
    paths = list_input_files(input, output, extractor.input_suffixes, extractor.output_suffix)
    settings["inference"] = public_name(FeatureExtractor)
    return predict_files(extractor, paths, output, settings, overwrite, rank, world_size)
