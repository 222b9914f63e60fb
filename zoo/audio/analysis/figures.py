"""Pictures of sounds: spectrograms and log-mels below one another, and how far two are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from zoo.common.reports import DPI, new_figure, to_numpy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECTRUM_WINDOW, SPECTRUM_HOP = 1024, 256  # samples
MOST_COLUMNS = 2000  # of a spectrogram; a longer one takes larger hops
DYNAMIC_RANGE_DB = 90.0
DIFFERENCE_DB = 30.0  # what a picture of a difference reaches


def plot_spectrograms(
    waveforms: Mapping[str, Tensor | np.ndarray], sample_rate: int, cutoff_hz: float | None = None
) -> Figure:
    """Draw the spectrograms of some waveforms in dB below one another, on one scale.

    Args:
        waveforms: title -> (T,) floats; leading axes of size 1 are dropped.
        sample_rate: in Hz, of all.
        cutoff_hz: where a line is image, e.g. the bandwidth of an input.

    Returns:
        A figure outside of pyplot, as of `plot_mels`.

    Raises:
        ValueError: when there is none.
    """
    if not waveforms:
        raise ValueError("plot_spectrograms: expected at least one waveform")
    waves = {title: to_numpy(wave).astype(np.float32).reshape(-1) for title, wave in waveforms.items()}
    return _spectra(waves, sample_rate, cutoff_hz, False)


def plot_spectrogram_difference(
    before: np.ndarray, after: np.ndarray, sample_rate: int, cutoff_hz: float | None = None
) -> Figure:
    """Draw the spectrograms of an input and a result (T,) below one another, and what the result has more or less."""
    samples = min(len(before), len(after))
    return _spectra({"input": before[:samples], "result": after[:samples]}, sample_rate, cutoff_hz, True)


def _spectra(
    waves: Mapping[str, np.ndarray], sample_rate: int, cutoff_hz: float | None, with_difference: bool
) -> Figure:
    from matplotlib.figure import Figure

    hop = max(SPECTRUM_HOP, *(len(wave) // MOST_COLUMNS for wave in waves.values()))
    levels = {title: _decibels(wave, hop) for title, wave in waves.items()}
    top = max(float(level.max()) for level in levels.values())
    count = len(levels) + with_difference
    height = 0.6 + 2.2 * count
    figure = Figure(figsize=(8.0, height), dpi=DPI)  # its own margins take half the time of a constrained layout
    figure.subplots_adjust(left=0.08, right=1.03, bottom=0.5 / height, top=1 - 0.3 / height, hspace=0.25)
    axes = list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])
    for panel, (title, level) in zip(axes, levels.items(), strict=False):
        extent = (0.0, level.shape[1] * hop / sample_rate, 0.0, sample_rate / 2000)
        settings: dict[str, Any] = {"vmin": top - DYNAMIC_RANGE_DB, "vmax": top, "cmap": "magma", "extent": extent}
        image = panel.imshow(level, origin="lower", aspect="auto", **settings)
        panel.set_title(title)
    figure.colorbar(image, ax=axes[: len(levels)], label="dB")
    if with_difference:
        first, second = (level.clip(min=top - DYNAMIC_RANGE_DB) for level in levels.values())
        settings |= {"vmin": -DIFFERENCE_DB, "vmax": DIFFERENCE_DB, "cmap": "coolwarm"}
        image = axes[-1].imshow(second - first, origin="lower", aspect="auto", **settings)
        axes[-1].set_title("result - input")
        figure.colorbar(image, ax=axes[-1], label="dB")
    for panel in axes:
        panel.set_ylabel("kHz")
        if cutoff_hz is not None:
            panel.axhline(cutoff_hz / 1000, color="k" if panel is axes[-1] and with_difference else "w", **_DASHED)
    axes[-1].set_xlabel("seconds")
    return figure


_DASHED: dict[str, Any] = {"linestyle": "--", "linewidth": 1}


def _decibels(wave: np.ndarray, hop: int) -> np.ndarray:
    """(T,) to power in dB, (bins, frames)."""
    wave = np.nan_to_num(wave, nan=0.0, posinf=0.0, neginf=0.0)
    wave = np.pad(wave, (0, max(SPECTRUM_WINDOW - len(wave), 0)))
    frames = np.lib.stride_tricks.sliding_window_view(wave, SPECTRUM_WINDOW)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(SPECTRUM_WINDOW), axis=1)) ** 2
    return 10.0 * np.log10(power.T + 1e-10)


def plot_mels(
    target: Tensor | np.ndarray, prediction: Tensor | np.ndarray, titles: Sequence[str] = ("target", "prediction")
) -> Figure:
    """Draw a target log-mel, its prediction and their difference below one another.

    Args:
        target: (n_mels, F) log-mel.
        prediction: (n_mels, F'); both are cut to the shorter one.

    Returns:
        A figure outside of pyplot, so nothing has to be closed.

    Raises:
        ValueError: when the shapes are not (n_mels, F) with the same n_mels.
    """
    target_mel, mel = to_numpy(target).astype(np.float32), to_numpy(prediction).astype(np.float32)
    if target_mel.ndim != 2 or mel.ndim != 2 or len(target_mel) != len(mel):
        raise ValueError(f"plot_mels: expected two (n_mels, F) mels, got {target_mel.shape} and {mel.shape}")
    frames = min(target_mel.shape[1], mel.shape[1])
    target_mel, mel = target_mel[:, :frames], mel[:, :frames]
    low, high = (float(target_mel.min()), float(target_mel.max())) if target_mel.size else (0.0, 1.0)
    reach = max(high - low, 1e-6) / 2  # half the target's range: a larger error is no better to look at
    figure = new_figure(8.0, 7.0)
    first, second = titles
    panels = (
        (first, target_mel, "magma", low, high),
        (second, mel, "magma", low, high),
        (f"{second} - {first}", mel - target_mel, "coolwarm", -reach, reach),
    )
    for axes, (title, values, colours, least, most) in zip(figure.subplots(3, 1, sharex=True), panels, strict=True):
        image = axes.imshow(values, origin="lower", aspect="auto", cmap=colours, vmin=least, vmax=most)
        axes.set(title=title, ylabel="mel band")
        figure.colorbar(image, ax=axes)
    axes.set_xlabel("frame")
    return figure


def plot_features(values: np.ndarray, ylabel: str = "channel") -> Figure:
    """Draw a sequence (C, F), each channel less its mean and over its deviation."""
    values = values.astype(np.float32)
    scaled = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True).clip(min=1e-6)
    figure = new_figure(8.0, 3.0)
    axes = figure.subplots()
    image = axes.imshow(scaled, origin="lower", aspect="auto", cmap="magma", vmin=-3.0, vmax=3.0)
    axes.set(ylabel=ylabel, xlabel="frame")
    figure.colorbar(image, ax=axes, label="deviations")
    return figure
