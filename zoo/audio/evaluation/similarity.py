"""Similarity of recordings by the embeddings of speaker encoders and the features of SSL encoders."""

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
        model: hub id or folder of a transformers x-vector model (WavLMForXVector, Wav2Vec2ForXVector, ...); or an ONNX
            file that maps waveforms (1, T), or log-mel filterbanks (1, F, 80) as the ECAPA models of wespeaker
            take them, to embeddings. A TorchScript file is refused: it is a program.
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
        from transformers import AutoModelForAudioXVector

        return _load_encoder(AutoModelForAudioXVector, self.model, self.device)

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Compare with the clean recording; undefined without one."""
        if reference is None:
            return {}
        first, second = self._embedding(restored), self._embedding(reference)
        scale = float(np.linalg.norm(first) * np.linalg.norm(second))
        return {"speaker_similarity": float(first @ second) / scale if scale else math.nan}

    def _embedding(self, audio: np.ndarray) -> np.ndarray:
        embed = self._embed_onnx if self.model.endswith(".onnx") else self._embed
        segments = [embed(part).reshape(-1).astype(np.float64) for part in split_audio(audio, self.sample_rate)]
        return np.mean([each / max(float(np.linalg.norm(each)), 1e-12) for each in segments], axis=0)

    @torch.inference_mode()
    def _embed(self, audio: np.ndarray) -> np.ndarray:
        extractor, network = self._model
        inputs = extractor(audio, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
        return network(**inputs).embeddings[0].float().cpu().numpy()

    def _embed_onnx(self, audio: np.ndarray) -> np.ndarray:
        takes_filterbanks = len(self._model.get_inputs()[0].shape) == 3
        return run_onnx(self._model, _filterbank(audio, self.sample_rate) if takes_filterbanks else audio)


@dataclass(frozen=True)
class SSLDistance(MetricModel):
    """Cosine distance, 0 to 2, of the SSL features of a recording and of the degraded input it was made from.

    A restoration that invents speech is far from its input; so is one that removes much noise: compare with the clean
    recordings' own distances in the report.

    Args:
        model: hub id or folder of a transformers encoder of waveforms (HuBERT, WavLM, wav2vec 2.0). Compared is the
            block at two thirds of its depth, where what is said counts more than how it sounds.
    """

    reference = "degraded"
    measures: ClassVar[tuple[MetricColumn, ...]] = (
        MetricColumn("ssl_distance", False),
        MetricColumn("ssl_distance_worst", False),
    )
    model: str
    device: str = "cpu"

    @cached_property
    def _model(self) -> Any:
        from transformers import AutoModel

        return _load_encoder(AutoModel, self.model, self.device)

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Return the mean and the largest mean of a second; undefined without an input."""
        if reference is None:
            return {}
        samples = max(min(len(restored), len(reference)), self.sample_rate // 10)
        pair = [np.pad(audio[:samples], (0, max(0, samples - len(audio)))) for audio in (restored, reference)]
        first, second = (self._features(audio) for audio in pair)
        distances = 1 - torch.cosine_similarity(first, second, dim=1)
        seconds = max(1, round(samples / self.sample_rate))
        worst = max(float(part.mean()) for part in distances.tensor_split(seconds) if len(part))
        return {"ssl_distance": float(distances.mean()), "ssl_distance_worst": worst}

    @torch.inference_mode()
    def _features(self, audio: np.ndarray) -> torch.Tensor:
        """Features (F, C) of audio (T,)."""
        extractor, network = self._model
        block = max(1, round(network.config.num_hidden_layers * 2 / 3))
        features = []
        for part in split_audio(audio, self.sample_rate):
            inputs = extractor(part, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
            features.append(network(**inputs, output_hidden_states=True).hidden_states[block][0].float().cpu())
        return torch.cat(features)


def _load_encoder(factory: Any, model: str, device: str) -> tuple[Any, Any]:
    """Load the feature extractor and the network of a model of transformers."""
    from transformers import AutoFeatureExtractor

    name, settings = resolve_model(model)
    network = factory.from_pretrained(name, **settings)
    return AutoFeatureExtractor.from_pretrained(name, **settings), network.eval().to(device)


def _filterbank(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """Kaldi's log-mel filterbank (F, 80) of 25 ms frames every 10 ms, less its mean over time."""
    from torchaudio.compliance import kaldi

    waveform = torch.from_numpy(np.ascontiguousarray(audio))[None] * 2.0**15  # Kaldi counts in 16-bit steps
    bank = kaldi.fbank(waveform, num_mel_bins=80, sample_frequency=sample_rate, window_type="hamming")
    return (bank - bank.mean(0)).numpy()
