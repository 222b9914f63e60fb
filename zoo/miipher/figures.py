"""Figures of features and log-mels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from zoo.common.reports import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def features_figure(clean: Tensor, degraded: Tensor, cleaned: Tensor) -> Figure:
    """Draw the features (F, C) of a clip, of its degraded version, and those cleaned; and how far the two are off."""
    clean, degraded, cleaned = (each.float().cpu() for each in (clean, degraded, cleaned))
    mean, scale = clean.mean(0), clean.std(0, correction=0).clamp(min=1e-6)  # encoders have channels of any size
    features = {"clean": clean, "degraded": degraded, "cleaned": cleaned}
    images = {f"features: {title}": ((values - mean) / scale).T for title, values in features.items()}
    curves = {title: (features[title] - clean).abs().mean(1) for title in ("degraded", "cleaned")}
    return _figure(images, "channel", (-3.0, 3.0), curves)


def mels_figure(mels: Mapping[str, Tensor]) -> Figure:
    """Draw log-mels (F, n_mels) by their titles below one another, on the scale of the last."""
    images = {title: mel.float().cpu().T for title, mel in mels.items()}
    *_, last = images.values()
    return _figure(images, "mel band", (float(last.min()), float(last.max())), {})


def _figure(
    images: Mapping[str, Tensor], ylabel: str, scale: tuple[float, float], curves: Mapping[str, Tensor]
) -> Figure:
    """Images (C, F), and below them mean absolute differences (F,) to the clean features."""
    count = len(images) + bool(curves)
    figure = new_figure(8.0, 0.6 + 1.8 * count)
    panels = list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])
    for panel, (title, image) in zip(panels, images.items(), strict=False):
        image_artist = panel.imshow(image, origin="lower", aspect="auto", cmap="magma", vmin=scale[0], vmax=scale[1])
        panel.set(title=title, ylabel=ylabel)
    figure.colorbar(image_artist, ax=panels)
    for title, curve in curves.items():
        panels[-1].plot(curve, label=title)
    if curves:
        panels[-1].set(ylabel="mean |difference|", ylim=(0.0, None))
        panels[-1].legend(loc="upper right")
    panels[-1].set_xlabel("frame")
    return figure
