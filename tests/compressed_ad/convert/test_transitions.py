"""Data sets of XLand-MiniGrid: tiny files in their layout, written here by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.compressed_ad.convert.transitions import import_xland
from zoo.compressed_ad.data.datamodule import HistoryData
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.schema import Discrete

h5py = pytest.importorskip("h5py")
STREAMS, STEPS = 3, 9


def write_xland(path: Path, groups: int = 11, seed: int = 0) -> dict[int, dict[str, np.ndarray]]:
    rng, made = np.random.default_rng(seed), {}
    with h5py.File(path, "w") as file:
        for group in range(groups):
            made[group] = {
                "states": rng.integers(0, 13 * 12, (STREAMS, STEPS, 5, 5)).astype(np.uint8),
                "actions": rng.integers(0, 6, (STREAMS, STEPS)).astype(np.uint8),
                "rewards": rng.random((STREAMS, STEPS)).astype(np.float16),
                "dones": np.arange(STEPS)[None] % 4 == np.full((STREAMS, 1), 3),
                "expert_actions": rng.integers(0, 6, (STREAMS, STEPS)).astype(np.uint8),
            }
            for name, values in made[group].items():
                file.create_dataset(f"{group}/{name}", data=values, compression="gzip")
            file[str(group)].attrs["ruleset-id"] = 100 + group
    return made


def test_xland_becomes_histories(tmp_path: Path) -> None:
    made = write_xland(tmp_path / "trivial.hdf5")
    import_xland(tmp_path / "trivial.hdf5", tmp_path / "store", train_share=0.5)
    store = HistoryStore(tmp_path / "store")
    assert (len(store), store.streams, store.steps) == (11, STREAMS, STEPS - 1)
    assert store.index["source"]["rulesets"][10] == "110"  # sorted as numbers, not as text
    assert store.env.schema.action == Discrete(6) and store.env.schema.limit == 4
    for task in (2, 10):
        rows, group = store.read(task, slice(None)), made[task]
        tile, colour = np.divmod(group["states"], 12)
        assert np.array_equal(rows["state"][..., 0], tile[:, :-1]) and np.array_equal(
            rows["state"][..., 1], colour[:, :-1]
        )
        assert np.array_equal(rows["next_state"][:, :-1], rows["state"][:, 1:])
        assert np.array_equal(rows["reward"], group["rewards"][:, :-1].astype(np.float32))
        assert np.array_equal(rows["truncated"], group["dones"][:, :-1]) and not rows["terminated"].any()
    data = HistoryData(store.env, str(tmp_path / "store"), length=6, batch_size=2, eval_seeds=0)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["steps"].states.shape == (2, 6, 5, 5, 2) and batch["steps"].actions.dtype == torch.int64
    with pytest.raises(ValueError, match="nothing can act in it"):
        store.env.start(store.tasks[:1])
    with pytest.raises(ValueError, match="holds something else"):
        import_xland(tmp_path / "trivial.hdf5", tmp_path / "store")
    (tmp_path / "cut.hdf5").write_bytes((tmp_path / "trivial.hdf5").read_bytes()[:500])
    with pytest.raises(ValueError, match="cut, damaged or no file of XLand"):
        import_xland(tmp_path / "cut.hdf5", tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        import_xland(tmp_path / "none.hdf5", tmp_path / "other")
