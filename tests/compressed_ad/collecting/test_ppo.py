"""PPO of many tasks at once does what PPO of one task does, and its distributions are torch's."""

import numpy as np
import pytest
import torch
from torch import distributions, nn

from tests.compressed_ad.envs.scripted import PACKAGE  # noqa: F401 - registers the environments
from tests.compressed_ad.parts import assert_possible, env_of
from zoo.compressed_ad import DarkKeyToDoor, Darkroom, GymnasiumEnv, PointMass
from zoo.compressed_ad.collecting.base import HistoryRequest
from zoo.compressed_ad.collecting.ppo import PPO, PpoRollout
from zoo.compressed_ad.collecting.ppo_nets import ActorCritics, Observer
from zoo.compressed_ad.data.history import to_steps
from zoo.compressed_ad.envs.spaces import Box, Discrete

ROOM, POINTS = Darkroom(5, 10), PointMass(8, 6)
TABLE = Observer(ROOM, (1, 1), 1, 1000).table
CORRIDOR = GymnasiumEnv("Corridor-v0", [{"mirrored": False}, {"mirrored": True}], limit=7)
SMALL = PPO(rollout_steps=9, minibatch=30, epochs=2)


def batch(tasks: int = 3, samples: int = 40) -> PpoRollout:
    options = {"generator": torch.Generator().manual_seed(0)}
    return PpoRollout(
        torch.randint(0, 25, (tasks, samples), **options),
        torch.randint(0, 5, (tasks, samples), **options),
        -1.6 + 0.3 * torch.randn(tasks, samples, **options),
        torch.randn(tasks, samples, **options),
        torch.rand(tasks, samples, **options),
    )


def weights(tasks: int = 3, inputs: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    first = ActorCritics(ROOM, inputs).initial_weights(range(tasks))
    return (first + 0.05 * torch.randn(first.shape, generator=generator) * (first != 0)).requires_grad_()


def plain_nets(row: torch.Tensor, inputs: int = 2) -> nn.ModuleList:
    """Actor and critic of one task as ordinary modules."""
    parts = row.detach().split([2 * inputs * 64, 2 * 64, 2 * 64 * 64, 2 * 64, 2 * 64 * 16, 2 * 16])
    nets = []
    for number, outputs in enumerate((5, 1)):
        layers: list[nn.Module] = []
        for layer, (before, after) in enumerate(((inputs, 64), (64, 64), (64, 16))):
            used = after if layer < 2 else outputs
            linear = nn.Linear(before, used)
            linear.weight.data = parts[2 * layer].view(2, before, after)[number][:, :used].T.clone()
            linear.bias.data = parts[2 * layer + 1].view(2, after)[number][:used].clone()
            layers += [linear, nn.Tanh()]
        nets.append(nn.Sequential(*layers[:-1]))
    return nn.ModuleList(nets)


def test_update_is_that_of_one_task() -> None:
    """One task at a time, with the modules, optimizer and clipping of torch."""
    ppo, samples, together = PPO(minibatch=100, epochs=3, max_norm=0.3), batch(samples=100), nn.Parameter(weights())
    optimizer = torch.optim.Adam([together], lr=1e-3, eps=1e-5, fused=True)
    ppo._update(together, optimizer, ActorCritics(ROOM, 2), TABLE, samples, number=0)
    for task in range(3):
        modules = plain_nets(weights()[task])
        single = torch.optim.Adam(modules.parameters(), lr=1e-3, eps=1e-5)
        cells, actions, old, advantages, returns = (each[task] for each in samples)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(3):
            log_probabilities = modules[0](TABLE[cells]).log_softmax(-1)[torch.arange(100), actions]
            ratio = (log_probabilities - old).exp()
            gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            error = nn.functional.mse_loss(modules[1](TABLE[cells])[:, 0], returns)
            single.zero_grad()
            (0.5 * error - gain).backward()
            nn.utils.clip_grad_norm_(modules.parameters(), 0.3)
            single.step()
        updated = plain_nets(together[task])
        for name, value in modules.named_parameters():
            torch.testing.assert_close(updated.get_parameter(name), value.detach(), rtol=1e-3, atol=2e-5)


def test_a_last_minibatch_of_one_sample_is_learned_from() -> None:
    ppo, together = PPO(minibatch=99, epochs=1), nn.Parameter(weights())
    optimizer = torch.optim.Adam([together], lr=1e-3)
    ppo._update(together, optimizer, ActorCritics(ROOM, 2), TABLE, batch(samples=100), number=0)
    assert together.isfinite().all()


def test_advantages_by_hand() -> None:
    ppo = PPO(discount=0.5, trace=0.5)
    rewards, values = torch.tensor([[1.0], [0.0], [2.0]]), torch.tensor([[4.0], [2.0], [8.0]])
    next_values = torch.tensor([[2.0], [0.0], [6.0]])  # an episode ends after the second step
    last, second = 2 + 0.5 * 6 - 8, 0 + 0.5 * 0 - 2
    expected = torch.tensor([[1 + 0.5 * 2 - 4 + 0.25 * second], [second], [last]])
    torch.testing.assert_close(ppo.advantages(rewards, values, next_values, [False, True, False]), expected)


@pytest.mark.parametrize("action", [Discrete(18), Box(np.array([[-1], [0], [-4.0]]), np.array([[1], [3], [4.0]]))])
def test_actions_are_sampled_and_scored_as_torch_does(action: Discrete | Box) -> None:
    nets = ActorCritics(env_of(Box(-np.inf, np.inf, (2, 2)), action), 4)
    generator = torch.Generator().manual_seed(0)
    parameters = nets.initial_weights([3, 4])
    parameters += 0.1 * torch.randn(parameters.shape, generator=generator)
    observations = torch.randn(2, 4000, 4, generator=generator)[:, :1].expand(-1, 4000, -1)
    uniforms = torch.rand(nets.numbers, 2, 4000, generator=generator, dtype=torch.float64)
    outputs, _ = nets.evaluate(parameters, observations)
    actions = nets.sample(parameters, outputs, uniforms)
    scores = nets.evaluate_actions(parameters, None, observations, actions)[0]
    env_actions = nets.environment_actions(actions.flatten(0, 1))
    if isinstance(action, Discrete):
        shares = nn.functional.one_hot(actions, 18).float().mean(1)
        torch.testing.assert_close(shares, outputs[:, 0].exp(), atol=0.03, rtol=0)
        torch.testing.assert_close(scores, distributions.Categorical(logits=outputs).log_prob(actions))
        assert env_actions.tolist() == actions.flatten().tolist()
        return
    stds = parameters[:, None, -3:].exp().expand_as(outputs)
    torch.testing.assert_close(scores, distributions.Normal(outputs, stds).log_prob(actions).sum(-1))
    torch.testing.assert_close(actions.mean(1), outputs[:, 0], atol=0.08, rtol=0)
    low, high = torch.from_numpy(action.low), torch.from_numpy(action.high)
    expected = (low + high) / 2 + actions.flatten(0, 1)[..., None] * (high - low) / 2
    torch.testing.assert_close(env_actions, expected.maximum(low).minimum(high))


CASES = {
    "table": (Darkroom(3, 5), PPO(rollout_steps=10, minibatch=30, epochs=2)),
    "random_start": (Darkroom(3, 5, random_start=True), PPO(rollout_steps=7, minibatch=30, epochs=2)),
    "frames": (DarkKeyToDoor(3, 6), PPO(rollout_steps=6, minibatch=20, epochs=2, frames=4)),
    "learners": (Darkroom(3, 5), PPO(learners=3, rollout_steps=10, minibatch=30, epochs=2)),
    "points": (POINTS, SMALL),
    "corridor": (CORRIDOR, SMALL),
}


@pytest.mark.parametrize("case", CASES)
def test_history_is_of_the_environment_and_depends_on_its_own_seed_alone(case: str) -> None:
    env, ppo = CASES[case]
    tasks = env.tasks()[:2]
    histories = ppo.histories(HistoryRequest(env, tasks, [11, 12], 4, 30))
    assert histories.shape == (2, 4, 30) and histories.dtype == env.schema.dtype
    assert np.array_equal(ppo.histories(HistoryRequest(env, tasks[1:], [12], 4, 30)), histories[1:])
    assert not np.array_equal(histories[0, 0]["action"], histories[0, 1]["action"])
    rows = histories.reshape(8, 30)
    done = (rows["terminated"] | rows["truncated"])[:, :-1]
    assert np.array_equal(rows["state"][:, 1:][~done], rows["next_state"][:, :-1][~done])
    if case == "learners":  # each gives as many streams, or one less
        more = ppo.histories(HistoryRequest(env, tasks, [11, 12], 6, 30))
        assert np.array_equal(more[:, [0, 1, 2, 4]], histories)
    if case in ("table", "frames"):
        assert_possible(env, tasks.repeat_interleave(4, dim=0), to_steps(rows, env.schema))


def test_learns() -> None:
    tasks = torch.tensor([[0, 1], [3, 4]])
    ppo = PPO(rollout_steps=40, minibatch=500, epochs=10)
    histories = ppo.histories(HistoryRequest(ROOM, tasks, [1, 2], streams=50, steps=400))
    curve = histories["reward"].reshape(2, 50, 40, 10).sum(axis=-1).mean(axis=1)
    best = ROOM.best_return(tasks, torch.full((2, 2), 2)).numpy()
    assert (curve[:, 0] < 0.2 * best).all() and (curve[:, -4:].mean(axis=1) > 0.7 * best).all()
    frames = PPO(rollout_steps=20, minibatch=250, epochs=10, frames=4)
    request = HistoryRequest(DarkKeyToDoor(3, 10), torch.tensor([[0, 0, 2, 2]]), [1], 50, 300)
    rewards = frames.histories(request)["reward"]
    curve = rewards.reshape(50, 30, 10).sum(axis=-1).mean(axis=0)
    assert curve[-3:].mean() > curve[:3].mean() + 0.4
    env, ppo = PointMass(8, 10), PPO(rollout_steps=40, minibatch=400, epochs=10)
    request = HistoryRequest(env, env.tasks()[[3]], [1], streams=20, steps=480)
    returns = ppo.histories(request)["reward"].reshape(20, 48, 10).sum(-1)
    best, random = float(env.oracle_returns(env.tasks()[:1])), returns[:, :4].mean()
    assert returns[:, -4:].mean() > random + 0.6 * (best - random)
