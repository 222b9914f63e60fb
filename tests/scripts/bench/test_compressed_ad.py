"""What a benchmark compares computes the same."""

import numpy as np
import torch

from scripts.bench.compressed_ad_originals import LastActionPolicy, PythonDarkroom, PythonEnvs
from zoo.compressed_ad import Darkroom, EpsilonCurriculum, InContextPolicy, LinearEmbedding, Transformer

ENV = Darkroom(3, 4)


def test_python_worlds_do_what_zoo_do() -> None:
    env = Darkroom()
    tasks = env.tasks()[[0, 31, 40, 49]]
    actual, original = env.start(tasks), PythonEnvs([PythonDarkroom(task) for task in tasks.tolist()])
    total = 0
    for actions in torch.randint(5, (2 * env.horizon, 4), generator=torch.Generator().manual_seed(0)):
        step = actual.step(actions)
        states, rewards, dones, records = original.step(actions.numpy())
        assert np.array_equal(states, actual.states) and np.array_equal(rewards, step.rewards)
        assert np.array_equal(dones, step.dones)
        ends = step.next_states.tolist()
        assert [record["terminal_observation"].tolist() for record in records if record] == (
            ends if step.dones.all() else []
        )
        total += int(rewards.sum())
    assert total > 3


def test_the_original_shows_the_same_last_action() -> None:
    torch.manual_seed(0)
    policy = InContextPolicy(LinearEmbedding(16, 3), Transformer(16, 2, 2, 12, dropout=0.0), arrangement="separate")
    steps = EpsilonCurriculum(ENV, 3).histories(ENV.tasks(), range(9))
    original = LastActionPolicy(policy)
    torch.testing.assert_close(original(steps), policy(steps, last_only=True).logits)
    torch.testing.assert_close(original(steps.slice(0, 5))[:, 0], policy(steps).logits[:, 4])
