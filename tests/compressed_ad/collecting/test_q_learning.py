"""Tabular Q-learning learns, and each stream by itself."""

import numpy as np
import pytest
import torch

from zoo.compressed_ad.collecting.base import HistoryRequest
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom

SETTINGS = [QLearning(), QLearning(rate=1.0, epsilon=0.1, last_epsilon=0.0, bonus=0.1)]
NAMES = ["epsilon", "bonus"]


@pytest.mark.parametrize("learner", SETTINGS, ids=NAMES)
def test_finds_goals(learner):
    env = Darkroom(5, 10)
    tasks = torch.tensor([[0, 1], [3, 3]])
    histories = learner.histories(HistoryRequest(env, tasks, [1, 2], streams=20, steps=400))
    curve = histories["reward"].reshape(2, 20, 40, 10).sum(axis=-1).mean(axis=1)
    best = env.best_return(tasks, torch.full((2, 2), 2)).numpy()
    assert (curve[:, 0] < 0.4 * best).all()
    assert (curve[:, -3:].mean(axis=1) > 0.7 * best).all()


@pytest.mark.parametrize("learner", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("env", [Darkroom(3, 4), Darkroom(3, 4, random_start=True), DarkKeyToDoor(3, 4)])
def test_history_depends_on_its_own_seed_alone(env, learner):
    tasks, seeds = env.tasks()[[1, 5, 7]], [11, 12, 13]
    together = learner.histories(HistoryRequest(env, tasks, seeds, 3, 40))
    alone = [learner.histories(HistoryRequest(env, tasks[[i]], seeds[i : i + 1], 2, 40)) for i in range(3)]
    assert np.array_equal(together[:, :2], np.concatenate(alone))
    assert not np.array_equal(together[0, 0], together[0, 1])


def test_first_values_by_hand():
    """In a 2 x 2 grid the table after each step follows from the rule alone, and so does the greedy action."""
    env = Darkroom(2, 4)
    learner = QLearning(rate=0.5, discount=0.5, epsilon=0.0, last_epsilon=0.0)
    history = learner.histories(HistoryRequest(env, torch.tensor([[1, 0]]), [3], 1, 60))[0, 0]
    table = np.zeros((2, 2, 5))
    for (row, column), action, reward, (next_row, next_column), *_ in history:
        assert table[row, column, action] == table[row, column].max()
        target = reward + 0.5 * table[next_row, next_column].max()
        table[row, column, action] += 0.5 * (target - table[row, column, action])
    assert table.max() > 1
