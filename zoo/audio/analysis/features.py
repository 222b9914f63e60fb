"""Feature files: mels or other sequences of frames, without pickled objects."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from zoo.common.atomic import replacing
from zoo.common.reading.torch_files import read_torch

FEATURE_SUFFIXES = (".npy", ".pt")


def open_features(path: Path) -> np.ndarray:
    """Map a `.npy` array or `.pt` tensor, (C, F) or (1, C, F), as features (C, F), F > 0, on disk."""
    if not path.is_file():
        raise FileNotFoundError(f"no feature file {path}")
    try:
        if path.suffix.lower() == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            array = read_torch(path, mapped=True).numpy()
    except Exception as error:  # numpy and torch raise many types on damaged files and pickled objects
        raise ValueError(f"{path}: not an array or tensor without pickled objects ({error})") from error
    array = array[0] if array.ndim == 3 and len(array) == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{path}: expected features (C, F), found {tuple(array.shape)}")
    return array


def write_features(target: Path, shape: tuple[int, int], dtype: str, pieces: Iterable[np.ndarray]) -> None:
    """Write features piece by piece, frame after frame (Fortran order): a crop of a mapped file is one read.

    Args:
        target: `.npy` file, which appears only when it is whole.
        shape: (C, F).
        dtype: of the file, such as "<f4".
        pieces: (C, n), of F frames in total.

    Raises:
        ValueError: when a value does not fit into the type.
    """
    layout = {"descr": dtype, "fortran_order": True, "shape": shape}
    with replacing(target) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, layout)
        for piece in pieces:
            with np.errstate(over="ignore"):  # infinity is what the next line looks for
                cast = np.ascontiguousarray(piece.T, dtype=dtype)
            if not np.isfinite(cast).all():
                raise ValueError(
                    f"{target}: features of up to {np.abs(piece).max():g} do not fit into {cast.dtype.name}"
                )
            file.write(cast.tobytes())
