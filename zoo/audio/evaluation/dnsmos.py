"""DNSMOS: predicted scores of speech, background and overall quality."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zoo.audio.evaluation.models import MetricModel, load_onnx, run_onnx
from zoo.audio.evaluation.summary import MetricColumn

_FILE = "sig_bak_ovr.onnx"  # as Microsoft publishes it
_WINDOW_SECONDS = 9.01  # that the model takes, moved by a second
# From the model's outputs to the scale of the listeners, highest power first; of the published evaluation script.
_POLYNOMIALS = {
    "dnsmos_sig": (-0.08397278, 1.22083953, 0.0052439),
    "dnsmos_bak": (-0.13166888, 1.60915514, -0.39604546),
    "dnsmos_ovr": (-0.06766283, 1.11546468, 0.04602535),
}


@dataclass(frozen=True)
class DNSMOS(MetricModel):
    """P.835 scores of speech, background and overall quality, each about 1 to 5.

    Args:
        folder: holds `sig_bak_ovr.onnx`.

    Source: Reddy et al., "DNSMOS P.835" (2022); windows and polynomials of the published evaluation script.
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = tuple(MetricColumn(name, True) for name in _POLYNOMIALS)
    folder: Path

    @cached_property
    def _model(self) -> Any:
        return load_onnx(Path(self.folder) / _FILE)

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Average the scores of the windows; a short recording is repeated until it fills one."""
        if not len(restored):
            return {}
        windows = cut_windows(restored, self.sample_rate)
        raw = np.array([run_onnx(self._model, window).reshape(-1)[:3] for window in windows])
        curves = zip(_POLYNOMIALS.items(), raw.T, strict=True)
        return {name: float(np.polyval(polynomial, values).mean()) for (name, polynomial), values in curves}


def cut_windows(audio: np.ndarray, sample_rate: int) -> list[np.ndarray]:
    """Cut windows (144160,) at starts a second apart, as many as the published script takes."""
    size = int(_WINDOW_SECONDS * sample_rate)
    while len(audio) < size:
        audio = np.concatenate([audio, audio])
    count = int(len(audio) // sample_rate - _WINDOW_SECONDS) + 1
    return [audio[i * sample_rate : i * sample_rate + size] for i in range(max(1, count))]
