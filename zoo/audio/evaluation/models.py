"""Models that score audio in an evaluation; each loads what the user names, when it is first needed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zoo.audio.evaluation.summary import MetricColumn
from zoo.runs.pretrained_files import check_pretrained

_MAX_SECONDS = 30.0  # longer audio is scored in equal segments: attention is quadratic, and models learned on clips


@dataclass(frozen=True)
class MetricModel(ABC):
    """Scores recordings at a sample rate in Hz.

    Fields are plain values; models are loaded by `load` and stay out of pickles.
    """

    sample_rate: ClassVar[int] = 16000
    measures: ClassVar[tuple[MetricColumn, ...]]

    @cached_property
    def _model(self) -> Any:
        """What scores, opened by the first use."""
        raise NotImplementedError(f"{type(self).__name__} has no model")

    def load(self) -> None:
        """Load the model unless it is loaded; a missing one is an OSError, a missing package an ImportError."""
        _ = self._model

    @abstractmethod
    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Score audio (T,) float32 at `sample_rate` by its clean counterpart (T',) and its text, where they are known.

        Returns values by the names of `measures` and of their weights; a missing one is undefined.
        """

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class MOSPredictor(MetricModel):
    """A predicted mean opinion score: UTMOS and its like.

    Args:
        model: ONNX file that maps waveforms (1, T) float32 at 16 kHz to one number.
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = (MetricColumn("mos", True),)
    model: Path

    @cached_property
    def _model(self) -> Any:
        return load_onnx(self.model)

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Average the scores of the segments."""
        segments = split_audio(restored, self.sample_rate)
        return {"mos": float(np.mean([run_onnx(self._model, segment).mean() for segment in segments]))}


def resolve_model(model: str) -> tuple[str, dict[str, Any]]:
    """Check a hub id or folder of transformers; returns it and the other arguments of `from_pretrained`.

    Raises:
        FileNotFoundError: for a path at which there is no folder.
        ValueError: when its files would make transformers download or run code.
    """
    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        raise FileNotFoundError(f"{model}: no such folder of a transformers model")
    check_pretrained(model, None)
    return model, {"trust_remote_code": False}


def split_audio(audio: np.ndarray, sample_rate: int) -> Sequence[np.ndarray]:
    """Split audio (T,) into equal segments (n,) of at most 30 s."""
    return np.array_split(audio, max(1, math.ceil(len(audio) / (_MAX_SECONDS * sample_rate))))


def load_onnx(path: Path) -> Any:
    """Open an ONNX file on the CPU; what is no model is a ValueError."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"{path}: ONNX models need the extra `export`: pip install 'zoo[export]'") from error
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such ONNX file")
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors are direct children of Exception
        raise ValueError(f"{path}: no ONNX model that onnxruntime can run ({error})") from error


def run_onnx(session: Any, value: np.ndarray) -> np.ndarray:
    """Run a model of one input on a batch of one float32 array and return its first output."""
    first, batch = session.get_inputs()[0], np.ascontiguousarray(value[None], dtype=np.float32)
    try:
        return np.asarray(session.run(None, {first.name: batch})[0])
    except Exception as error:
        raise ValueError(f"the ONNX model takes {first.shape}, got {batch.shape} ({error})") from error
