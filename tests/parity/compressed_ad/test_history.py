"""The original's history file: every step is ours, in both directions, and its loader gives the same items."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from zoo.common.safe_load import load_foreign_checkpoint
from zoo.compressed_ad import Curriculum, Darkroom
from zoo.compressed_ad.convert.history_files import export_histories, import_histories
from zoo.compressed_ad.data.history import HistoryStore, replace_last_states, to_steps
from zoo.compressed_ad.data.windows import HistoryWindows, StoredSource, WindowOptions

h5py = pytest.importorskip("h5py")

STREAMS, STEPS, WINDOW = 3, 70, 12  # of the original's loader: 24 histories of 8 tasks


@pytest.fixture(scope="module")
def file(folder):
    return folder / "env" / "history_darkroom_PPO_alg-seed42.hdf5"


@pytest.fixture(scope="module")
def golden(folder):
    return load_foreign_checkpoint(folder / "env" / "dataset_golden.pt")


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


def groups(store: HistoryStore) -> tuple[list[int], list[int]]:
    """The original's division: of the file's groups, although these are shuffled goals already."""
    train, test = store.env.split(0, 0.9)
    return train.tolist(), test.tolist()


def items(store: HistoryStore, **options: Any) -> HistoryWindows:
    source = StoredSource(store, groups(store)[0], STREAMS, STEPS)
    return HistoryWindows(source, WINDOW, options=WindowOptions(terminal_next_state="reset", **options))


def test_windows_and_their_order(store: HistoryStore, golden: dict[str, Any]) -> None:
    train = items(store, offset="every")
    assert (train.source.count, train.source.length) == tuple(golden["shape_states"][:2])
    assert len(train) == golden["len_train"] == golden["n_pretrain"]
    test = HistoryWindows(StoredSource(store, groups(store)[1], 1, STEPS), WINDOW, options=WindowOptions("every"))
    assert len(test) == golden["len_test"]
    steps, expected = train.__getitems__(golden["indices"])["steps"], golden["collated"]
    assert torch.equal(steps.states[:, -1], expected["query_states"].long())
    assert torch.equal(steps.actions[:, -1], expected["target_actions"])
    context = steps.slice(0, -1)
    assert torch.equal(F.one_hot(context.actions, 5), expected["actions"])
    for name in ("states", "rewards", "next_states"):
        assert torch.equal(getattr(context, name), expected[name].long()), name


def test_lengths_lie_where_the_originals_do(golden: dict[str, Any]) -> None:
    """Its generator is another one, and so are the shares of what does not fit; the possible lengths are the same."""
    curriculum = Curriculum(WINDOW, 4, [0], [None], [[0.2, 0.3, 0.3, 0.2]])
    short, medium, *others = curriculum.ranges(golden["config"]["max_context_length"] - 1)
    assert short == (11, 11) and medium == (12, 59) and set(others) == {medium}
    assert all(length == 11 or 12 <= length <= 59 for length in golden["cad_lengths_seed5"])
