"""The objective measures of an evaluation: what they are called, at which rate they are taken, when undefined."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from zoo.audio.analysis.pitch import track_pitch
from zoo.audio.analysis.spectral import multi_resolution_stft
from zoo.audio.evaluation import metrics
from zoo.audio.evaluation.summary import MetricColumn
from zoo.audio.io.resample import resample_array

_SILENCE = 1e-4  # of full scale (-80 dB): a quieter signal holds nothing to compare
_PESQ_SECONDS = 15.0  # P.862's buffers end at 50 utterances of at least 0.4 s with their pause; beyond, C code crashes
_DTW_SECONDS = 20.0  # bounds the memory of the cost matrix: 1,723 x 1,723 frames at 22,050 Hz
_PESQ_FLOOR = 0.999  # below every score of P.862.2: of a result that is silent where the reference is not
_STOI_SECONDS = 0.4  # one segment of 30 frames (Taal et al., section 2)
_NEPER_PER_CENT = math.log(2) / 1200

Compute = Callable[[np.ndarray, np.ndarray, int], Sequence[float]]
Distance = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Metric:
    """Compares a signal with the clean one."""

    measures: tuple[MetricColumn, ...]  # columns, in the order of `compute`
    sample_rate: int | None  # at which it is taken, in Hz; None is the evaluation's
    compute: Compute  # maps restored (T,), clean (T,) float32 and their rate to values; NaN is undefined
    package: str = ""  # of the extra `metrics` that it needs
    follows_level: bool = False  # whether the level of the signal changes the value


class AudioPair:
    """A restored signal (T,) and its clean counterpart (T',), float32, each with its rate in Hz."""

    def __init__(self, restored: np.ndarray, restored_rate: int, clean: np.ndarray, clean_rate: int) -> None:
        self._signals = (restored, restored_rate), (clean, clean_rate)
        self._resampled: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def length_difference_seconds(self) -> float:
        """By how much the restored signal is longer than the clean one."""
        restored, clean = (len(audio) / rate for audio, rate in self._signals)
        return restored - clean

    @property
    def level_db(self) -> float:
        """Level (RMS) of the restored signal above that of the clean one; NaN where one is silent."""
        restored, clean = (float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) for x, _ in self._signals)
        return 20 * math.log10(restored / clean) if restored and clean else math.nan

    def at(self, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
        """Both signals at a rate in Hz, (T,) float32 each, cut to the shorter."""
        if sample_rate not in self._resampled:
            restored, clean = (resample_array(audio, rate, sample_rate) for audio, rate in self._signals)
            length = min(len(restored), len(clean))
            self._resampled[sample_rate] = restored[:length], clean[:length]
        return self._resampled[sample_rate]


def compute_metrics(
    pair: AudioPair, names: Sequence[str], sample_rate: int, match_level: bool = False
) -> dict[str, float]:
    """Take measures of a pair, NaN where undefined; `sample_rate` (Hz) is for metrics without a rate of their own.

    `match_level` brings the signal to the RMS level of the clean one for the metrics that follow the level.
    """
    gain = 10 ** (-pair.level_db / 20) if match_level and math.isfinite(pair.level_db) else 1.0
    values: dict[str, float] = {}
    for name in names:
        metric = METRICS[name]
        rate = metric.sample_rate or sample_rate
        restored, clean = pair.at(rate)
        if is_silent(clean):
            results: Sequence[float] = [math.nan] * len(metric.measures)
        else:
            results = metric.compute(restored * np.float32(gain) if metric.follows_level else restored, clean, rate)
        values |= {measure.name: float(value) for measure, value in zip(metric.measures, results, strict=True)}
    return values


def available_metrics() -> tuple[str, ...]:
    """List the metrics whose packages are installed."""
    return tuple(
        name for name, metric in METRICS.items() if not metric.package or importlib.util.find_spec(metric.package)
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse unknown metrics (ValueError) and those whose package is missing (ImportError)."""
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise ValueError(f"metrics: unknown {', '.join(unknown)}; expected some of {', '.join(METRICS)}")
    missing = [name for name in names if name not in available_metrics()]
    if missing:
        raise ImportError(f"metrics: {', '.join(missing)} need the extra `metrics`: pip install 'zoo[metrics]'")


def is_silent(audio: np.ndarray) -> bool:
    """Whether a signal (T,) holds nothing to compare: no sample, or none of -80 dB of full scale."""
    return not len(audio) or float(np.abs(audio).max()) < _SILENCE


def _split_pair(
    restored: np.ndarray, clean: np.ndarray, rate: int, max_seconds: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    count = math.ceil(len(clean) / (max_seconds * rate))
    return list(zip(np.array_split(restored, count), np.array_split(clean, count), strict=True))


def _mean_defined(values: Sequence[float]) -> float:
    defined = [value for value in values if math.isfinite(value)]
    return sum(defined) / len(defined) if defined else math.nan


def _pesq(restored: np.ndarray, clean: np.ndarray, rate: int) -> list[float]:
    """Wide-band PESQ (ITU-T P.862.2), the mean over segments of at most 15 s in which the reference is not silent."""
    from pesq import PesqError, pesq

    scores = []
    for signal, reference in _split_pair(restored, clean, rate, _PESQ_SECONDS):
        if is_silent(reference):
            continue
        if is_silent(signal):
            scores.append(_PESQ_FLOOR)
            continue
        score = pesq(rate, reference, signal, "wb", on_error=PesqError.RETURN_VALUES)
        scores.append(score if score > 0 else math.nan)  # errors are negative
    return [_mean_defined(scores)]


def _stoi(restored: np.ndarray, clean: np.ndarray, rate: int, extended: bool = False) -> list[float]:
    """STOI of Taal et al. (2011), or with `extended` ESTOI of Jensen and Taal (2016)."""
    from pystoi import stoi

    if len(clean) < _STOI_SECONDS * rate:
        return [math.nan]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # it warns and returns 1e-5 where too few frames hold speech
        try:
            return [stoi(clean, restored, rate, extended=extended)]
        except RuntimeWarning:
            return [math.nan]


def _si_sdr(restored: np.ndarray, clean: np.ndarray, rate: int) -> list[float]:
    return [math.nan if is_silent(restored) else float(metrics.si_sdr(*_tensors(restored, clean)))]


def _mcd(restored: np.ndarray, clean: np.ndarray, rate: int) -> list[float]:
    """MCD along the cheapest alignment of the frames, the mean over segments of at most 20 s."""
    costs = []
    for pair in _split_pair(restored, clean, rate, _DTW_SECONDS):
        first, second = (metrics.mel_cepstra(x[None], rate)[0].T for x in _tensors(*pair))
        exact = "donot_use_mm_for_euclid_dist"  # the matrix product leaves equal frames a distance apart
        costs.append(warp_cost(torch.cdist(first, second, compute_mode=exact).numpy()))
    return [metrics.MCD_SCALE * _mean_defined(costs)]


def warp_cost(distance: np.ndarray) -> float:
    """Compute the mean of distances (rows, columns) along the cheapest monotone path."""
    rows, columns = distance.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    for diagonal in range(2, rows + columns + 1):  # whose cells are independent
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        before = np.minimum(np.minimum(total[i - 1, j], total[i, j - 1]), total[i - 1, j - 1])
        total[i, j] = distance[i - 1, j - 1] + before
    i, j, steps = rows, columns, 0
    while i and j:
        steps += 1
        i, j = min(((i - 1, j - 1), (i - 1, j), (i, j - 1)), key=lambda cell: total[cell])
    return float(total[rows, columns] / steps)


def _pitch(restored: np.ndarray, clean: np.ndarray, rate: int) -> list[float]:
    tracks = [track_pitch(signal, rate) for signal in _tensors(restored, clean)]
    return [float(metrics.f0_rmse_cents(*tracks)) * _NEPER_PER_CENT, float(metrics.vuv_error(*tracks))]


def _distance(restored: np.ndarray, clean: np.ndarray, rate: int, function: Distance) -> list[float]:
    return [float(function(*_tensors(restored, clean)))]


def _tensors(restored: np.ndarray, clean: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.ascontiguousarray(restored)), torch.from_numpy(np.ascontiguousarray(clean))


METRICS: dict[str, Metric] = {
    "pesq": Metric((MetricColumn("pesq_wb", True),), 16000, _pesq, "pesq"),
    "stoi": Metric((MetricColumn("stoi", True),), 10000, _stoi, "pystoi"),
    "estoi": Metric((MetricColumn("estoi", True),), 10000, partial(_stoi, extended=True), "pystoi"),
    "si_sdr": Metric((MetricColumn("si_sdr", True, "dB"),), None, _si_sdr),
    "mcd": Metric((MetricColumn("mcd_dtw", False, "dB"),), None, _mcd),
    "pitch": Metric((MetricColumn("log_f0_rmse", False), MetricColumn("vuv_error", False)), 16000, _pitch),
    "lsd": Metric((MetricColumn("lsd", False),), None, partial(_distance, function=metrics.lsd), follows_level=True),
    "m_stft": Metric(
        (MetricColumn("m_stft", False),), None, partial(_distance, function=multi_resolution_stft), follows_level=True
    ),
}
