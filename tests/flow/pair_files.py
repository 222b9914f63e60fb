"""A folder of pairs as `zoo make-pairs` writes it, without a teacher."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zoo.flow.data.pair_data import CHECKED_VALUES, META_NAME, row_type
from zoo.flow.process.sampling import noise


def write_pairs(folder: Path, shape: Sequence[int], num_classes: int = 0, **metadata: object) -> Path:
    """Write 64 pairs, each sample half of its noise, with labels in turns."""
    rows = np.zeros(64, row_type(shape))
    rows["seed"] = np.arange(64)
    rows["label"] = 1 + np.arange(64) % num_classes if num_classes else 0
    x0 = noise(range(64), shape)
    rows["x0_start"], rows["x1"] = x0.flatten(1)[:, :CHECKED_VALUES].numpy(), 0.5 * x0.numpy()
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "pairs-00000.npy", rows)
    facts = {"count": 64, "shard_size": 64, "sample_shape": list(shape), "num_classes": num_classes, "classes": None}
    (folder / META_NAME).write_text(json.dumps({**facts, **metadata}))
    return folder
