import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zoo.compressed_ad.envs.baselines import oracle_return, random_return
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.evaluation.evaluate import task_rows, write_evaluation
from zoo.compressed_ad.evaluation.report import report, source_curve
from zoo.compressed_ad.evaluation.summary import summarise

ENV = Darkroom(5, 10)
TASKS = ENV.tasks()[[3, 8, 20]]


def make(folder: Path, final: float, latents: int = 4, episodes: int = 10, env: Darkroom = ENV) -> Path:
    """An evaluation whose return rises from 0 to `final`."""
    rng = np.random.default_rng(int(10 * final))
    curve = np.linspace(0, final, episodes)
    returns = (curve + rng.normal(0, 0.3, (len(TASKS), 4, episodes))).astype(np.float32)
    random, oracle = random_return(env, TASKS).numpy(), oracle_return(env, TASKS).numpy()
    summary = summarise(returns, random, oracle)
    described = {"run": "nowhere", "split": "test", "split_from": "seed 0, share 0.9", "env": env.describe()}
    played = {"seeds": 4, "episodes": episodes, "greedy": False, "compressions_per_episode": 0.5}
    facts: dict[str, Any] = {
        **described,
        **played,
        "policy": {"window": 20, "num_latents": latents, "compressor": "QueryCompressor", "parameters": 100},
        "baselines": {"random": summary["random"], "oracle": summary["oracle"], "explorer": None},
        "summary": summary,
        "gap": {"steps": 20, "pairs": 12, "count": 9, "before": 6.0, "after": 5.0, "random": 0.4, "oracle": 8.0},
        "tasks": task_rows(TASKS, returns, random, oracle),
    }
    write_evaluation(folder, facts, returns)
    return folder


def test_a_report_on_arms_and_a_sweep(tmp_path: Path) -> None:
    arms = {"none": (2.0, 0), "few": (4.0, 2), "many": (6.0, 8)}
    folders = [make(tmp_path / name, final, latents) for name, (final, latents) in arms.items()]
    result = report(folders, tmp_path / "out")
    assert result == json.loads((tmp_path / "out" / "report.json").read_text())
    rows = {row["label"]: row for row in result["evaluations"]}
    assert rows["none"]["over_first"] is None and rows["none"]["ratio"] is None
    assert rows["few"]["ratio"] == 10 and rows["few"]["free"] == 17 and (tmp_path / "out" / "sweep.png").is_file()
    gain = rows["many"]["over_first"]
    assert gain["low"] < gain["mean"] < gain["high"] and gain["mean"] == pytest.approx(4 * 7 / 9, abs=0.3)
    # a third of the way at the same slope times three
    assert rows["many"]["episodes_to_reach"]["90%"] < rows["none"]["episodes_to_reach"]["90%"]
    assert "| many | " in (tmp_path / "out" / "report.md").read_text()


def test_the_curve_of_histories_ends_with_the_shortest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, np.nan]])
    store = SimpleNamespace(env=ENV, tasks=TASKS, returns=lambda task: returns)
    monkeypatch.setattr("zoo.compressed_ad.evaluation.report.HistoryStore", lambda folder: store)
    evaluated = [{"task": " ".join(map(str, TASKS[0].tolist()))}]
    assert source_curve(tmp_path, {"env": ENV.describe(), "tasks": evaluated}) == [0.5, 0.5]


def test_unlike_evaluations_are_reported_apart(tmp_path: Path) -> None:
    folders = [make(tmp_path / "a", 3.0), make(tmp_path / "b", 3.5, episodes=12)]
    result = report(folders, tmp_path / "out")
    assert result["evaluations"][1]["over_first"] is None
    assert len(result["notes"]) == 1 and "a 10, b 12" in result["notes"][0]
    with pytest.raises(ValueError, match="different environments"):
        report([folders[0], make(tmp_path / "c", 1.0, env=Darkroom(5, 11))], tmp_path / "out")
