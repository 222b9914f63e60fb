import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.harness import RUNS, contents
from zoo.compressed_ad import Darkroom
from zoo.compressed_ad.data.history_writer import HistoryWriter
from zoo.compressed_ad.evaluation import evaluate as module
from zoo.compressed_ad.evaluation.evaluate import evaluate, load_agent, select_tasks, split_tasks
from zoo.compressed_ad.evaluation.memory_gap import probe_memory
from zoo.compressed_ad.rollout import ContextPlayer

ENV = Darkroom(5, 6)
RUN = RUNS / "compressed_ad" / "smoke"


def play(output: Path, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"episodes": 4, "seeds": 3, "chunk": 4, "gap": True, "progress": False}
    return evaluate(RUN, output, **{**arguments, **changes})


def test_the_files_hold_what_the_agent_does(tmp_path: Path) -> None:
    facts, agent = play(tmp_path / "out"), load_agent(RUN)
    pairs = module.pairs(ENV, select_tasks(ENV, "test", 0, 0.8), range(3))
    returns = np.load(tmp_path / "out" / "returns.npy")
    assert returns.shape == (5, 3, 4)
    np.testing.assert_array_equal(returns.reshape(15, 4), agent(*pairs, 4))
    np.testing.assert_allclose(np.load(tmp_path / "out" / "eval_result.npy"), returns.mean(1))
    assert facts == json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert facts["summary"]["mean"]["mean"] == pytest.approx(returns.mean())
    assert facts["compressions_per_episode"] == 2 / 4  # after 11 and after 19 of 24 steps
    assert len((tmp_path / "out" / "evaluation.csv").read_text().splitlines()) == 6
    probed = np.load(tmp_path / "out" / "gap.npy")
    with ContextPlayer(agent.policy, ENV, *pairs) as player:
        results = probe_memory(player, player.run_episodes(4), 12)
    np.testing.assert_array_equal(probed.reshape(15, 3), results)
    assert facts["gap"]["steps"] == 12 and facts["gap"]["pairs"] == 15


def test_two_processes_and_a_kill_change_nothing(tmp_path: Path) -> None:
    play(tmp_path / "one")
    one = contents(tmp_path / "one")
    assert play(tmp_path / "two", rank=1, world_size=2) == {"missing": 2}
    assert not (tmp_path / "two" / "eval_result.npy").exists()
    play(tmp_path / "two", rank=0, world_size=2)
    assert contents(tmp_path / "two") == one

    play(tmp_path / "killed")
    for path in (tmp_path / "killed").rglob("*.np*"):
        if path.name != "00001.npz":
            path.unlink()
    (tmp_path / "killed" / "evaluation.json").unlink()
    play(tmp_path / "killed")
    assert contents(tmp_path / "killed") == one


def test_the_split_is_the_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with caplog.at_level(logging.WARNING):
        tasks, source = split_tasks(folder, ENV, "test")
    assert torch.equal(tasks, select_tasks(ENV, "test", 0, 0.9)) and source == "seed 0, share 0.9"
    assert "does not say how its tasks were divided" in caplog.text
    assert len(split_tasks(folder, ENV, "all")[0]) == 25
    assert torch.equal(split_tasks(folder, ENV, "test", 3, 0.8)[0], select_tasks(ENV, "test", 3, 0.8))
    with pytest.raises(ValueError, match="give both"):
        split_tasks(folder, ENV, "test", split_seed=3)

    data: dict[str, Any] = {"split_seed": 1, "train_share": 0.8, "root": None}

    def configure(**changes: Any) -> Path:
        text = yaml.safe_dump({"data": {"class_path": "HistoryData", "init_args": {**data, **changes}}})
        (folder / "config.yaml").write_text(text)
        return folder

    assert torch.equal(split_tasks(configure(), ENV, "test")[0], select_tasks(ENV, "test", 1, 0.8))
    with pytest.raises(FileNotFoundError, match="give split_seed and train_share"):
        split_tasks(configure(root=str(tmp_path / "gone")), ENV, "test")
    embedded = configure(root=str(tmp_path / "gone"), embedded_if_missing=True)
    assert torch.equal(split_tasks(embedded, ENV, "test")[0], select_tasks(ENV, "test", 1, 0.8))
    HistoryWriter(tmp_path / "store", ENV, range(25), 1, 6, 25, {"name": "test"}, split_seed=7, train_share=0.6)
    stored, source = split_tasks(configure(root=str(tmp_path / "store")), ENV, "test")
    assert torch.equal(stored, select_tasks(ENV, "test", 7, 0.6)) and "store" in source
    with pytest.raises(ValueError, match=r"are of .*'grid_size': 5.* now, .*'grid_size': 4"):
        split_tasks(folder, Darkroom(4, 5), "test")
    HistoryWriter(tmp_path / "few", few := Darkroom(2, 3), range(4), 1, 3, 4, {}, train_share=0.5)
    assert len(split_tasks(configure(root=str(tmp_path / "few")), few, "test")[0]) == 2  # none with the usual share


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="gap of 3 steps"):
        play(tmp_path / "out", gap_steps=3)
    with pytest.raises(ValueError, match="--gap true"):
        play(tmp_path / "out", gap_steps=20, gap=False)
    assert not (tmp_path / "out").exists()
    play(tmp_path / "out", episodes=1, seeds=1, gap=False)
    with pytest.raises(ValueError, match="other settings: seeds 1"):
        play(tmp_path / "out", episodes=1, seeds=2, gap=False)
    agent = load_agent(RUN)
    agent.policy.head.bias.data[0] = torch.nan
    monkeypatch.setattr(module, "load", lambda *_: agent)
    with pytest.raises(ValueError, match="weights are not finite"):
        load_agent(RUN)
