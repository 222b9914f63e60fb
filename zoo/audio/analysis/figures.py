"""Pictures of sounds: spectrograms and log-mels below one another, and the difference of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from zoo.common.reports import new_figure, to_numpy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECTRUM_WINDOW, SPECTRUM_HOP = 1024, 256  # samples
MAX_COLUMNS = 2000  # of a spectrogram; a longer one takes larger hops
DYNAMIC_RANGE_DB = 90.0
DIFFERENCE_DB = 30.0  # range of a picture of a difference


def plot_spectrograms(
    waveforms: Mapping[str, Tensor | np.ndarray], sample_rate: int, cutoff_hz: float | None = None
) -> Figure:
    """Draw the spectrograms of waveforms (T,) by title in dB below one another, with a dashed line at the cutoff."""
    if not waveforms:
        raise ValueError("plot_spectrograms: expected at least one waveform")
    waves = {title: to_numpy(wave).astype(np.float32).reshape(-1) for title, wave in waveforms.items()}
    levels, top, hop = _measure_levels(waves)
    panels = [(title, level, top) for title, level in levels.items()]
    return _plot_panels(panels, hop / sample_rate, sample_rate / 2000, cutoff_hz)


def plot_spectrogram_difference(
    before: np.ndarray, after: np.ndarray, sample_rate: int, cutoff_hz: float | None = None
) -> Figure:
    """Draw the spectrograms of an input and a result (T,) below one another, and what the result has more or less."""
    samples = min(len(before), len(after))
    levels, top, hop = _measure_levels({"input": before[:samples], "result": after[:samples]})
    first, second = (level.clip(min=top - DYNAMIC_RANGE_DB) for level in levels.values())
    panels = [*((title, level, top) for title, level in levels.items()), ("result - input", second - first, None)]
    return _plot_panels(panels, hop / sample_rate, sample_rate / 2000, cutoff_hz)


def _measure_levels(waves: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float, int]:
    """Compute power in dB (bins, frames) of waveforms (T,), the largest of all, and the hop in samples."""
    hop = max(SPECTRUM_HOP, *(len(wave) // MAX_COLUMNS for wave in waves.values()))
    levels = {}
    for title, wave in waves.items():
        wave = np.nan_to_num(wave, nan=0.0, posinf=0.0, neginf=0.0)
        wave = np.pad(wave, (0, max(SPECTRUM_WINDOW - len(wave), 0)))
        frames = np.lib.stride_tricks.sliding_window_view(wave, SPECTRUM_WINDOW)[::hop]
        power = np.abs(np.fft.rfft(frames * np.hanning(SPECTRUM_WINDOW), axis=1)) ** 2
        levels[title] = 10.0 * np.log10(power.T + 1e-10)
    return levels, max(float(level.max()) for level in levels.values()), hop


def _plot_panels(
    panels: Sequence[tuple[str, np.ndarray, float | None]], hop_seconds: float, top_khz: float, cutoff_hz: float | None
) -> Figure:
    """Draw panels of title, levels in dB and the highest level; None of a difference."""
    figure = new_figure(8.0, 0.6 + 2.2 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (title, level, top) in zip(axes, panels, strict=True):
        low, high = (-DIFFERENCE_DB, DIFFERENCE_DB) if top is None else (top - DYNAMIC_RANGE_DB, top)
        _add_image(figure, panel, level, ("coolwarm" if top is None else "magma", low, high),
                   extent=(0.0, level.shape[1] * hop_seconds, 0.0, top_khz), label="dB")  # fmt: skip
        panel.set(title=title, ylabel="kHz")
        if cutoff_hz is not None:
            panel.axhline(cutoff_hz / 1000, color="k" if top is None else "w", linestyle="--", linewidth=1)
    axes[-1].set_xlabel("seconds")
    return figure


def plot_mels(target: Tensor | np.ndarray, prediction: Tensor | np.ndarray) -> Figure:
    """Draw a target log-mel (n_mels, F), its prediction (n_mels, F') and their difference, cut to the shorter."""
    expected, predicted = to_numpy(target).astype(np.float32), to_numpy(prediction).astype(np.float32)
    if expected.ndim != 2 or predicted.ndim != 2 or len(expected) != len(predicted):
        raise ValueError(f"plot_mels: expected two (n_mels, F) mels, got {expected.shape} and {predicted.shape}")
    frames = min(expected.shape[1], predicted.shape[1])
    expected, predicted = expected[:, :frames], predicted[:, :frames]
    low, high = (float(expected.min()), float(expected.max())) if expected.size else (0.0, 1.0)
    reach = max(high - low, 1e-6) / 2  # half the target's range
    figure = new_figure(8.0, 7.0)
    panels = (
        ("target", expected, ("magma", low, high)),
        ("prediction", predicted, ("magma", low, high)),
        ("prediction - target", predicted - expected, ("coolwarm", -reach, reach)),
    )
    for axes, (title, values, scale) in zip(figure.subplots(3, 1, sharex=True), panels, strict=True):
        _add_image(figure, axes, values, scale)
        axes.set(title=title, ylabel="mel band")
    axes.set_xlabel("frame")
    return figure


def plot_features(values: np.ndarray) -> Figure:
    """Draw a sequence (C, F), each channel less its mean and over its deviation."""
    values = values.astype(np.float32)
    scaled = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True).clip(min=1e-6)
    figure = new_figure(8.0, 3.0)
    axes = figure.subplots()
    _add_image(figure, axes, scaled, ("magma", -3.0, 3.0), label="deviations")
    axes.set(ylabel="channel", xlabel="frame")
    return figure


def _add_image(
    figure: Figure, axes: Any, values: np.ndarray, scale: tuple[str, float, float],
    extent: tuple[float, float, float, float] | None = None, label: str = "",
) -> None:  # fmt: skip
    colours, low, high = scale
    image = axes.imshow(values, origin="lower", aspect="auto", cmap=colours, vmin=low, vmax=high, extent=extent)
    figure.colorbar(image, ax=axes, label=label)
