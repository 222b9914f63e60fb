"""The original's hdf5 layout, there and back; a wrong order of the tasks is refused."""

import numpy as np
import pytest

from zoo.compressed_ad.collecting.collect import Epsilon, collect
from zoo.compressed_ad.convert.hdf5 import export_histories, import_histories, task_order
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom, DarkroomPermuted

h5py = pytest.importorskip("h5py")


@pytest.fixture
def store(tmp_path):
    collect(Darkroom(3, 5), tmp_path / "store", Epsilon(), episodes=3, streams=2, progress=False)
    return HistoryStore(tmp_path / "store")


def imported(*args, **kwargs):
    import_histories(*args, **kwargs)
    return HistoryStore(args[1])


def same(first, second):
    position = second.task_indices.tolist()
    return sorted(position) == sorted(first.task_indices.tolist()) and all(
        np.array_equal(first.read(i, slice(None)), second.read(position.index(task), slice(None)))
        for i, task in enumerate(first.task_indices.tolist())
    )


@pytest.mark.parametrize("order", ["row_major", "shuffled", [8, 7, 6, 5, 4, 3, 2, 1, 0]])
def test_there_and_back(tmp_path, store, order):
    export_histories(tmp_path / "store", tmp_path / "out.hdf5", order)
    again = imported(tmp_path / "out.hdf5", tmp_path / "again", order, store.env, shard_size=2)
    assert same(store, again)
    assert again.task_indices.tolist() == task_order(store.env, order)


@pytest.mark.parametrize("env", [DarkKeyToDoor(2, 6), DarkroomPermuted(3, 6)])
def test_every_environment(tmp_path, env):
    collect(env, tmp_path / "store", Epsilon(), episodes=2, streams=2, progress=False)
    store = HistoryStore(tmp_path / "store")
    export_histories(tmp_path / "store", tmp_path / "out.hdf5")
    assert same(store, imported(tmp_path / "out.hdf5", tmp_path / "again", "row_major", env))


def test_layout_of_the_original(tmp_path, store):
    export_histories(tmp_path / "store", tmp_path / "out.hdf5")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert {name: (data.shape, data.dtype.str) for name, data in file["4"].items()} == {
            "states": ((15, 2, 2), "<i4"),
            "actions": ((15, 2), "<i4"),
            "rewards": ((15, 2), "<i4"),
            "next_states": ((15, 2, 2), "<i4"),
            "dones": ((15, 2), "|b1"),
        }
        # The reset cell follows an episode, not the cell where its last step led.
        assert np.array_equal(file["0/next_states"][:-1], file["0/states"][1:])
        assert file["0/dones"][:, 0].nonzero()[0].tolist() == [4, 9, 14]


@pytest.mark.parametrize(
    ("env", "order", "message"),
    [
        (Darkroom(3, 5), "shuffled", "rewards differ.*another order"),
        (Darkroom(3, 5), [0, 1, 2], "group 8 has no task"),
        (Darkroom(3, 5), "sorted", "order is row_major"),
        (Darkroom(3, 4), "row_major", "another length than 4"),
        (Darkroom(3, 5, start=(0, 0)), "row_major", "states differ"),
        (Darkroom(3, 5, random_start=True), "row_major", "random_start"),
    ],
)
def test_wrong_environment_or_order_is_refused(tmp_path, store, env, order, message):
    export_histories(tmp_path / "store", tmp_path / "out.hdf5")
    with pytest.raises(ValueError, match=message):
        import_histories(tmp_path / "out.hdf5", tmp_path / "again", order, env)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.hdf5", "store"]


def test_damaged_file_is_named(tmp_path, store):
    path = tmp_path / "out.hdf5"
    export_histories(tmp_path / "store", path)
    with h5py.File(path, "a") as file:
        del file["3/rewards"]
    with pytest.raises(ValueError, match="group 3: no rewards"):
        import_histories(path, tmp_path / "again", "row_major", store.env)
    with h5py.File(path, "a") as file:
        file["3/rewards"] = np.zeros((15, 2), dtype=np.int32)
        file["3/actions"][0] = 7
    with pytest.raises(ValueError, match="group 3: expected actions 0 to 4"):
        import_histories(path, tmp_path / "again", "row_major", store.env)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"out\.hdf5: cut, damaged"):
        import_histories(path, tmp_path / "again", "row_major", store.env)
    with pytest.raises(FileNotFoundError, match=r"none\.hdf5"):
        import_histories(tmp_path / "none.hdf5", tmp_path / "again", "row_major", store.env)


def test_full_folder_is_refused(tmp_path, store):
    export_histories(tmp_path / "store", tmp_path / "out.hdf5")
    with pytest.raises(ValueError, match="holds something else"):
        import_histories(tmp_path / "out.hdf5", tmp_path / "store", "row_major", store.env)


def test_group_without_reward_is_mentioned(tmp_path, caplog):
    env = Darkroom(5, 2)  # the corners are too far away
    collect(env, tmp_path / "store", Epsilon(), tasks=[0, 12], episodes=2, streams=1, progress=False)
    export_histories(tmp_path / "store", tmp_path / "out.hdf5")
    assert "23 of 25 tasks" in caplog.text
    store = imported(tmp_path / "out.hdf5", tmp_path / "again", "row_major", env)
    assert "group 0: no history has a reward" in caplog.text
    assert store.task_indices.tolist() == [0, 12]
