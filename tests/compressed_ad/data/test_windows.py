from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore, HistoryWriter, from_steps
from zoo.compressed_ad.data.windows import DemonstratedSource, EvaluationBatches, HistoryItems, StoredSource
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.nets.steps import Steps

ENV = Darkroom(3, 4)
EPISODES = 6


@pytest.fixture
def store(tmp_path: Path) -> HistoryStore:
    tasks = [5, 0, 3]
    writer = HistoryWriter(tmp_path, ENV, tasks, 2, EPISODES * 4, 2, {"name": "test"})
    demonstrator = EpsilonCurriculum(ENV, EPISODES)
    for number, part in enumerate(writer.shards):
        goals = ENV.tasks()[part].repeat_interleave(2, 0)
        made = from_steps(demonstrator.histories(goals, [10 * task + s for task in part for s in (0, 1)]))
        writer.write(number, made.reshape(len(part), 2, EPISODES * 4, 7))
    return HistoryStore(tmp_path)


def demonstrated() -> DemonstratedSource:
    return DemonstratedSource(EpsilonCurriculum(ENV, EPISODES), ENV.tasks()[:5])


def same(one: Steps, other: Steps) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def joined(store: HistoryStore, position: int, stream: int) -> torch.Tensor:
    return torch.as_tensor(store.read(position, stream)).long()


def columns(steps: Steps) -> torch.Tensor:
    return torch.as_tensor(from_steps(steps)).long()


def test_every_piece_of_a_stored_history_is_an_item(store: HistoryStore) -> None:
    items = HistoryItems(StoredSource(store, [2, 0]), 5, "every")
    assert len(items) == 4 * 20
    for item in (0, 19, 20, 43, 79):
        history, offset = divmod(item, 20)
        whole = joined(store, [2, 0][history // 2], history % 2)
        assert torch.equal(columns(items[item]["steps"])[0], whole[offset : offset + 5])


def test_streams_and_steps_of_a_store_are_limited(store: HistoryStore) -> None:
    source = StoredSource(store, [1, 2], streams=1, length=10)
    assert (source.count, source.length) == (2, 10)
    assert torch.equal(columns(HistoryItems(source, offset="start")[1]["steps"])[0], joined(store, 2, 0)[:10])
    with pytest.raises(ValueError, match=r"streams is 3; .* has 1 to 2"):
        StoredSource(store, [0], streams=3)
    with pytest.raises(ValueError, match=r"history_steps is 25; .* has 1 to 24"):
        StoredSource(store, [0], length=25)


@pytest.mark.parametrize("offset", ["start", "random"])
def test_an_item_does_not_depend_on_its_batch(offset: str) -> None:
    items = HistoryItems(demonstrated(), 7, offset, 20, seed=3, shuffle_episodes=True)
    batch = items.__getitems__([(2, 4), (0, 9), (2, 19)])["steps"]
    for row, key in enumerate([(2, 4), (0, 9), (2, 19)]):
        assert same(items[key]["steps"], Steps(*(field[row : row + 1] for field in batch)))
    assert not same(items[(3, 4)]["steps"], items[(2, 4)]["steps"])
    assert same(items[4]["steps"], items[(-1, 4)]["steps"])


def test_a_key_may_say_the_length() -> None:
    items = HistoryItems(demonstrated(), None, "random", 20)
    assert items[(0, 3)]["steps"].length == EPISODES * 4
    batch = items.__getitems__([(0, index, 9) for index in range(20)])["steps"]
    assert batch.states.shape == (20, 9, 2)
    firsts = {int(row.nonzero()[0]) for row in batch.dones}
    assert firsts == {0, 1, 2, 3}  # pieces begin anywhere in an episode


def test_random_pieces_reach_both_ends(store: HistoryStore) -> None:
    items = HistoryItems(StoredSource(store, [0], 1), 22, "random", 100)
    whole = joined(store, 0, 0)
    pieces = columns(items.__getitems__([(0, index) for index in range(100)])["steps"])
    offsets = [next(o for o in range(3) if torch.equal(piece, whole[o : o + 22])) for piece in pieces]
    assert set(offsets) == {0, 1, 2}


def test_stride_keeps_every_other_episode(store: HistoryStore) -> None:
    items = HistoryItems(StoredSource(store, [0], 1), offset="start", episode_stride=2)
    episodes = joined(store, 0, 0).unflatten(0, (EPISODES, 4))
    assert torch.equal(columns(items[0]["steps"])[0], episodes[::2].flatten(0, 1))
    assert HistoryItems(demonstrated(), episode_stride=4).available == 8


def test_shuffled_episodes_are_the_same_in_another_order(store: HistoryStore) -> None:
    items = HistoryItems(StoredSource(store, [0], 1), offset="start", shuffle_episodes=True)
    episodes = [episode.tolist() for episode in joined(store, 0, 0).unflatten(0, (EPISODES, 4))]
    orders = []
    for epoch in range(8):
        shuffled = columns(items[(epoch, 0)]["steps"])[0].unflatten(0, (EPISODES, 4)).tolist()
        assert sorted(shuffled) == sorted(episodes)
        orders.append(str(shuffled))
    assert len(set(orders)) > 4


def test_a_shuffled_history_shows_no_learning() -> None:
    source = DemonstratedSource(EpsilonCurriculum(ENV, EPISODES), ENV.tasks())
    keys = [(0, index) for index in range(450)]
    for shuffled, grows in ((False, True), (True, False)):
        items = HistoryItems(source, None, "start", 450, shuffle_episodes=shuffled)
        returns = items.__getitems__(keys)["steps"].rewards.unflatten(1, (EPISODES, 4)).sum(2).double().mean(0)
        assert (float(returns[-1] - returns[0]) > 1.0) == grows
        assert abs(float(returns[-1] - returns[0])) < 0.4 or grows


def test_an_episode_may_end_where_the_next_begins() -> None:
    true, reset = (HistoryItems(demonstrated(), terminal_next_state=state)[2]["steps"] for state in ("true", "reset"))
    assert torch.equal(reset.next_states[:, :-1], true.states[:, 1:])
    assert (reset.next_states[reset.dones] == 1).all()
    assert same(true._replace(next_states=reset.next_states), reset)
    moved = (true.next_states - true.states).abs().sum(-1)
    assert moved.max() == 1


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ValueError, match="length is 25; histories have 1 to 24 steps"):
        HistoryItems(demonstrated(), 25)
    with pytest.raises(ValueError, match="epoch_items must be null, not 8"):
        HistoryItems(demonstrated(), 5, "every", 8)
    with pytest.raises(ValueError, match="episode_stride is at least 1"):
        HistoryItems(demonstrated(), episode_stride=0)
    wandering = DemonstratedSource(EpsilonCurriculum(Darkroom(3, 4, random_start=True), 2), ENV.tasks())
    with pytest.raises(ValueError, match="random_start false"):
        HistoryItems(wandering, terminal_next_state="reset")


def test_evaluation_batches_hold_all_items_and_all_pairs() -> None:
    items = HistoryItems(demonstrated(), 5, "random", 10)
    batches = EvaluationBatches(items, 4, ENV.tasks()[:7], range(7), 3)
    made = [batches[number] for number in range(len(batches))]
    assert [len(batch["steps"].actions) for batch in made[:3]] == [4, 4, 2]
    assert torch.equal(torch.cat([batch["tasks"] for batch in made[3:]]), ENV.tasks()[:7])
    assert [seed for batch in made[3:] for seed in batch["seeds"]] == list(range(7))
    assert same(made[1]["steps"], items.__getitems__([4, 5, 6, 7])["steps"])
    assert len(EvaluationBatches(None, 4, ENV.tasks(), range(9), 100)) == 1


@pytest.mark.parametrize(("items", "pairs"), [(4, 0), (0, 9), (1, 3), (5, 3)])
def test_every_process_has_a_batch_to_evaluate(items: int, pairs: int) -> None:
    held = HistoryItems(DemonstratedSource(EpsilonCurriculum(ENV, 3), ENV.tasks()), size=items) if items else None
    batches = EvaluationBatches(held, 8, ENV.tasks()[:pairs], range(pairs), 100, processes=3)
    assert len(batches) >= 3
    assert sum(len(each) for each in batches.losses) == items
    assert [seed for number in range(len(batches.losses), len(batches)) for seed in batches[number]["seeds"]] == list(
        range(pairs)
    )
    with pytest.raises(ValueError, match=rf"{items} items and {pairs} pairs .* on 10 processes"):
        EvaluationBatches(held, 8, ENV.tasks()[:pairs], range(pairs), 100, processes=10)


def test_reading_takes_what_is_asked_for(store: HistoryStore) -> None:
    steps = StoredSource(store, [1]).read([1, 0], [0, 0], torch.tensor([[3, 9, 4], [23, 0, 1]]))
    for row, (stream, wanted) in enumerate([(1, [3, 9, 4]), (0, [23, 0, 1])]):
        assert np.array_equal(columns(steps)[row], joined(store, 1, stream)[wanted])


def test_mixed_histories_have_another_task_in_each_episode(store: HistoryStore) -> None:
    source = StoredSource(store, [2, 0, 1])
    items = HistoryItems(source, None, "start", 40, seed=1, mix_tasks=True)
    batch = items.__getitems__([(0, item) for item in range(40)])["steps"]
    assert same(items[(0, 7)]["steps"], Steps(*(field[7:8] for field in batch)))
    episodes = [{tuple(joined(store, p, s)[e * 4 : e * 4 + 4].flatten().tolist()) for p in range(3) for s in (0, 1)}
                for e in range(EPISODES)]  # fmt: skip
    whole = [joined(store, p, s).flatten().tolist() for p in range(3) for s in (0, 1)]
    for row in columns(batch):
        assert all(tuple(row[e * 4 : e * 4 + 4].flatten().tolist()) in episodes[e] for e in range(EPISODES))
    assert sum(row.flatten().tolist() in whole for row in columns(batch)) < 10
    with pytest.raises(ValueError, match="offset must be start, not random"):
        HistoryItems(source, 4, "random", mix_tasks=True)
