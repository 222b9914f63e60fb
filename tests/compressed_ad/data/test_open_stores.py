"""Stores of any environment: schema in the index, steps bit by bit, episodes of different lengths, controls."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.common import registry
from zoo.compressed_ad.collecting.collect import Epsilon, collect, last_returns
from zoo.compressed_ad.collecting.ppo import PPO
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.datamodule import HistoryData
from zoo.compressed_ad.data.history import HistoryStore, to_steps
from zoo.compressed_ad.data.windows import HistoryItems, StoredSource
from zoo.compressed_ad.envs.gymnasium import GymnasiumEnv
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.evaluation.report import source_curve

pytest.importorskip("gymnasium")
HERE = "tests.compressed_ad.envs.scripted"
STEPS = 24


@pytest.fixture(autouse=True)
def admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_allowed", ["tests.compressed_ad"])


def corridor(limit: int = 6) -> GymnasiumEnv:
    return GymnasiumEnv(f"{HERE}.Corridor", {"set.mirrored": [False, True]}, limit=limit, reward=[0, 1])


def make(folder: Path, env: Any = None, **settings: Any) -> HistoryStore:
    arguments = {"streams": 3, "steps": STEPS, "train_share": 0.5, "shard_size": 1, "progress": False, **settings}
    collect(env or corridor(), folder, arguments.pop("source", QLearning(bonus=0.5)), **arguments)
    return HistoryStore(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HistoryStore:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_allowed", ["tests.compressed_ad"])
        return make(tmp_path_factory.mktemp("corridors") / "store")


def test_the_index_holds_the_schema_and_histories_are_of_the_environment(store: HistoryStore) -> None:
    index = json.loads((store.folder / "index.json").read_text())
    assert index["version"] == 2
    assert index["schema"] == corridor().schema.describe()
    for task in (0, 1):
        rows = store.read(task, slice(None))
        assert rows.dtype == store.env.schema.dtype and rows.shape == (3, STEPS)
        right = (rows["action"] == 1) != (task == 1)
        reached = (rows["state"] + np.where(right, 1, -1)).clip(0, 3)
        assert np.array_equal(rows["next_state"], reached)
        assert np.array_equal(rows["terminated"], reached == 3)
        over = rows["terminated"] | rows["truncated"]
        assert np.array_equal(rows["state"][:, 1:][~over[:, :-1]], reached[:, :-1][~over[:, :-1]])
        steps = to_steps(rows)
        assert steps.rewards.dtype == torch.float32 and torch.equal(steps.dones, torch.from_numpy(over))


def test_returns_go_by_the_ends_of_episodes(store: HistoryStore) -> None:
    rows, returns = store.read(0, slice(None)), store.returns(0)
    for stream in range(3):
        ends = store.ends(0, stream)
        parts = np.split(rows[stream]["reward"], ends + 1)[: len(ends)]
        assert returns[stream, : len(ends)].tolist() == [part.sum() for part in parts]
        assert np.isnan(returns[stream, len(ends) :]).all()
    lasts = [returns[stream, len(store.ends(0, stream)) - 1] for stream in range(3)]
    assert float(last_returns(store)[0]) == pytest.approx(np.mean(lasts))
    rows_of = {"tasks": [{"task": "0"}], "env": corridor().describe()}
    assert len(source_curve(store.folder, rows_of)) == returns.shape[1]


def test_tables_learn_what_ends_an_episode(tmp_path: Path) -> None:
    learned = make(tmp_path / "long", steps=240, source=QLearning(bonus=0.2, epsilon=0, last_epsilon=0))
    assert last_returns(learned).tolist() == [1, 1]
    late = learned.read(1, slice(None))[:, -60:]
    assert late["terminated"].mean() > 0.3  # three steps at most, where the way is known


def test_shards_do_not_matter_and_damage_is_made_anew(store: HistoryStore, tmp_path: Path) -> None:
    again = make(tmp_path / "again", shard_size=2)
    assert np.array_equal(again.read(1, slice(None)), store.read(1, slice(None)))
    shard = tmp_path / "again" / "shard_00000.npy"
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(ValueError, match="cut or damaged"):
        HistoryStore(tmp_path / "again")
    assert np.array_equal(make(tmp_path / "again", shard_size=2).read(0, 2), store.read(0, 2))


def test_another_schema_is_refused_with_both(store: HistoryStore, tmp_path: Path) -> None:
    make(tmp_path / "other")
    path = tmp_path / "other" / "index.json"
    index = json.loads(path.read_text())
    index["schema"]["observation"]["n"] = 9
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"schemas differ.*\"n\": 9.*\"n\": 4"):
        HistoryStore(tmp_path / "other")
    with pytest.raises(ValueError, match="they must be the same"):
        HistoryData(corridor(7), str(store.folder)).setup("fit")


def test_controls_take_whole_episodes(store: HistoryStore) -> None:
    source = StoredSource(store, [0, 1])
    pieces = [
        source.read([history], [0], torch.arange(*bounds)[None])
        for history in range(source.count) for bounds in source.episodes(history)
    ]  # fmt: skip
    known = {(tuple(piece.actions[0].tolist()), tuple(piece.states[0].tolist())) for piece in pieces}
    for settings in ({"shuffle_episodes": True}, {"mix_tasks": True, "shuffle_episodes": True}, {"episode_stride": 2}):
        items = HistoryItems(source, None, "start", 12, seed=1, **settings)
        steps = items.__getitems__([(0, item) for item in range(12)])["steps"]
        assert steps.length == items.available == (STEPS if "episode_stride" not in settings else items.available)
        for row in range(12):
            ends = steps.dones[row].nonzero()[:, 0].tolist()
            for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False):
                piece = (steps.actions[row, first : last + 1].tolist(), steps.states[row, first : last + 1].tolist())
                assert tuple(map(tuple, piece)) in known
        alone = items[(0, 5)]["steps"]
        assert torch.equal(alone.states[0], steps.states[5])
    plain = HistoryItems(source, None, "start")[0]["steps"]
    shuffled = HistoryItems(source, None, "start", shuffle_episodes=True)[(0, 0)]["steps"]
    assert torch.equal(plain.states.sum(), shuffled.states.sum()) and not torch.equal(plain.states, shuffled.states)


def test_noisy_demonstrators_rise_from_random_to_perfect(tmp_path: Path) -> None:
    shown = Epsilon(demonstrator=f"{HERE}.rightward", greedy_after=0.5)
    store = make(tmp_path / "shown", steps=48, streams=20, source=shown)
    rows = store.read(0, slice(None))
    assert (rows["action"][:, 26:] == 1).all() and 0.3 < rows["action"][:, :8].mean() < 0.9
    assert store.index["source"]["demonstrator"] == f"{HERE}.rightward"
    points = make(tmp_path / "points", PointMass(4, 8), steps=48, streams=2, source=Epsilon(greedy_after=0.8))
    earned = points.returns(0)
    assert earned[:, -1] == pytest.approx(float(points.env.oracle_returns(points.tasks[:1])[0]), abs=1e-4)
    assert (earned[:, 0] < earned[:, -1]).all()


def test_what_cannot_be_learned_is_refused(tmp_path: Path) -> None:
    for source, env, message in (
        (PPO(frames=2), corridor(), "frames is 2, which is for grids"),
        (QLearning(), PointMass(8, 6), "q_learning learns Discrete"),
        (Epsilon(), corridor(), "nobody knows the best actions"),
        (Epsilon(), PointMass(), "give a multiple"),
        (Epsilon(), corridor(5), "multiple of 5 steps"),
    ):
        with pytest.raises(ValueError, match=message):
            make(tmp_path / "store", env, source=source, steps=STEPS)
    assert not (tmp_path / "store").exists()


def test_statistics_are_those_of_training_histories(tmp_path: Path) -> None:
    make(tmp_path / "store", PointMass(8, 6), source=Epsilon())
    data = HistoryData(PointMass(8, 6), str(tmp_path / "store"))
    data.setup("fit")
    found, train = data.statistics(), HistoryStore(tmp_path / "store")
    rows = np.concatenate([train.read(task, slice(None)).reshape(-1) for task in train.split["train"].tolist()])
    for (mean, std), name in ((found.states, "state"), (found.actions, "action")):
        np.testing.assert_allclose(mean, rows[name].mean(0), atol=1e-6)
        np.testing.assert_allclose(std, rows[name].std(0), atol=1e-6)
    assert len(found.sample) == len(rows)
