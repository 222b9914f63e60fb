"""Collecting: the same histories however the work is divided, interrupted or repeated."""

import dataclasses
import os
import signal
import time

import numpy as np
import pytest
import torch

from tests.harness import run_process
from zoo.compressed_ad.collecting.collect import SOURCES, Epsilon, collect, collect_histories, env_of, last_returns
from zoo.compressed_ad.collecting.ppo import PPO
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.baselines import oracle_return
from zoo.compressed_ad.envs.grids import Darkroom

ENV = Darkroom(3, 5)
SMALL_PPO = PPO(rollout_steps=10, minibatch=40, epochs=1)
SMALL = {"episodes": 4, "streams": 6, "progress": False}


def content(folder):
    store = HistoryStore(folder)
    return {task: store.read(i, slice(None)).tobytes() for i, task in enumerate(store.task_indices.tolist())}


@pytest.mark.parametrize("source", [SMALL_PPO, QLearning(), Epsilon()], ids=list(SOURCES))
def test_division_of_the_work_does_not_matter(tmp_path, source):
    assert collect(ENV, tmp_path / "one", source, **SMALL) == {"made": 9, "skipped": 0}
    for rank, made in ((1, 4), (0, 5)):
        counts = collect(ENV, tmp_path / "two", source, shard_size=2, rank=rank, world_size=2, **SMALL)
        assert counts == {"made": made, "skipped": 0}
    some = [7, 2]
    collect(ENV, tmp_path / "some", source, tasks=some, **SMALL)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert content(tmp_path / "some") == {task: content(tmp_path / "one")[task] for task in some}
    collect(ENV, tmp_path / "other", source, seed=43, **SMALL)
    assert content(tmp_path / "one") != content(tmp_path / "other")


def test_the_environment_of_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "{size: 3, data: {init_args: {env: {class_path: zoo.compressed_ad.Darkroom, "
        "init_args: {grid_size: '${size}', horizon: 5}}}}}"
    )
    assert env_of(recipe).describe() == ENV.describe()
    few = {"algorithm": "epsilon", "episodes": 1, "streams": 1, "tasks": [0]}
    collect_histories(tmp_path / "histories", recipe=recipe, **few)
    assert HistoryStore(tmp_path / "histories").env.describe() == ENV.describe()
    with pytest.raises(ValueError, match="both env and recipe"):
        collect_histories(tmp_path / "both", env=ENV, recipe=recipe, **few)
    for text in ("model: 1", "data: [1]", "data: {init_args: {root: x}}", "data: {init_args: {env: null}}"):
        recipe.write_text(text)
        with pytest.raises(ValueError, match=r"recipe.yaml: no data.init_args.env"):
            collect_histories(tmp_path / "none", recipe=recipe, **few)
    recipe.write_text("data: {init_args: {env: {class_path: torch.nn.Linear, init_args: {}}}}")
    with pytest.raises(ValueError, match="Linear"):
        env_of(recipe)
    with pytest.raises(FileNotFoundError):
        env_of(tmp_path / "nothing.yaml")
    assert not (tmp_path / "none").exists() and not (tmp_path / "both").exists()


def killed(source):
    """The same source, but making the second shard kills the process."""
    calls = []

    def make(self, request):
        calls.append(request)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return type(source).make(self, request)

    return type("Killed", (type(source),), {"make": make})(**dataclasses.asdict(source))


def collect_until_killed(folder, source):
    collect(ENV, folder, killed(source), shard_size=3, **SMALL)


@pytest.mark.parametrize("source", [Epsilon(), SMALL_PPO], ids=["epsilon", "ppo"])
def test_goes_on_after_a_kill(tmp_path, source):
    folder = tmp_path / "store"
    assert run_process(collect_until_killed, folder, source) == -signal.SIGKILL
    with pytest.raises(ValueError, match=r"2 shard\(s\) cannot be used.*shard_00001.*shard_00002"):
        HistoryStore(folder)
    # What a process leaves that is killed while it writes.
    (folder / ".shard_00001.npy.tmp-1").write_bytes(b"half")
    (folder / "shard_00002.npy").write_bytes(b"without checksum")
    written = (folder / "shard_00000.npy").stat().st_mtime_ns
    assert collect(ENV, folder, source, shard_size=3, **SMALL) == {"made": 6, "skipped": 3}
    assert (folder / "shard_00000.npy").stat().st_mtime_ns == written
    assert not list(folder.glob(".*"))
    collect(ENV, tmp_path / "whole", source, **SMALL)
    assert content(folder) == content(tmp_path / "whole")
    assert collect(ENV, folder, source, shard_size=3, **SMALL) == {"made": 0, "skipped": 9}


def test_damaged_shard_is_made_anew(tmp_path, caplog):
    collect(ENV, tmp_path / "store", Epsilon(), shard_size=3, **SMALL)
    before = content(tmp_path / "store")
    path = tmp_path / "store" / "shard_00001.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    assert collect(ENV, tmp_path / "store", Epsilon(), shard_size=3, **SMALL) == {"made": 3, "skipped": 6}
    assert "shard_00001.npy is damaged" in caplog.text
    assert content(tmp_path / "store") == before


def test_other_settings_are_refused(tmp_path):
    collect(ENV, tmp_path / "store", Epsilon(), **SMALL)
    with pytest.raises(ValueError, match=r"source\.best 1\.0 \(now 0\.5\)"):
        collect(ENV, tmp_path / "store", Epsilon(best=0.5), **SMALL)
    with pytest.raises(ValueError, match="rank"):
        collect(ENV, tmp_path / "store", Epsilon(), rank=2, world_size=2, **SMALL)


class Unnamed(Darkroom):
    name = "an_environment_that_the_store_does_not_know"


class Disguised(Darkroom):
    """Named like its base class, with other goals."""

    def tasks(self):
        return super().tasks().flip(0)


class Unwritable(Darkroom):
    def arguments(self):
        return {"start": torch.tensor(self.start_cell)}


@pytest.mark.parametrize("family", [Unnamed, Disguised, Unwritable])
def test_what_cannot_be_read_back_is_refused_before_it_begins(tmp_path, family):
    with pytest.raises(ValueError, match=f"histories of {family.__name__} could not be read back"):
        collect(family(3, 5), tmp_path / "store", Epsilon(), **SMALL)
    assert not (tmp_path / "store").exists()


def test_returns_beside_what_is_possible(tmp_path):
    collect(ENV, tmp_path / "store", Epsilon(), **SMALL | {"episodes": 20})
    store = HistoryStore(tmp_path / "store")
    assert oracle_return(store.env, store.tasks).tolist() == [4, 5, 4, 5, 5, 5, 4, 5, 4]
    assert last_returns(store).tolist() == oracle_return(store.env, store.tasks).tolist()


def test_possible_returns_with_random_starts():
    env = Darkroom(3, 5, random_start=True)
    assert oracle_return(env, torch.tensor([[1, 1]])).tolist() == pytest.approx([(5 + 4 * 5 + 4 * 4) / 9])


@pytest.mark.slow
def test_all_goals_in_time(tmp_path):
    """81 goals in 10 CPU-minutes, goal (5, 6) at 13.0 or more in the last episode."""
    began = time.process_time()
    collect(Darkroom(), tmp_path / "store", PPO(), progress=False)
    spent = time.process_time() - began
    store = HistoryStore(tmp_path / "store")
    returns, best = last_returns(store), oracle_return(store.env, store.tasks)
    print(f"{spent:.0f} CPU-s, (5, 6): {returns[51]:.2f}, all: {returns.mean():.2f} of {best.mean():.2f}")
    assert store.tasks[51].tolist() == [5, 6]
    assert spent < 600
    assert returns[51] >= 13.0
    assert best.mean() == pytest.approx(16.543, abs=1e-3)
    assert returns.mean() >= 0.8 * best.mean()


def test_history_is_what_happened():
    env = Darkroom(3, 4)
    tasks = env.tasks()[[1, 5]]
    told = []
    histories = QLearning().histories(env, tasks, [1, 2], streams=3, steps=20, advance=told.append)
    assert sum(told) == 2 * 3 * 20
    worlds = env.start(tasks.repeat_interleave(3, dim=0))
    for step in histories.reshape(6, 20, 7).swapaxes(0, 1):
        assert np.array_equal(step[:, :2], worlds.states)
        taken = worlds.step(torch.from_numpy(step[:, 2]))
        assert np.array_equal(step[:, 3], taken.rewards)
        assert np.array_equal(step[:, 4:6], taken.next_states)
        assert (step[:, 6] == taken.done).all()
