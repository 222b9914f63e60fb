"""The original's history file: every step is ours, under the right goals, in both directions."""

import numpy as np
import pytest
import torch

from tests.conftest import reference_folder
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.compressed_ad.convert.history_files import export_histories, import_histories
from zoo.compressed_ad.data.history import HistoryStore, replace_last_states, to_steps
from zoo.compressed_ad.envs.grids import Darkroom

h5py = pytest.importorskip("h5py")

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def folder():
    return reference_folder("compressed_ad") / "env"


@pytest.fixture(scope="module")
def file(folder):
    return folder / "history_darkroom_PPO_alg-seed42.hdf5"


@pytest.fixture(scope="module")
def golden(folder):
    return load_foreign_checkpoint(folder / "dataset_golden.pt")


@pytest.fixture(scope="module")
def env(golden):
    return Darkroom(golden["config"]["grid_size"], golden["config"]["horizon"])


@pytest.fixture(scope="module")
def store(file, env, tmp_path_factory):
    folder = tmp_path_factory.mktemp("history") / "store"
    import_histories(file, folder, "shuffled", env, shard_size=4)
    return HistoryStore(folder)


def test_groups_have_the_goals_of_the_original(store, golden):
    assert np.array_equal(store.tasks.numpy(), golden["hdf5_group_goals"])


def test_steps_are_those_of_the_file(store, file):
    with h5py.File(file) as groups:
        for task in range(len(store)):
            steps = replace_last_states(to_steps(store.read(task, slice(None)), store.env.schema), store.env.start_cell)
            for name, values in zip(steps._fields, steps, strict=True):
                assert np.array_equal(values.transpose(0, 1).numpy(), groups[f"{task}/{name}"][()])


def test_terminal_state_is_the_true_one(store):
    steps = to_steps(store.read(0, slice(None)), store.env.schema)
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]])
    expected = (steps.states + moves[steps.actions]).clamp(0, store.env.grid_size - 1)
    assert torch.equal(steps.next_states, expected)
    assert not torch.equal(expected, replace_last_states(steps, store.env.start_cell).next_states)


def test_there_and_back(store, file, tmp_path):
    export_histories(store.folder, tmp_path / "back.hdf5", "shuffled")
    with h5py.File(file) as first, h5py.File(tmp_path / "back.hdf5") as second:
        assert set(first) == set(second)
        for group in first:
            assert set(first[group]) == set(second[group])
            for name, data in first[group].items():
                again = second[group][name]
                assert (again.dtype, again.compression, again.chunks) == (data.dtype, data.compression, data.chunks)
                assert np.array_equal(again[()], data[()])


def test_wrong_order_is_refused(file, env, tmp_path):
    with pytest.raises(ValueError, match=r"rewards differ.*another order"):
        import_histories(file, tmp_path / "store", "row_major", env)
    with pytest.raises(ValueError, match=r"rewards differ.*another order"):
        import_histories(file, tmp_path / "store", "shuffled", env, split_seed=1)
    assert not list(tmp_path.iterdir())
