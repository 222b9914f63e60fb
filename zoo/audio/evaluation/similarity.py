"""Similarity of voices by the embeddings of a speaker encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from zoo.audio.evaluation.models import MetricModel, load_onnx, resolve_model, run_onnx, split_audio
from zoo.audio.evaluation.summary import MetricColumn


@dataclass(frozen=True)
class SpeakerSimilarity(MetricModel):
    """Cosine of the speaker embeddings of restored and clean recording.

    Args:
        model: hub id or folder of a transformers x-vector model (WavLMForXVector, ...); or an ONNX file that maps
            waveforms (1, T), or log-mel filterbanks (1, F, 80) as wespeaker's ECAPA models take them, to embeddings.
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = (MetricColumn("speaker_similarity", True),)
    model: str
    device: str = "cpu"

    def __post_init__(self) -> None:
        path = Path(self.model)
        if path.is_file() and path.suffix != ".onnx":
            raise ValueError(f"{path}: expected a folder of a transformers model or an .onnx file")

    @cached_property
    def _model(self) -> Any:
        if self.model.endswith(".onnx"):
            return load_onnx(Path(self.model))
        from transformers import AutoFeatureExtractor, AutoModelForAudioXVector

        name, settings = resolve_model(self.model)
        network = AutoModelForAudioXVector.from_pretrained(name, **settings)
        return AutoFeatureExtractor.from_pretrained(name, **settings), network.eval().to(self.device)

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Compare with the clean recording; undefined without one."""
        if reference is None:
            return {}
        first, second = self._embedding(restored), self._embedding(reference)
        scale = float(np.linalg.norm(first) * np.linalg.norm(second))
        return {"speaker_similarity": float(first @ second) / scale if scale else math.nan}

    def _embedding(self, audio: np.ndarray) -> np.ndarray:
        segments = [self._embed(part).reshape(-1).astype(np.float64) for part in split_audio(audio, self.sample_rate)]
        return np.mean([each / max(float(np.linalg.norm(each)), 1e-12) for each in segments], axis=0)

    @torch.inference_mode()
    def _embed(self, audio: np.ndarray) -> np.ndarray:
        if self.model.endswith(".onnx"):
            takes_filterbanks = len(self._model.get_inputs()[0].shape) == 3
            return run_onnx(self._model, _filterbank(audio, self.sample_rate) if takes_filterbanks else audio)
        extractor, network = self._model
        inputs = extractor(audio, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
        return network(**inputs).embeddings[0].float().cpu().numpy()


def _filterbank(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """Kaldi's log-mel filterbank (F, 80) of 25 ms frames every 10 ms, less its mean over time."""
    from torchaudio.compliance import kaldi

    waveform = torch.from_numpy(np.ascontiguousarray(audio))[None] * 2.0**15  # Kaldi counts in 16-bit steps
    bank = kaldi.fbank(waveform, num_mel_bins=80, sample_frequency=sample_rate, window_type="hamming")
    return (bank - bank.mean(0)).numpy()
