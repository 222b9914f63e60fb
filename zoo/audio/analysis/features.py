"""Feature files: mels or other sequences of frames, without pickled objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from zoo.common.atomic_files import replace_atomically

FEATURE_SUFFIXES = (".npy", ".pt")
MAX_FRAME_DIFFERENCE = 1  # front ends round the number of frames differently


def load_features(path: Path) -> np.ndarray:
    """Map a `.npy` array or `.pt` tensor, (C, F) or (1, C, F), as features (C, F), F > 0, on disk."""
    if not path.is_file():
        raise FileNotFoundError(f"no feature file {path}")
    try:
        if path.suffix.lower() == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            array = torch.load(path, map_location="cpu", weights_only=True, mmap=True).numpy()
    except Exception as error:  # numpy and torch raise many types on damaged files and pickled objects
        raise ValueError(f"{path}: not an array or tensor without pickled objects ({error})") from error
    array = array[0] if array.ndim == 3 and len(array) == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{path}: expected features (C, F), found {tuple(array.shape)}")
    return array


def check_features(path: Path, shape: Sequence[int], frames: int, channels: int | None = None) -> None:
    """Refuse the shape of a feature file that does not fit the frames of its audio, give or take one, or the net."""
    if channels not in (None, shape[0]) or abs(shape[1] - frames) > MAX_FRAME_DIFFERENCE:
        expected = f"({'any' if channels is None else channels}, {frames})"
        raise ValueError(
            f"{path}: found features of shape {tuple(shape)}, expected (C, F) = {expected} for its audio, F within one "
            "frame; transpose (F, C)"
        )


def read_frames(path: Path, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Read frames `start` to `stop` of a feature file, (C, n) float32, a copy; NaN and infinity are a ValueError."""
    features = np.array(load_features(path)[:, start:stop], dtype=np.float32)
    if not np.isfinite(features).all():
        raise ValueError(f"{path}: NaN or infinite features in frames {start} to {start + features.shape[1] - 1}")
    return features


def write_features(target: Path, shape: tuple[int, int], dtype: str, pieces: Iterable[np.ndarray]) -> None:
    """Write features piece by piece, frame after frame (Fortran order): a crop of a mapped file is one read.

    Args:
        target: `.npy` file, which appears only when it is complete.
        shape: (C, F).
        dtype: of the file, such as "<f4"; a value that does not fit is a ValueError.
        pieces: (C, n), of F frames in total.
    """
    channels, frames = shape
    written = 0
    layout = {"descr": dtype, "fortran_order": True, "shape": shape}
    with replace_atomically(target) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, layout)
        for piece in pieces:
            written += piece.shape[1]
            if len(piece) != channels or written > frames:
                raise ValueError(f"{target}: expected features {shape}, a piece {piece.shape} goes to frame {written}")
            with np.errstate(over="ignore"):  # infinity is what the next line looks for
                cast = np.ascontiguousarray(piece.T, dtype=dtype)
            if not np.isfinite(cast).all():
                raise ValueError(
                    f"{target}: features of up to {np.abs(piece).max():g} do not fit into {cast.dtype.name}"
                )
            file.write(cast.tobytes())
        if written != frames:
            raise ValueError(f"{target}: expected features {shape}, got {written} frames")
