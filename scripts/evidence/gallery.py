"""Files of the gallery: what went into a demo's model and what came out, below `<seed's folder>/gallery`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from zoo.audio.analysis.figures import plot_spectrograms
from zoo.audio.io import files

FOLDER = "gallery"
PICTURE_DPI = 60


def save_sounds(
    root: Path, name: str, sounds: Mapping[str, np.ndarray], sample_rate: int, dpi: int = PICTURE_DPI
) -> None:
    """Write waveforms (T,) as `<name>_<title>.mp3` and their spectrograms below one another as `<name>.png`."""
    for title, sound in sounds.items():
        files.write(root / FOLDER / f"{name}_{title}.mp3", sound, sample_rate)
    plot_spectrograms(sounds, sample_rate).savefig(root / FOLDER / f"{name}.png", dpi=dpi)
