"""The original's hdf5 layout in both directions, and XLand-MiniGrid's; wrong orders and corrupt files are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.compressed_ad.collecting.collect import EpsilonAlgorithm, collect
from zoo.compressed_ad.convert.history_files import export_histories, import_histories, import_xland, task_order
from zoo.compressed_ad.data.datamodule import EvaluationOptions, HistoryData
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.spaces import Discrete

h5py = pytest.importorskip("h5py")
ROOM = Darkroom(3, 5)


@pytest.fixture
def store(tmp_path):
    collect(ROOM, tmp_path / "store", EpsilonAlgorithm(), episodes=3, streams=2, progress=False)
    return HistoryStore(tmp_path / "store")


@pytest.fixture
def file(tmp_path, store):
    export_histories(store.folder, tmp_path / "out.hdf5")
    return tmp_path / "out.hdf5"


@pytest.mark.parametrize("order", ["row_major", [8, 7, 6, 5, 4, 3, 2, 1, 0]])
def test_there_and_back(tmp_path, store, order):
    export_histories(store.folder, tmp_path / "out.hdf5", order)
    import_histories(tmp_path / "out.hdf5", tmp_path / "again", order, ROOM, shard_size=2)
    again = HistoryStore(tmp_path / "again")
    tasks = again.task_indices.tolist()
    assert tasks == task_order(ROOM, order) and sorted(tasks) == store.task_indices.tolist()
    for number, task in enumerate(tasks):
        assert np.array_equal(store.read(task, slice(None)), again.read(number, slice(None)))


@pytest.mark.parametrize(
    ("env", "order", "message"),
    [
        (ROOM, "shuffled", "rewards differ.*another order"),
        (ROOM, [0, 1, 2], "group 8 has no task"),
        (Darkroom(3, 4), "row_major", "another length than 4"),
        (Darkroom(3, 5, start=(0, 0)), "row_major", "states differ"),
        (Darkroom(3, 5, random_start=True), "row_major", "random_start"),
    ],
)
def test_wrong_environment_or_order_is_refused(tmp_path, file, env, order, message):
    with pytest.raises(ValueError, match=message):
        import_histories(file, tmp_path / "again", order, env)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.hdf5", "store"]


def test_corrupt_file_is_named(tmp_path, file):
    def refused(message, output="again"):
        with pytest.raises(ValueError, match=message):
            import_histories(file, tmp_path / output, "row_major", ROOM)

    refused("holds something else", "store")
    with h5py.File(file, "a") as groups:
        groups["3/actions"][0] = 7
    refused("group 3: expected actions 0 to 4")
    with h5py.File(file, "a") as groups:
        del groups["3/rewards"]
    refused("group 3: no rewards")
    file.write_bytes(file.read_bytes()[:2000])
    refused(r"out\.hdf5: cut, corrupt")


def write_xland(path: Path, streams: int = 3, steps: int = 9) -> dict[int, dict[str, np.ndarray]]:
    rng, groups = np.random.default_rng(0), {}
    with h5py.File(path, "w") as file:
        for group in range(11):
            groups[group] = {
                "states": rng.integers(0, 13 * 12, (streams, steps, 5, 5)).astype(np.uint8),
                "actions": rng.integers(0, 6, (streams, steps)).astype(np.uint8),
                "rewards": rng.random((streams, steps)).astype(np.float16),
                "dones": np.arange(steps)[None] % 4 == np.full((streams, 1), 3),
                "expert_actions": rng.integers(0, 6, (streams, steps)).astype(np.uint8),
            }
            for name, values in groups[group].items():
                file.create_dataset(f"{group}/{name}", data=values, compression="gzip")
            file[str(group)].attrs["ruleset-id"] = 100 + group
    return groups


def test_xland_becomes_histories(tmp_path: Path) -> None:
    groups = write_xland(tmp_path / "trivial.hdf5")
    import_xland(tmp_path / "trivial.hdf5", tmp_path / "store", train_share=0.5)
    store = HistoryStore(tmp_path / "store")
    assert (len(store), store.streams, store.steps) == (11, 3, 8)
    assert store.index["source"]["rulesets"][10] == "110"  # sorted as numbers, not as text
    assert store.env.schema.action == Discrete(6) and store.env.schema.limit == 4
    for task in (2, 10):
        rows, group = store.read(task, slice(None)), groups[task]
        expected = np.stack(np.divmod(group["states"], 12), axis=-1)
        assert np.array_equal(rows["state"], expected[:, :-1])
        assert np.array_equal(rows["next_state"][:, :-1], rows["state"][:, 1:])
        assert np.array_equal(rows["reward"], group["rewards"][:, :-1].astype(np.float32))
        assert np.array_equal(rows["truncated"], group["dones"][:, :-1]) and not rows["terminated"].any()
    options = EvaluationOptions(seeds=0)
    data = HistoryData(store.env, str(tmp_path / "store"), length=6, batch_size=2, evaluation=options)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["steps"].states.shape == (2, 6, 5, 5, 2) and batch["steps"].actions.dtype == torch.int64
