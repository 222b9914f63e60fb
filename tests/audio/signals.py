"""Signals of which only the shape and the level matter."""

import numpy as np


def noise(*shape: int, level: float = 0.1) -> np.ndarray:
    return (level * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
