"""Similarity of voices by the embeddings of a speaker encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from zoo.audio.evaluation.models import MetricModel, resolve_model, split_audio
from zoo.audio.evaluation.summary import MetricColumn


@dataclass(frozen=True)
class SpeakerSimilarity(MetricModel):
    """Cosine of the speaker embeddings of restored and clean recording.

    Args:
        model: hub id or folder of a transformers x-vector model (WavLMForXVector, ...).
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = (MetricColumn("speaker_similarity", True),)
    model: str
    device: str = "cpu"

    @cached_property
    def _model(self) -> Any:
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
        extractor, network = self._model
        inputs = extractor(audio, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
        return network(**inputs).embeddings[0].float().cpu().numpy()
