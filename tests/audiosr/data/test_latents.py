"""Latents that are kept: the same training bit for bit, computed once, never those of other settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.audiosr.task_parts import AUTOENCODER, RATE, Data, denoiser, task, trainer
from zoo.audiosr.data.datamodule import SuperResolutionData
from zoo.audiosr.data.latents import LatentCache
from zoo.audiosr.data.simulate import Simulation
from zoo.audiosr.nets.frozen import FrozenAutoencoder


def data(**settings: Any) -> SuperResolutionData:
    settings = {"variants": 2, "simulation": Simulation(codec=0.0), **settings}
    return SuperResolutionData(
        sample_rate=RATE, segment_samples=2560, embedded_utterances=6, val_items=1, batch_size=2, **settings
    )


def fit(folder: Path, cache: Path | None, **settings: Any) -> dict[str, Tensor]:
    model = task(denoiser("film"), latent_cache=cache and str(cache))
    trainer(folder, max_steps=7, **settings).fit(model, datamodule=data())
    return model.net.state_dict()


def test_training_is_the_same_bit_for_bit_and_encodes_no_batch(tmp_path: Path, monkeypatch: Any) -> None:
    plain = fit(tmp_path, None)
    assert [path.name for path in tmp_path.iterdir()] == []
    kept = fit(tmp_path, tmp_path / "latents")
    for name, value in plain.items():
        assert torch.equal(kept[name], value), name
    calls, encode = [], FrozenAutoencoder.encode

    def counted(self: FrozenAutoencoder, mel: Tensor) -> Tensor:
        calls.append(len(mel))
        return encode(self, mel)

    monkeypatch.setattr(FrozenAutoencoder, "encode", counted)
    again = fit(tmp_path, tmp_path / "latents")
    assert all(torch.equal(again[name], value) for name, value in plain.items())
    assert len(calls) == 3  # the scale of the latents, and a row to know the shapes by: nothing else


def kept(folder: Path, **settings: Any) -> tuple[LatentCache, list[Any]]:
    asked: list[Any] = []

    def encode(keys: Any) -> dict[str, Tensor]:
        asked.extend(keys)
        return {"target": torch.tensor(keys, dtype=torch.float32)}

    cache = LatentCache(folder, {"seed": 1, **settings}, {"target": (2,)}, items=5, variants=3, group=2)
    cache.rows_per_shard = 4
    cache.fill(encode, 0, 2)
    cache.fill(encode, 1, 2)
    return cache, asked


def test_rows_by_epoch_and_item_are_computed_once_in_whole_groups(tmp_path: Path) -> None:
    cache, asked = kept(tmp_path)
    assert len(asked) == 16 and set(asked) == {(epoch, item) for epoch in range(3) for item in range(5)}
    for epoch in range(7):
        for item in range(5):
            assert cache[epoch, item]["target"].tolist() == [epoch % 3, item]
    assert kept(tmp_path)[1] == []
    assert len(kept(tmp_path, seed=2)[1]) == 16 and len(list(tmp_path.iterdir())) == 2
    (cache.folder / "latents-00001.npy").unlink()
    assert kept(tmp_path)[1] == [(0, 4), (1, 0), (1, 1), (1, 2)]
    (cache.folder / "latents-00001.npy").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"latents-00001\.npy is corrupt"):
        kept(tmp_path)[0][0, 4]
    np.save(cache.folder / "latents-00001.npy", np.zeros(4))
    with pytest.raises(ValueError, match="expected rows of"):
        kept(tmp_path)[0][0, 4]


def test_all_that_decides_the_items_is_known() -> None:
    settings: list[dict[str, Any]] = [
        {}, {"variants": 3}, {"seed": 2}, {"normalize": False}, {"most_gain_db": 6.0},
        {"simulation": Simulation(codec=0.0, order=(2, 9))}, {"blank_ratio_max": 0.5},
    ]  # fmt: skip
    found = []
    for each in settings:
        made = data(**each)
        made.setup("fit")
        found.append(str(made.decided_by()))
    assert len(set(found)) == len(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variants": None}, "drawn anew in every epoch, so nothing computed from them can be kept: set data"),
        ({"cache_mode": "none", "root": True}, "cache_mode is none"),
    ],
)
def test_what_cannot_be_kept_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    made = data(**{**settings, "root": None})
    if "root" in settings:
        made.root = tmp_path
    with pytest.raises(ValueError, match=message):
        made.decided_by()
    with pytest.raises(ValueError, match="variants"):
        data(variants=-1)


def test_other_data_are_refused(tmp_path: Path) -> None:
    model = task(latent_cache=str(tmp_path / "latents"), autoencoder=FrozenAutoencoder(config=AUTOENCODER))
    with pytest.raises(ValueError, match="latent_cache needs data of"):
        trainer(tmp_path, max_steps=1).fit(model, datamodule=Data())
