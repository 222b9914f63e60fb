"""Sample rates and lengths of signals: a band-limited sinc for tensors, soxr for arrays and streams."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import soxr
import torch
import torchaudio
from torch import Tensor, nn

from zoo.common.checks import check_positive

# Zero crossings, roll-off and Kaiser beta of the "kaiser_best" filter of the resampy package, as given in torchaudio's
# resampling tutorial; torchaudio's own default of 6 crossings leaks audibly.
_ZERO_CROSSINGS, _ROLLOFF, _BETA = 64, 0.9475937167399596, 14.769656459379492


@lru_cache(maxsize=64)
def _resampler(source_rate: int, target_rate: int, device: torch.device) -> nn.Module:
    # A kernel born in inference mode (validation) could never be used in training again.
    with torch.inference_mode(False), torch.no_grad():
        return torchaudio.transforms.Resample(
            source_rate, target_rate, "sinc_interp_kaiser", _ZERO_CROSSINGS, _ROLLOFF, _BETA
        ).to(device)


def resample(x: Tensor, source_rate: int, target_rate: int) -> Tensor:
    """Resample (..., T) on its device, differentiably; in float32 also under autocast, of the same dtype.

    Source: J. O. Smith, "Digital Audio Resampling", windowed-sinc interpolation.
    """
    check_positive(source_rate=source_rate, target_rate=target_rate)
    if source_rate == target_rate:
        return x
    with torch.autocast(x.device.type, enabled=False):
        return _resampler(source_rate, target_rate, x.device)(x.float()).to(x.dtype)


def resample_array(x: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample (T,) or (C, T) with soxr, float32; the length is within one sample of the exact ratio."""
    check_positive(source_rate=source_rate, target_rate=target_rate)
    x = np.asarray(x, dtype=np.float32)
    if source_rate == target_rate:
        return x
    return np.ascontiguousarray(soxr.resample(np.ascontiguousarray(x.T), source_rate, target_rate).T)


def match_array_length(audio: np.ndarray, samples: int) -> np.ndarray:
    """Give a signal (T,) an exact length: what is too much is cut, what is missing is zero."""
    return np.pad(audio[:samples], (0, max(samples - len(audio), 0)))
