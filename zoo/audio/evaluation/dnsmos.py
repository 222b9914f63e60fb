"""DNSMOS: predicted scores of speech, background and overall quality."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zoo.audio.evaluation.models import MetricModel, load_onnx, run_onnx
from zoo.audio.evaluation.summary import MetricColumn

_PRIMARY, _P808 = "sig_bak_ovr.onnx", "model_v8.onnx"  # as Microsoft publishes them
_WINDOW_SECONDS = 9.01  # that the models take, moved by a second
_P808_HOP = 160  # samples between the frames of the P.808 model
# From the model's outputs to the scale of the listeners, highest power first; of the published evaluation script.
_SIG = (-0.08397278, 1.22083953, 0.0052439)
_BAK = (-0.13166888, 1.60915514, -0.39604546)
_OVR = (-0.06766283, 1.11546468, 0.04602535)


@dataclass(frozen=True)
class DNSMOS(MetricModel):
    """P.835 scores of speech, background and overall quality, and the P.808 score, each about 1 to 5.

    Args:
        folder: holds `sig_bak_ovr.onnx`, and `model_v8.onnx` for the P.808 score (undefined without it).

    Source: Reddy et al., "DNSMOS P.835" (2022); windows, polynomials and mel input of the published evaluation script.
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = tuple(
        MetricColumn(f"dnsmos_{name}", True) for name in ("sig", "bak", "ovr", "p808")
    )
    folder: Path

    @cached_property
    def _model(self) -> tuple[Any, Any]:
        p808 = Path(self.folder) / _P808
        return load_onnx(Path(self.folder) / _PRIMARY), load_onnx(p808) if p808.exists() else None

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """Average the scores of the windows; a short recording is repeated until it fills one."""
        if not len(restored):
            return {}
        windows = cut_windows(restored, self.sample_rate)
        primary, p808 = self._model
        raw = np.array([run_onnx(primary, window).reshape(-1)[:3] for window in windows])
        curves = (("sig", _SIG), ("bak", _BAK), ("ovr", _OVR))
        values = {f"dnsmos_{name}": float(np.polyval(c, raw[:, i]).mean()) for i, (name, c) in enumerate(curves)}
        if p808 is not None:
            values["dnsmos_p808"] = float(np.mean([run_onnx(p808, mel_input(window)).mean() for window in windows]))
        return values


def cut_windows(audio: np.ndarray, sample_rate: int) -> list[np.ndarray]:
    """Cut windows (144160,) at starts a second apart, as many as the published script takes."""
    size = int(_WINDOW_SECONDS * sample_rate)
    while len(audio) < size:
        audio = np.concatenate([audio, audio])
    count = int(len(audio) // sample_rate - _WINDOW_SECONDS) + 1
    return [audio[i * sample_rate : i * sample_rate + size] for i in range(max(1, count))]


@lru_cache(maxsize=1)
def _mel_power() -> Any:
    from torchaudio.transforms import MelSpectrogram

    return MelSpectrogram(
        16000, n_fft=321, hop_length=_P808_HOP, n_mels=120, norm="slaney", mel_scale="slaney", pad_mode="constant"
    )


def mel_input(window: np.ndarray) -> np.ndarray:
    """Mel power (900, 120) in dB below the loudest cell, scaled to [-1, 1], as the P.808 model takes it."""
    import torch

    with torch.no_grad():
        power = _mel_power()(torch.from_numpy(np.ascontiguousarray(window[:-_P808_HOP]))).clamp(min=1e-10)
    decibels = 10 * torch.log10(power)
    decibels = (decibels - decibels.max()).clamp(min=-80.0)
    return ((decibels + 40) / 40).T.numpy()
