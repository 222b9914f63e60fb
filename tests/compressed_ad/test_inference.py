import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.compressed_ad.parts import policy
from zoo.compressed_ad import inference as module
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom
from zoo.compressed_ad.inference import Agent, pairs
from zoo.compressed_ad.rollout import rollout

ENV = Darkroom(5, 6)


def build(**options: Any) -> Agent:
    return Agent(policy(3), ENV, **options).eval()


def send_request(folder: Path, request: Any, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
    source = folder / "request.json"
    source.write_text(request if isinstance(request, str) else json.dumps(request), encoding="utf-8")
    facts = build(**options).process_file(source, folder / "result.npy")
    return np.load(folder / "result.npy"), facts


def test_a_call_is_a_rollout_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, tasks, seeds = build(episodes=3), [[0, 1], [2, 3], [4, 4]], [7, 8, 9]
    expected = rollout(agent.policy, ENV, torch.tensor(tasks), seeds, 3).returns.numpy()
    monkeypatch.setattr(module, "CHUNK", 2)
    results = agent(tasks, seeds)
    np.testing.assert_array_equal(results, expected)
    assert results.shape == (3, 3) and results.dtype == np.float32
    np.testing.assert_array_equal(agent(np.array(tasks), seeds, 2), expected[:, :2])


def test_pairs_depend_on_task_and_seed_alone() -> None:
    tasks, seeds = pairs(ENV, torch.tensor([[0, 1], [3, 2]]), [0, 5])
    assert tasks.tolist() == [[0, 1], [0, 1], [3, 2], [3, 2]]
    assert len(set(seeds)) == 4
    assert pairs(ENV, torch.tensor([[3, 2]]), [5])[1] == seeds[3:]
    door = DarkKeyToDoor(3)
    assert len(set(pairs(door, door.tasks(), [0])[1])) == 81


def test_a_request_of_tasks(tmp_path: Path) -> None:
    result, facts = send_request(tmp_path, {"tasks": [[0, 1], [2, 2]], "seeds": 3, "episodes": 4})
    agent = build()
    one = agent(*pairs(ENV, torch.tensor([[0, 1], [2, 2]]), [0, 1, 2]), 4).reshape(2, 3, 4)
    np.testing.assert_array_equal(result, one.mean(1))
    assert facts["tasks"] == 2 and facts["seeds"] == 3 and facts["episodes"] == 4
    assert facts["last_return"] == pytest.approx(result[:, -1].mean())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("{", "not a JSON file"),
        ({"tasks": [[0, 0]], "goal": 1}, "found tasks, goal"),
        ({"seeds": 2}, "tasks"),
        ({"tasks": [[0, 5]]}, r"below \[5, 5\]"),
        ({"tasks": [[0, "a"]]}, "tasks: "),
        ({"tasks": [[0, 0]], "episodes": True}, "episodes"),
    ],
)
def test_what_is_wrong_in_a_request_is_named(tmp_path: Path, request_: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"request\.json: .*" + message):
        send_request(tmp_path, request_)
