"""Models that judge audio in an evaluation; each loads what the user gives, when it is first needed.

None of the public models was run here (there is no network): the tests use random models of the same classes and small
ONNX stand-ins with the same inputs and outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zoo.audio.corpora.transcripts import character_errors, normalise, word_errors
from zoo.common.statistics import Measure

_LONGEST_SECONDS = 30.0  # longer audio is judged in equal parts: attention is quadratic, and models learned on clips


@dataclass(frozen=True)
class Judge(ABC):
    """Gives values to a recording. Fields are plain values; models are loaded by `load` and stay out of pickles.

    Attributes:
        sample_rate: of the audio it takes, in Hz.
    """

    sample_rate: ClassVar[int] = 16000
    measures: ClassVar[tuple[Measure, ...]]

    @abstractmethod
    def load(self) -> None:
        """Load the model unless it is loaded.

        Raises:
            OSError: the model is missing or cannot be read.
            ImportError: a package is missing.
        """

    @abstractmethod
    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Judge one recording.

        Args:
            restored: audio (T,) float32 at `sample_rate`.
            clean: its clean counterpart (T',) float32, or None where the recording is itself the clean one.
            text: what is said, or None where that is unknown.

        Returns:
            Values by the names of `measures` and their weights; a missing one is undefined.
        """

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class SpeakerSimilarity(Judge):
    """Cosine of the speaker embeddings of restored and clean recording.

    Args:
        model: hub id or folder of a transformers x-vector model (WavLMForXVector, Wav2Vec2ForXVector, ...); or an ONNX
            file that maps waveforms (1, T), or log-mel filterbanks (1, F, 80) as the ECAPA models of wespeaker
            take them, to embeddings. A TorchScript file is refused: it is a program.
    """

    measures: ClassVar[tuple[Measure, ...]] = (Measure("speaker_similarity", True),)
    model: str
    revision: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        path = Path(self.model)
        if path.is_file() and path.suffix != ".onnx":
            raise ValueError(f"{path}: expected a folder of a transformers model or an .onnx file")

    @cached_property
    def _session(self) -> Any:
        return onnx_session(Path(self.model))

    @cached_property
    def _network(self) -> tuple[Any, Any]:
        from transformers import AutoFeatureExtractor, AutoModelForAudioXVector

        extractor = AutoFeatureExtractor.from_pretrained(self.model, revision=self.revision)
        network = AutoModelForAudioXVector.from_pretrained(self.model, revision=self.revision)
        return extractor, network.eval().to(self.device)

    def load(self) -> None:
        """See `Judge.load`."""
        _ = self._session if self.model.endswith(".onnx") else self._network

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`; undefined without a clean recording."""
        if clean is None:
            return {}
        found, wanted = self._embedding(restored), self._embedding(clean)
        scale = float(np.linalg.norm(found) * np.linalg.norm(wanted))
        return {"speaker_similarity": float(found @ wanted) / scale if scale else math.nan}

    def _embedding(self, audio: np.ndarray) -> np.ndarray:
        embed = self._embed_onnx if self.model.endswith(".onnx") else self._embed
        parts = [embed(part).reshape(-1).astype(np.float64) for part in parts_of(audio, self.sample_rate)]
        return np.mean([part / max(float(np.linalg.norm(part)), 1e-12) for part in parts], axis=0)

    def _embed(self, audio: np.ndarray) -> np.ndarray:
        import torch

        extractor, network = self._network
        with torch.inference_mode():
            inputs = extractor(audio, sampling_rate=self.sample_rate, return_tensors="pt").to(self.device)
            return network(**inputs).embeddings[0].float().cpu().numpy()

    def _embed_onnx(self, audio: np.ndarray) -> np.ndarray:
        if len(self._session.get_inputs()[0].shape) == 3:
            return run_onnx(self._session, _filterbank(audio, self.sample_rate)[None])
        return run_onnx(self._session, audio[None])


@dataclass(frozen=True)
class MOSPredictor(Judge):
    """A predicted mean opinion score: UTMOS and its like, as an ONNX file.

    Args:
        model: ONNX file that maps waveforms (1, T) float32 at 16 kHz to one number.
    """

    measures: ClassVar[tuple[Measure, ...]] = (Measure("mos", True),)
    model: Path

    @cached_property
    def _session(self) -> Any:
        return onnx_session(self.model)

    def load(self) -> None:
        """See `Judge.load`."""
        _ = self._session

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`."""
        scores = [float(run_onnx(self._session, part[None]).mean()) for part in parts_of(restored, self.sample_rate)]
        return {"mos": float(np.mean(scores))}


@dataclass(frozen=True)
class ASR(Judge):
    """Word and character error rate of what a recogniser hears, against the reference text.

    Case, punctuation and forms of width are taken out first. Texts in scripts without spaces have no word error rate.

    Args:
        model: hub id or folder of a transformers recogniser, CTC or sequence-to-sequence.
        language: for recognisers of several languages, e.g. "en"; None leaves it to the model.
    """

    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("wer", False, weight="words"),
        Measure("cer", False, weight="characters"),
    )
    model: str
    revision: str | None = None
    language: str | None = None
    device: str = "cpu"

    @cached_property
    def _recogniser(self) -> Any:
        from transformers import pipeline

        return pipeline("automatic-speech-recognition", self.model, revision=self.revision, device=self.device)

    def load(self) -> None:
        """See `Judge.load`."""
        _ = self._recogniser

    def transcribe(self, audio: np.ndarray) -> str:
        """What the recogniser hears.

        Args:
            audio: (T,) float32 at 16 kHz.
        """
        options: dict[str, Any] = {"generate_kwargs": {"language": self.language}} if self.language else {}
        parts = parts_of(audio, self.sample_rate)
        hypothesis = [self._recogniser({"raw": part, "sampling_rate": self.sample_rate}, **options) for part in parts]
        text = " ".join(part["text"] for part in hypothesis)
        for token in self._recogniser.tokenizer.all_special_tokens:  # CTC recognisers leave theirs in
            text = text.replace(token, "")
        return text

    def __call__(self, restored: np.ndarray, clean: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `Judge.__call__`; undefined without a text."""
        wanted = normalise(text or "")
        if not wanted:
            return {}
        hypothesis = normalise(self.transcribe(restored))
        (word_edits, words), (character_edits, characters) = (
            word_errors(hypothesis, wanted),
            character_errors(hypothesis, wanted),
        )
        values = {"cer": character_edits / characters, "characters": float(characters)}
        return values | ({"wer": word_edits / words, "words": float(words)} if words else {})


def parts_of(audio: np.ndarray, sample_rate: int) -> Sequence[np.ndarray]:
    """Equal parts (n,) of at most 30 s of audio (T,)."""
    return np.array_split(audio, max(1, math.ceil(len(audio) / (_LONGEST_SECONDS * sample_rate))))


def onnx_session(path: Path) -> Any:
    """Open an ONNX file on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no ONNX model.
        ImportError: onnxruntime is missing.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"{path}: ONNX models need the extra `export`: pip install 'zoo[export]'") from error
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such ONNX file")
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _onnx_errors() as error:
        raise ValueError(f"{path}: no ONNX model that onnxruntime can run ({error})") from error


def run_onnx(session: Any, value: np.ndarray) -> np.ndarray:
    """Run a model of one input on a float32 array and return its first output.

    Raises:
        ValueError: the model does not take an array of this shape.
    """
    wanted = session.get_inputs()[0]
    try:
        return np.asarray(session.run(None, {wanted.name: np.ascontiguousarray(value, dtype=np.float32)})[0])
    except _onnx_errors() as error:
        raise ValueError(f"the ONNX model takes {wanted.shape}, got {value.shape} ({error})") from error


def _onnx_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: each is a direct child of Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf, state.RuntimeException


def _filterbank(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """Kaldi's log-mel filterbank (F, 80) of 25 ms frames every 10 ms, less its mean over time."""
    import torch
    from torchaudio.compliance import kaldi

    waveform = torch.from_numpy(np.ascontiguousarray(audio))[None] * 2.0**15  # Kaldi counts in 16-bit steps
    bank = kaldi.fbank(waveform, num_mel_bins=80, sample_frequency=sample_rate, window_type="hamming")
    return (bank - bank.mean(0)).numpy()
