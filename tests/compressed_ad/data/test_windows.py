"""Items are parts of histories, the same for any batch; controls rearrange complete episodes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.compressed_ad.envs.scripted import PACKAGE  # noqa: F401 - registers the environments
from zoo.compressed_ad import Darkroom, EpsilonCurriculum, GymnasiumEnv
from zoo.compressed_ad.collecting.collect import EpsilonAlgorithm, collect
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.data.windows import (
    DemonstratedSource,
    EvaluationBatches,
    HistoryWindows,
    StoredSource,
    WindowOptions,
)
from zoo.compressed_ad.nets.steps import Steps

ENV = Darkroom(3, 4)
EPISODES = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HistoryStore:
    folder = tmp_path_factory.mktemp("windows") / "store"
    collect(ENV, folder, EpsilonAlgorithm(), EPISODES, 2, [5, 0, 3], shard_size=2, progress=False)
    return HistoryStore(folder)


def demonstrated() -> DemonstratedSource:
    return DemonstratedSource(EpsilonCurriculum(ENV, EPISODES), ENV.tasks()[:5])


def windows(source: Any, *args: Any, **options: Any) -> HistoryWindows:
    return HistoryWindows(source, *args, options=WindowOptions(**options))


def equal_steps(one: Steps, other: Steps) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def history(store: HistoryStore, position: int, stream: int) -> Steps:
    return StoredSource(store, [position]).read([stream], [0], torch.arange(store.steps)[None])


def row(steps: Steps, number: int) -> Steps:
    return Steps(*(field[number : number + 1] for field in steps))


def episodes(steps: Steps) -> list[str]:
    """Each complete episode of the first history as text."""
    ends = (steps.dones[0].nonzero()[:, 0] + 1).tolist()
    parts = [steps.slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]
    return [str([field[0].tolist() for field in part]) for part in parts]


def test_fewer_items_than_histories_are_of_all_tasks(store: HistoryStore) -> None:
    """tests/parity has every part of every history."""
    items = windows(StoredSource(store, [2, 0, 1]), None, 3)
    for number, position in enumerate([2, 0, 1]):  # one of both streams of each task
        assert equal_steps(items[number]["steps"], history(store, position, 0))


@pytest.mark.parametrize("offset", ["start", "random"])
def test_an_item_does_not_depend_on_its_batch(offset: str) -> None:
    items = windows(demonstrated(), 7, 20, 3, offset=offset, shuffle_episodes=True)
    batch = items.__getitems__([(2, 4), (0, 9), (2, 19)])["steps"]
    for number, key in enumerate([(2, 4), (0, 9), (2, 19)]):
        assert equal_steps(items[key]["steps"], row(batch, number))
    assert not equal_steps(items[(3, 4)]["steps"], items[(2, 4)]["steps"])
    assert equal_steps(items[4]["steps"], items[(-1, 4)]["steps"])


def test_shuffled_and_skipped_episodes(store: HistoryStore) -> None:
    source, all_episodes = StoredSource(store, [0], 1), episodes(history(store, 0, 0))
    assert episodes(windows(source, episode_stride=2)[0]["steps"]) == all_episodes[::2]
    assert windows(demonstrated(), episode_stride=4).available == 8
    items, orders = windows(source, shuffle_episodes=True), set()
    for epoch in range(8):
        shuffled = episodes(items[(epoch, 0)]["steps"])
        assert sorted(shuffled) == sorted(all_episodes)
        orders.add(str(shuffled))
    assert len(orders) > 4


def test_mixed_histories_have_another_history_in_each_episode(store: HistoryStore) -> None:
    items = windows(StoredSource(store, [2, 0, 1]), None, 40, 1, mix_tasks=True)
    batch = items.__getitems__([(0, item) for item in range(40)])["steps"]
    assert equal_steps(items[(0, 7)]["steps"], row(batch, 7))
    sources = [episodes(history(store, position, stream)) for position in range(3) for stream in (0, 1)]
    mixed = [episodes(row(batch, number)) for number in range(40)]
    assert all(each[number] in [source[number] for source in sources] for each in mixed for number in range(EPISODES))
    assert sum(each in sources for each in mixed) < 10


def test_controls_take_complete_episodes_of_different_lengths(tmp_path: Path) -> None:
    env = GymnasiumEnv("Corridor-v0", [{"mirrored": False}, {"mirrored": True}])
    collect(env, tmp_path / "store", QLearning(bonus=0.5), steps=24, streams=3, train_share=0.5, progress=False)
    source = StoredSource(HistoryStore(tmp_path / "store"), [0, 1])
    plain = [history(source.store, position, stream) for position in (0, 1) for stream in range(3)]
    existing = {episode for steps in plain for episode in episodes(steps)}
    for options in ({"shuffle_episodes": True}, {"mix_tasks": True, "shuffle_episodes": True}, {"episode_stride": 2}):
        items = windows(source, None, 12, 1, **options)
        batch = items.__getitems__([(0, item) for item in range(12)])["steps"]
        assert batch.length == items.available and (batch.length == 24 or "episode_stride" in options)
        assert {episode for number in range(12) for episode in episodes(row(batch, number))} <= existing
        assert equal_steps(items[(0, 5)]["steps"], row(batch, 5))
    shuffled = windows(source, shuffle_episodes=True)[(0, 0)]["steps"]
    assert torch.equal(plain[0].states.sum(), shuffled.states.sum()) and not equal_steps(plain[0], shuffled)


@pytest.mark.parametrize(("items", "pairs"), [(4, 0), (0, 9), (1, 3)])
def test_every_process_has_a_batch_to_evaluate(items: int, pairs: int) -> None:
    losses = windows(demonstrated(), None, items) if items else None
    batches = EvaluationBatches(losses, 8, ENV.tasks()[:pairs], range(pairs), 100, processes=3)
    assert len(batches) >= 3 and sum(len(each) for each in batches.losses) == items
    seeds = [batches[number]["seeds"] for number in range(len(batches.losses), len(batches))]
    assert np.concatenate([*seeds, []]).tolist() == list(range(pairs))
    with pytest.raises(ValueError, match=f"{items} items and {pairs} pairs"):
        EvaluationBatches(losses, 8, ENV.tasks()[:pairs], range(pairs), 100, processes=10)
