"""Histories, items and their order against the original's loader."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import reference_folder
from zoo.compressed_ad import Curriculum, Darkroom
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.data.windows import HistoryWindows, StoredSource, WindowOptions

pytestmark = pytest.mark.shared
STREAMS, STEPS, WINDOW = 3, 70, 12  # of the original's loader: 24 histories of 8 tasks


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return torch.load(reference_folder("compressed_ad") / "env" / "dataset_golden.pt", weights_only=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HistoryStore:
    pytest.importorskip("h5py")
    from zoo.compressed_ad.convert.history_files import import_histories

    path = reference_folder("compressed_ad") / "env" / "history_darkroom_PPO_alg-seed42.hdf5"
    folder = tmp_path_factory.mktemp("store")
    import_histories(path, folder, "shuffled", Darkroom(3, 5))
    return HistoryStore(folder)


def groups(store: HistoryStore) -> tuple[list[int], list[int]]:
    """The original's division: of the file's groups, although these are shuffled goals already."""
    train, test = store.env.split(0, 0.9)
    return train.tolist(), test.tolist()


def items(store: HistoryStore, **options: Any) -> HistoryWindows:
    source = StoredSource(store, groups(store)[0], STREAMS, STEPS)
    return HistoryWindows(source, WINDOW, options=WindowOptions(terminal_next_state="reset", **options))


def test_the_file_holds_the_goals_in_this_order(store: HistoryStore, golden: dict[str, Any]) -> None:
    assert store.tasks.tolist() == golden["hdf5_group_goals"].tolist()


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
