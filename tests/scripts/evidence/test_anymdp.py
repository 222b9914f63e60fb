"""Tasks of AnyMDP: expected returns, and what the package's sampler makes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scripts.evidence import anymdp
from scripts.prepare_anymdp import reward_deviation, sample_task
from zoo.compressed_ad.envs.baselines import random_return
from zoo.compressed_ad.envs.gymnasium_env import GymnasiumEnv


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, np.ndarray]]:
    """Two tasks of 3 states: action 0 stays or moves on, action 1 goes to the state that ends the episode."""
    transition, reward = np.zeros((2, 3, 2, 3)), np.zeros((2, 3, 2, 3))
    transition[:, 0, 0], transition[:, 1, 0] = (0.5, 0.5, 0.0), (0.25, 0.75, 0.0)
    transition[:, :2, 1, 2] = 1.0
    reward[0, :2, 0, 1], reward[1, :2, 1, 2] = 1.0, 2.0
    fields = dict(zip(anymdp.FIELDS, (transition, reward, 0.1 * reward, np.array([[1.0, 0, 0]] * 2)), strict=True))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    anymdp.folder().mkdir()
    np.savez(anymdp.folder() / anymdp.NAME, **fields)
    anymdp.load_tasks.cache_clear()
    yield fields
    anymdp.load_tasks.cache_clear()


def test_expected_returns_are_those_of_episodes(tasks: dict[str, np.ndarray]) -> None:
    env = GymnasiumEnv(anymdp.ID, 2)
    random, best = anymdp.returns(*(tasks[name] for name in ("transition", "reward", "start")))
    np.testing.assert_allclose(random_return(env).numpy(), random, atol=0.35)
    np.testing.assert_allclose(best, [20 * 2 / 3 - 2 / 9, 2.0])  # step t pays 2/3 - 1/6 * 0.25**t
    transition, reward = tasks["transition"][0], tasks["reward"][0]
    once = anymdp.returns(transition, reward, tasks["start"][0], 1)
    assert once == (0.25, 0.5)


@pytest.mark.slow
def test_sampled_tasks_depend_on_their_seeds_and_have_rewards_of_one_scale() -> None:
    pytest.importorskip("xenoverse")
    task, again = sample_task(3), sample_task(3)
    for name in anymdp.FIELDS:
        np.testing.assert_array_equal(task[name], again[name])
    sums = task["transition"].sum(-1)
    assert np.isclose(sums, 1).any() and bool((np.isclose(sums, 1) | (sums == 0)).all())
    assert reward_deviation(*(task[name] for name in anymdp.FIELDS)) == pytest.approx(1)
