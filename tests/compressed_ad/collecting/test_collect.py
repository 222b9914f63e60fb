"""Collecting: the same histories however the work is divided, interrupted or repeated."""

import dataclasses
import os
import signal

import pytest
import torch

from tests.compressed_ad.envs.scripted import PACKAGE  # noqa: F401 - registers the environments
from tests.harness import run_process
from zoo.cli.main import main
from zoo.compressed_ad import Darkroom, PointMass
from zoo.compressed_ad.collecting.collect import ALGORITHMS, EpsilonAlgorithm, collect, collect_histories, recipe_env
from zoo.compressed_ad.collecting.ppo import PPO
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.history import HistoryStore

ENV = Darkroom(3, 5)
SMALL_PPO = PPO(rollout_steps=10, minibatch=40, epochs=1)
SMALL = {"episodes": 4, "streams": 6, "progress": False}


def content(folder):
    store = HistoryStore(folder)
    return {task: store.read(i, slice(None)).tobytes() for i, task in enumerate(store.task_indices.tolist())}


@pytest.mark.parametrize("algorithm", [SMALL_PPO, QLearning(), EpsilonAlgorithm()], ids=list(ALGORITHMS))
def test_division_of_the_work_does_not_matter(tmp_path, algorithm):
    assert collect(ENV, tmp_path / "one", algorithm, **SMALL) == {"made": 9, "skipped": 0}
    for rank, made in ((1, 4), (0, 5)):
        counts = collect(ENV, tmp_path / "two", algorithm, shard_size=2, rank=rank, world_size=2, **SMALL)
        assert counts == {"made": made, "skipped": 0}
    some = [7, 2]
    collect(ENV, tmp_path / "some", algorithm, tasks=some, **SMALL)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert content(tmp_path / "some") == {task: content(tmp_path / "one")[task] for task in some}
    collect(ENV, tmp_path / "other", algorithm, seed=43, **SMALL)
    assert content(tmp_path / "one") != content(tmp_path / "other")


def test_the_environment_of_a_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "{size: 3, data: {init_args: {env: {class_path: zoo.compressed_ad.Darkroom, "
        "init_args: {grid_size: '${size}', horizon: 5}}}}}"
    )
    few = {"algorithm": "epsilon", "episodes": 1, "streams": 1, "tasks": [0]}
    collect_histories(tmp_path / "histories", recipe=recipe, **few)
    assert HistoryStore(tmp_path / "histories").env.describe() == recipe_env(recipe).describe() == ENV.describe()
    with pytest.raises(ValueError, match="both env and recipe"):
        collect_histories(tmp_path / "both", env=ENV, recipe=recipe, **few)
    recipe.write_text("data: [1]")
    with pytest.raises(ValueError, match=r"no data.init_args.env"):
        recipe_env(recipe)
    assert not (tmp_path / "both").exists()


def test_ids_of_gymnasium_need_a_task_that_is_held_out(tmp_path, capsys):
    assert main(["collect", str(tmp_path / "lakes"), "--env=FrozenLake-v1"]) == 1
    assert "0 held out" in capsys.readouterr().err
    assert not (tmp_path / "lakes").exists()


def test_the_number_of_threads_does_not_matter(tmp_path):
    before, algorithm = torch.get_num_threads(), PPO(rollout_steps=12, minibatch=400, epochs=2)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            few = {"tasks": [0, 1], "steps": 24, "streams": 40, "progress": False}
            collect(PointMass(8, 6), tmp_path / str(threads), algorithm, **few)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert content(tmp_path / "1") == content(tmp_path / "2")


class Killed(PPO):
    """Kills its process instead of making the second shard."""

    calls = 0

    def histories(self, request):
        Killed.calls += 1
        if Killed.calls == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().histories(request)


def collect_until_killed(folder):
    collect(ENV, folder, Killed(**dataclasses.asdict(SMALL_PPO)), shard_size=3, **SMALL)


def test_resumes_after_a_kill(tmp_path):
    folder, algorithm = tmp_path / "store", SMALL_PPO
    assert run_process(collect_until_killed, folder) == -signal.SIGKILL
    with pytest.raises(ValueError, match=r"2 shard\(s\) cannot be used.*shard_00001.*shard_00002"):
        HistoryStore(folder)
    # the files of a process that is killed while it writes
    (folder / ".shard_00001.npy.tmp-1").write_bytes(b"half")
    (folder / "shard_00002.npy").write_bytes(b"without checksum")
    written = (folder / "shard_00000.npy").stat().st_mtime_ns
    assert collect(ENV, folder, algorithm, shard_size=3, **SMALL) == {"made": 6, "skipped": 3}
    assert (folder / "shard_00000.npy").stat().st_mtime_ns == written
    assert not list(folder.glob(".*"))
    collect(ENV, tmp_path / "whole", algorithm, **SMALL)
    assert content(folder) == content(tmp_path / "whole")
    assert collect(ENV, folder, algorithm, shard_size=3, **SMALL) == {"made": 0, "skipped": 9}


def test_corrupt_shard_is_made_again_and_other_settings_are_refused(tmp_path):
    collect(ENV, tmp_path / "store", EpsilonAlgorithm(), shard_size=3, **SMALL)
    before = content(tmp_path / "store")
    path = tmp_path / "store" / "shard_00001.npy"
    intact = path.read_bytes()
    for damaged in (intact[:-1] + b"\x07", intact[:-20]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"shard_00001\.npy is (cut or )?corrupt"):
            HistoryStore(tmp_path / "store")
    assert collect(ENV, tmp_path / "store", EpsilonAlgorithm(), shard_size=3, **SMALL) == {"made": 3, "skipped": 6}
    assert content(tmp_path / "store") == before
    with pytest.raises(ValueError, match=r"source\.best 1\.0 \(now 0\.5\)"):
        collect(ENV, tmp_path / "store", EpsilonAlgorithm(best=0.5), shard_size=3, **SMALL)
