from pathlib import Path

import numpy as np

from zoo.audio.augment.disturbances import open_noises, open_rirs
from zoo.audio.corpora.cache import build
from zoo.audio.corpora.corpus import cache_folder
from zoo.audio.io import files


def test_validation_hears_other_noise_than_training(tmp_path: Path) -> None:
    ramp = np.linspace(0, 0.5, 16000, dtype=np.float32)
    files.write(tmp_path / "noise" / "a.wav", ramp, 16000)
    build([tmp_path / "noise" / "a.wav"], cache_folder(tmp_path / "cache", tmp_path / "noise", 16000), 16000)
    train, val = (open_noises(tmp_path / "noise", tmp_path / "cache", 16000, training) for training in (True, False))
    assert int(train.lengths[0]) + int(val.lengths[0]) == 16000
    assert train.read(0).max() < val.read(0).min() + 1e-3


def test_noise_and_rooms_can_be_made_in_code(tmp_path: Path) -> None:
    first, second = (open_noises(None, tmp_path, 8000, training).read(0) for training in (True, False))
    assert not np.array_equal(first[:1000], second[:1000])
    assert all(np.isfinite(rir).all() and len(rir) for rir in open_rirs(None, 8000)[:3])
