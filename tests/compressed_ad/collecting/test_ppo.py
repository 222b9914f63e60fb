"""PPO of many tasks at once does what PPO of one task does, and its distributions are torch's."""

import math

import numpy as np
import pytest
import torch
from torch import distributions, nn

from tests.compressed_ad.envs.scripted import PACKAGE  # noqa: F401 - registers the environments
from zoo.compressed_ad.collecting.ppo import PPO, PpoRollout
from zoo.compressed_ad.collecting.ppo_nets import ActorCritics, Observer, RewardScaler, RunningMoments
from zoo.compressed_ad.data.history_writer import Recorder
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom
from zoo.compressed_ad.envs.gymnasium_env import GymnasiumEnv
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.envs.spaces import Box, Discrete, Schema

ROOM, POINTS = Darkroom(5, 10), PointMass(8, 6)
TABLE = Observer(ROOM, (1, 1), 1, 1000).table
CORRIDOR = GymnasiumEnv("Corridor-v0", [{"mirrored": False}, {"mirrored": True}], limit=7)
SMALL = PPO(rollout_steps=9, minibatch=30, epochs=2)


def env_of(observation: Box | Discrete, action: Box | Discrete) -> Env:
    env = PointMass()
    env.schema = Schema(observation, action, 20)
    return env


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


def test_nets_are_those_of_one_task_and_begin_orthogonal() -> None:
    rows = torch.randint(0, 9, (3, 11, 4)).float()
    log_probabilities, values = ActorCritics(ROOM, 4).evaluate(weights(inputs=4), rows)
    for task in range(3):
        actor, critic = plain_nets(weights(inputs=4)[task], inputs=4)
        torch.testing.assert_close(log_probabilities[task], actor(rows[task]).log_softmax(-1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(values[task], critic(rows[task])[:, 0], rtol=1e-5, atol=1e-5)
    actor, critic = plain_nets(ActorCritics(ROOM, 2).initial_weights([3])[0])
    for net, gain in ((actor, 0.01), (critic, 1.0)):
        for layer, scale in ((net[0], math.sqrt(2)), (net[2], math.sqrt(2)), (net[4], gain)):
            matrix = layer.weight if layer.weight.shape[0] <= layer.weight.shape[1] else layer.weight.T
            torch.testing.assert_close(matrix @ matrix.T, scale**2 * torch.eye(len(matrix)), rtol=1e-4, atol=1e-5)
            assert not layer.bias.any()


def test_a_table_gives_the_same_gradients() -> None:
    samples, nets = batch(), ActorCritics(ROOM, 2)
    by_table, by_row = weights(), weights()
    PPO().losses(by_table, nets, TABLE, samples).sum().backward()
    PPO().losses(by_row, nets, None, samples._replace(observations=TABLE[samples.observations])).sum().backward()
    torch.testing.assert_close(by_table.grad, by_row.grad, rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize("env", [Darkroom(3, 4), GymnasiumEnv("Counter-v0", [{"length": 3}, {"length": 9}], limit=4)])
def test_targets_are_rewards_and_what_follows(env: Env) -> None:
    """With a trace of 0 the critic's targets are (scaled) reward + discount * value of the true next state."""
    ppo = PPO(trace=0.0, discount=0.5, rollout_steps=10)
    observer = Observer(env, (2, 1), 1, 1000)
    nets, is_grid = ActorCritics(env, observer.inputs), isinstance(env, Darkroom)
    parameters = nets.initial_weights([1, 2])
    parameters += 0.1 * torch.randn(parameters.shape, generator=torch.Generator().manual_seed(0))
    scaler, recorder = None if is_grid else RewardScaler((2, 1), 0.5), Recorder(env.schema, 2, 10)
    uniforms = torch.rand(10, nets.numbers, 2, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rollout = ppo._collect(parameters, nets, env.start(env.tasks()[:2], [0, 1]), observer, scaler, uniforms, recorder)
    rows = recorder.histories
    terminated, truncated = (torch.from_numpy(rows[name].copy()) for name in ("terminated", "truncated"))
    if not is_grid:
        assert terminated[0].nonzero().flatten().tolist() == [2, 5, 8]
        assert truncated[1].nonzero().flatten().tolist() == [3, 7]
    rewards = torch.from_numpy(rows["reward"].copy())
    rewards = rewards if scaler is None else (rewards / scaler._moments.std()).clamp(-10, 10)
    states = torch.from_numpy(rows["next_state"].astype(env.schema.observation.dtype))
    calls = [observer.preview(states[:, time], observer.frames) for time in range(10)]
    after = torch.cat([nets.evaluate_actions(parameters, observer.table, each, torch.zeros(2, 1).long() if is_grid else
                                             torch.zeros(2, 1, 2))[1] for each in calls], 1)  # fmt: skip
    ended = terminated | truncated if is_grid else terminated
    targets, last = rewards + 0.5 * after * ~ended, terminated | truncated
    last[:, -1] = True  # within episodes, the next value is that of the observation when it was scaled
    rows_checked = torch.ones_like(last) if is_grid else last
    torch.testing.assert_close(rollout.returns[rows_checked], targets[rows_checked], rtol=1e-3, atol=1e-3)


def test_frames_begin_with_zeros() -> None:
    observer = Observer(Darkroom(), (1, 2), 3, 1000)
    assert observer.table is None and observer.inputs == 6
    first, second = torch.tensor([[4, 4], [1, 2]]), torch.tensor([[5, 4], [1, 3]])
    assert observer.observe(first).tolist() == [[[0, 0, 0, 0, 4, 4], [0, 0, 0, 0, 1, 2]]]
    assert observer.observe(second).tolist() == [[[0, 0, 4, 4, 5, 4], [0, 0, 1, 2, 1, 3]]]
    observer.reset(torch.tensor([[True, False]]))
    assert observer.preview(first, observer.frames).tolist() == [[[0, 0, 0, 0, 4, 4], [1, 2, 1, 3, 1, 2]]]


def test_moments_and_reward_scales_are_those_of_all_rows() -> None:
    rows = 1e3 + torch.randn(2, 30, 3, generator=torch.Generator().manual_seed(0)).double()
    moments = RunningMoments(2, 3)
    for part in rows.split([1, 7, 22], 1):
        moments.add(part)
    np.testing.assert_allclose(moments.mean, rows.mean(1), rtol=1e-12)
    np.testing.assert_allclose(moments.std(), rows.std(1, correction=0), rtol=1e-3)
    rewards, dones = torch.tensor([4.0, 2.0, 8.0, 0.0]), torch.tensor([False, True, False, False])
    scaled = RewardScaler((1, 1), 0.5).scale(rewards.view(4, 1, 1), dones.view(4, 1, 1)).flatten()
    torch.testing.assert_close(scaled, rewards / float(np.std([4, 4, 8, 4])), rtol=1e-3, atol=0)


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
    tasks, counts = env.tasks()[:2], []
    histories = ppo.histories(env, tasks, [11, 12], streams=4, steps=30, advance=counts.append)
    assert histories.shape == (2, 4, 30) and histories.dtype == env.schema.dtype
    assert sum(counts) == 2 * (12 if case == "learners" else 4) * 30 // (2 if case == "learners" else 1)
    assert np.array_equal(ppo.histories(env, tasks[1:], [12], streams=4, steps=30), histories[1:])
    assert not np.array_equal(histories[0, 0]["action"], histories[0, 1]["action"])
    rows = histories.reshape(8, 30)
    done = (rows["terminated"] | rows["truncated"])[:, :-1]
    assert np.array_equal(rows["state"][:, 1:][~done], rows["next_state"][:, :-1][~done])
    if case in ("table", "frames"):
        envs = env.start(tasks.repeat_interleave(4, dim=0))
        for step in rows.T:
            assert np.array_equal(step["state"], envs.states)
            transition = envs.step(torch.from_numpy(step["action"].astype(int)))
            assert np.array_equal(step["reward"], transition.rewards)
            assert np.array_equal(step["next_state"], transition.next_states)
            assert np.array_equal(step["truncated"], transition.truncated)


def test_learns() -> None:
    tasks = torch.tensor([[0, 1], [3, 4]])
    histories = PPO(rollout_steps=40, minibatch=500, epochs=10).histories(ROOM, tasks, [1, 2], streams=50, steps=400)
    curve = histories["reward"].reshape(2, 50, 40, 10).sum(axis=-1).mean(axis=1)
    best = ROOM.best_return(tasks, torch.full((2, 2), 2)).numpy()
    assert (curve[:, 0] < 0.2 * best).all() and (curve[:, -4:].mean(axis=1) > 0.7 * best).all()
    frames = PPO(rollout_steps=20, minibatch=250, epochs=10, frames=4)
    rewards = frames.histories(DarkKeyToDoor(3, 10), torch.tensor([[0, 0, 2, 2]]), [1], 50, 300)["reward"]
    curve = rewards.reshape(50, 30, 10).sum(axis=-1).mean(axis=0)
    assert curve[-3:].mean() > curve[:3].mean() + 0.4
    env, ppo = PointMass(8, 10), PPO(rollout_steps=40, minibatch=400, epochs=10)
    returns = ppo.histories(env, env.tasks()[[3]], [1], streams=20, steps=480)["reward"].reshape(20, 48, 10).sum(-1)
    best, random = float(env.oracle_returns(env.tasks()[:1])), returns[:, :4].mean()
    assert returns[:, -4:].mean() > random + 0.6 * (best - random)
