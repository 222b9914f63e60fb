"""Decision-pretrained transformers: optimal labels, and on bandits the posterior that each arm is the best."""

import math

import numpy as np
import pytest
import torch

from zoo.compressed_ad.data.datamodule import HistoryData
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.windows import HistoryItems
from zoo.compressed_ad.envs.bandit import Bandit
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.nets.embedding import SpaceEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.nets.transformer import Transformer
from zoo.compressed_ad.rollout import rollout

PULLS = 20


def best_probabilities(wins: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
    """How likely each arm is the best, (..., arms), after wins and losses (..., arms) under an even prior."""
    grid = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    density = wins[..., None] * grid.log() + losses[..., None] * (1 - grid).log()
    density = (density - density.amax(-1, keepdim=True)).exp()
    density = density / density.sum(-1, keepdim=True)  # (..., arms, 400)
    below = density.cumsum(-1) - 0.5 * density
    arms = range(below.shape[-2])
    others = [below[..., [other for other in arms if other != arm], :].prod(-2) for arm in arms]
    return (density * torch.stack(others, -2)).sum(-1)


def counts(steps: Steps, arms: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Wins and losses (B, L, arms) of each arm before each step."""
    pulled = torch.nn.functional.one_hot(steps.actions, arms).double()
    won = pulled * steps.rewards[..., None]
    return won.cumsum(1) - won, (pulled - won).cumsum(1) - (pulled - won)


def upper_bounds(env: Bandit, tasks: torch.Tensor, pulls: int) -> float:
    """Mean return of UCB1, whose bound is the mean and the root of 2 ln t / n."""
    envs, pulled = env.start(tasks, range(len(tasks))), torch.zeros(len(tasks), env.arms)
    won, total = torch.zeros_like(pulled), 0.0
    for time in range(1, pulls + 1):
        bounds = won / pulled + (2 * math.log(time) / pulled).sqrt()
        actions = bounds.nan_to_num(nan=math.inf).argmax(1)
        rewards = envs.step(actions).rewards
        pulled += torch.nn.functional.one_hot(actions, env.arms)
        won += torch.nn.functional.one_hot(actions, env.arms) * rewards[:, None]
        total += float(rewards.mean())
    return total


def test_bandits_pay_as_they_should() -> None:
    env = Bandit(3, 50, 200)
    tasks = env.tasks()[:40]
    envs, total = env.start(tasks, range(40)), torch.zeros(40)
    for _ in range(200):
        total += envs.step(envs.optimal_actions()).rewards
    assert abs(total - env.oracle_returns(tasks)).mean() < 8  # a deviation is 7 at most
    assert env.chances(tasks).argmax(1).unique().tolist() == [0, 1, 2]
    torch.testing.assert_close(env.random_returns(tasks), 200 * env.chances(tasks).mean(1))


@pytest.mark.parametrize("env", [Darkroom(4, 5), PointMass(6, 5), Bandit(3, 20, 5)], ids=lambda env: env.name)
def test_labels_are_what_who_knows_the_task_does(env: Darkroom | PointMass | Bandit) -> None:
    shown = EpsilonCurriculum(env, 3, best=0.0)
    data = HistoryData(env, demonstrator=shown, labels="optimal", length=13, offset="random")
    data.setup("fit")
    plain = HistoryItems(data.train_set.source, 13, "random", None, data.seed)
    keys = [(0, item) for item in range(6)]
    batch, same = data.train_set.__getitems__(keys), plain.__getitems__(keys)
    assert all(torch.equal(one, other) for one, other in zip(batch["steps"], same["steps"], strict=True))
    assert batch["labels"].shape == batch["steps"].actions.shape
    for row, (_, item) in enumerate(keys):
        task = data.train_tasks[item % len(data.train_tasks)][None]
        envs = env.start(task.expand(13, -1), range(13))
        if isinstance(env, Bandit):
            assert (batch["labels"][row] == envs.optimal_actions()).all()
        if isinstance(env, PointMass):
            way = env.goals(task) - batch["steps"].states[row]
            length = way.norm(dim=1, keepdim=True).clamp(min=env.speed)
            torch.testing.assert_close(batch["labels"][row], way / length, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="leave one out"):
        HistoryItems(data.train_set.source, None, "start", labels="optimal", mix_tasks=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_net_acts_by_how_likely_each_arm_is_the_best(seed: int) -> None:
    env = Bandit(3, 100_000, PULLS)
    torch.manual_seed(seed)
    net = InContextPolicy(SpaceEmbedding(env, 32), Transformer(32, 2, 2, PULLS + 1, dropout=0.0))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    shown = EpsilonCurriculum(env, 1, best=0.0)
    rng, updates, warmup = np.random.default_rng(seed), 3000, 200
    for update in range(updates):
        tasks = torch.from_numpy(rng.integers(1000, 100_000, (128, 1)))
        steps, labels = shown.labelled(tasks, rng.integers(0, 2**62, 128).tolist())
        loss = net.head.losses(net(steps).logits, labels).mean()
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min((update + 1) / warmup, 1, 2 - 2 * update / updates)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    tasks = env.tasks()[:1000]  # never trained on
    steps = shown.histories(tasks, range(1000))
    with torch.no_grad():
        found = net(steps).logits.double().softmax(-1)
    apart = 0.5 * (found - best_probabilities(*counts(steps, 3))).abs().sum(-1)
    assert apart.mean() < 0.05
    assert apart[:, -1].mean() < 0.08
    acted = rollout(net, env, tasks, range(1000), 1).returns.mean()
    assert acted > upper_bounds(env, tasks, PULLS)
