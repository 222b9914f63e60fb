"""PPO of many tasks at once does what PPO of one task does."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from zoo.compressed_ad.collecting.nets import initial_weights
from zoo.compressed_ad.collecting.ppo import LEARNERS, NUM_ACTIONS, PPO, Observer, Policy, Rollout, nets
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom
from zoo.training.resume import item_seed

CELLS = torch.cartesian_prod(torch.arange(5), torch.arange(5)).float()


def batch(tasks=3, samples=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator}
    return Rollout(
        torch.randint(0, 25, (tasks, samples), **draw),
        torch.randint(0, 5, (tasks, samples), **draw),
        -1.6 + 0.3 * torch.randn(tasks, samples, **draw),
        torch.randn(tasks, samples, **draw),
        torch.rand(tasks, samples, **draw),
    )


def weights(tasks=3, inputs=2):
    generator = torch.Generator().manual_seed(7)
    first = initial_weights(range(tasks), inputs, NUM_ACTIONS)
    return (first + 0.05 * torch.randn(first.shape, generator=generator) * (first != 0)).requires_grad_()


def plain_nets(row, inputs=2):
    """Actor and critic of one task as ordinary modules."""
    sizes = [2 * inputs * 64, 2 * 64, 2 * 64 * 64, 2 * 64, 2 * 64 * 16, 2 * 16]
    parts = row.detach().split(sizes)
    made = []
    for number, outputs in enumerate((5, 1)):
        layers = []
        for layer, (before, after) in enumerate(((inputs, 64), (64, 64), (64, 16))):
            used = after if layer < 2 else outputs
            linear = nn.Linear(before, used)
            linear.weight.data = parts[2 * layer].view(2, before, after)[number][:, :used].T.clone()
            linear.bias.data = parts[2 * layer + 1].view(2, after)[number][:used].clone()
            layers += [linear, nn.Tanh()]
        made.append(nn.Sequential(*layers[:-1]))
    return nn.ModuleList(made)


def test_nets_are_those_of_one_task():
    rows = torch.randint(0, 9, (3, 11, 4)).float()
    log_probabilities, values = nets(weights(inputs=4), rows)
    for task in range(3):
        actor, critic = plain_nets(weights(inputs=4)[task], inputs=4)
        torch.testing.assert_close(log_probabilities[task], actor(rows[task]).log_softmax(-1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(values[task], critic(rows[task])[:, 0], rtol=1e-5, atol=1e-5)


def test_initial_weights_are_orthogonal():
    actor, critic = plain_nets(initial_weights([3], 2, NUM_ACTIONS)[0])
    for net, gain in ((actor, 0.01), (critic, 1.0)):
        for layer, scale in ((net[0], math.sqrt(2)), (net[2], math.sqrt(2)), (net[4], gain)):
            matrix = layer.weight if layer.weight.shape[0] <= layer.weight.shape[1] else layer.weight.T
            torch.testing.assert_close(matrix @ matrix.T, scale**2 * torch.eye(len(matrix)), rtol=1e-4, atol=1e-5)
            assert not layer.bias.any()
    assert not torch.equal(actor[0].weight, critic[0].weight)


def test_looking_cells_up_gives_the_same_gradients():
    samples = batch()
    by_cell, by_row = weights(), weights()
    PPO().losses(by_cell, CELLS, samples).sum().backward()
    rows = samples._replace(observations=CELLS[samples.observations])
    PPO().losses(by_row, None, rows).sum().backward()
    torch.testing.assert_close(by_cell.grad, by_row.grad, rtol=1e-4, atol=1e-6)


def test_update_is_that_of_one_task():
    """One task at a time, with the modules, optimizer and clipping of torch."""
    ppo = PPO(minibatch=100, epochs=3, max_norm=0.3)
    samples = batch(samples=100)
    together = nn.Parameter(weights().detach())
    optimizer = torch.optim.Adam([together], lr=1e-3, eps=1e-5, fused=True)
    ppo._learn(together, optimizer, CELLS, samples, number=0)
    for task in range(3):
        modules = plain_nets(weights()[task])
        single = torch.optim.Adam(modules.parameters(), lr=1e-3, eps=1e-5)
        cells, actions, old, advantages, returns = (each[task] for each in samples)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(3):
            chances = modules[0](CELLS[cells]).log_softmax(-1)[torch.arange(100), actions]
            ratio = (chances - old).exp()
            gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            error = nn.functional.mse_loss(modules[1](CELLS[cells])[:, 0], returns)
            single.zero_grad()
            (0.5 * error - gain).backward()
            nn.utils.clip_grad_norm_(modules.parameters(), 0.3)
            single.step()
        got = plain_nets(together[task])
        for name, value in modules.named_parameters():
            torch.testing.assert_close(got.get_parameter(name), value.detach(), rtol=1e-3, atol=2e-5)


def test_advantages_by_hand():
    ppo = PPO(discount=0.5, trace=0.5)
    rewards, values = torch.tensor([[1.0], [0.0], [2.0]]), torch.tensor([[4.0], [2.0], [8.0]])
    next_values = torch.tensor([[2.0], [0.0], [6.0]])  # an episode ends after the second step
    last = 2 + 0.5 * 6 - 8
    second = 0 + 0.5 * 0 - 2
    first = 1 + 0.5 * 2 - 4 + 0.25 * second
    expected = torch.tensor([[first], [second], [last]])
    torch.testing.assert_close(ppo.advantages(rewards, values, next_values, [False, True, False]), expected)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_what_is_expected_behind_an_episode(bootstrap):
    """With a trace of 0 the critic's targets are reward + discount * value of what followed."""
    env, tasks = Darkroom(3, 4), Darkroom(3, 4).tasks()[[0]]
    ppo = PPO(trace=0.0, discount=0.5, bootstrap=bootstrap)
    observer = Observer(3, (1, 2), 1, 1000)
    policy = Policy(initial_weights([1], 2, NUM_ACTIONS), observer.cells)
    piece = np.zeros((1, 2, 6, 7), dtype=np.int8)
    uniforms = torch.rand(6, 1, 2, generator=torch.Generator().manual_seed(0))
    rollout = ppo._play(policy, env.start(tasks.repeat(2, 1)), observer, uniforms, piece)
    moved = torch.from_numpy(piece).long()
    followed = policy((moved[..., 4] * 3 + moved[..., 5]).view(1, -1))[1].view(1, 2, 6)
    counts = torch.ones(6) if bootstrap else torch.tensor([1, 1, 1, 0, 1, 1])
    expected = moved[..., 3] + 0.5 * followed * counts
    torch.testing.assert_close(rollout.returns, expected.transpose(1, 2).flatten(1))


def test_frames_begin_with_zeros():
    observer = Observer(9, (1, 2), 3, 1000)
    assert observer.cells is None
    first, second = torch.tensor([[4, 4], [1, 2]]), torch.tensor([[5, 4], [1, 3]])
    assert observer.observe(first).tolist() == [[[0, 0, 0, 0, 4, 4], [0, 0, 0, 0, 1, 2]]]
    assert observer.look(second).tolist() == observer.observe(second).tolist()
    assert observer.look(first).tolist() == [[[4, 4, 5, 4, 4, 4], [1, 2, 1, 3, 1, 2]]]
    observer.forget()
    assert observer.look(first).tolist() == [[[0, 0, 0, 0, 4, 4], [0, 0, 0, 0, 1, 2]]]


CASES = [
    (Darkroom(3, 5), PPO(rollout_steps=10, minibatch=30, epochs=2)),
    (Darkroom(3, 5, random_start=True), PPO(rollout_steps=7, minibatch=30, epochs=2)),
    (DarkKeyToDoor(3, 6), PPO(rollout_steps=6, minibatch=20, epochs=2, frames=4, bootstrap=True)),
    (Darkroom(3, 5), PPO(learners=3, rollout_steps=10, minibatch=30, epochs=2)),
]


@pytest.mark.parametrize(("env", "ppo"), CASES, ids=["cells", "random_start", "frames", "learners"])
def test_history_depends_on_its_own_seed_alone(env, ppo):
    tasks, seeds = env.tasks()[[1, 5, 7, 2]], [11, 12, 13, 14]
    together = ppo.histories(env, tasks, seeds, streams=10, steps=60)
    alone = [ppo.histories(env, tasks[i : i + 1], seeds[i : i + 1], streams=10, steps=60) for i in range(4)]
    assert np.array_equal(together, np.concatenate(alone))
    assert not np.array_equal(together[0, 0], together[0, 1])


@pytest.mark.parametrize("case", [0, 2], ids=["cells", "frames"])
def test_history_is_what_happened(case):
    env, ppo = CASES[case]
    tasks = env.tasks()[[1, 5]]
    told = []
    histories = ppo.histories(env, tasks, [1, 2], streams=3, steps=32, advance=told.append)
    assert sum(told) == 2 * 3 * 32
    worlds = env.start(tasks.repeat_interleave(3, dim=0))
    for step in histories.reshape(6, 32, 7).swapaxes(0, 1):
        assert np.array_equal(step[:, :2], worlds.states)
        taken = worlds.step(torch.from_numpy(step[:, 2]))
        assert np.array_equal(step[:, 3], taken.rewards)
        assert np.array_equal(step[:, 4:6], taken.next_states)
        assert (step[:, 6] == taken.done).all()


def test_learns():
    env, tasks = Darkroom(5, 10), torch.tensor([[0, 1], [3, 4]])
    ppo = PPO(rollout_steps=40, minibatch=500, epochs=10)
    histories = ppo.histories(env, tasks, [1, 2], streams=50, steps=400)
    curve = histories[..., 3].reshape(2, 50, 40, 10).sum(axis=-1, dtype=int).mean(axis=1)
    best = env.best_return(tasks, torch.full((2, 2), 2)).numpy()
    assert (curve[:, 0] < 0.2 * best).all()
    assert (curve[:, -4:].mean(axis=1) > 0.7 * best).all()


def test_learners_of_a_task_know_nothing_of_each_other():
    env, tasks = Darkroom(3, 5), Darkroom(3, 5).tasks()[[1, 5]]
    settings = {"rollout_steps": 10, "minibatch": 30, "epochs": 2}
    together = PPO(learners=2, **settings).histories(env, tasks, [7, 8], streams=7, steps=60)
    assert together.shape == (2, 7, 60, 7)
    seeds = [item_seed(seed, LEARNERS, number) for seed in (7, 8) for number in range(2)]
    alone = PPO(**settings).histories(env, tasks.repeat_interleave(2, dim=0), seeds, streams=4, steps=60)
    assert np.array_equal(together, alone.reshape(2, 8, 60, 7)[:, :7])
    assert "learners" not in PPO().describe() and PPO(learners=2).describe()["learners"] == 2


def test_learns_with_frames():
    env, tasks = DarkKeyToDoor(3, 10), torch.tensor([[0, 0, 2, 2]])
    ppo = PPO(rollout_steps=20, minibatch=250, epochs=10, frames=4)
    histories = ppo.histories(env, tasks, [1], streams=50, steps=300)
    curve = histories[..., 3].reshape(50, 30, 10).sum(axis=-1, dtype=int).mean(axis=0)
    assert curve[-3:].mean() > curve[:3].mean() + 0.4


@pytest.mark.parametrize("change", [{"frames": 0}, {"minibatch": 1}, {"discount": 1.1}, {"learning_rate": 0.0}])
def test_values_out_of_range(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))} is"):
        PPO(**change)
