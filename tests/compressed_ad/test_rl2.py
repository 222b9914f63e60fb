"""RL^2: what the GRU sees, a state that survives episodes and ends with the trial, PPO over whole trials."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from zoo.compressed_ad.data.trials import TrialData
from zoo.compressed_ad.envs.bandit import Bandit
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.envs.schema import Box, Discrete
from zoo.compressed_ad.nets.heads import BinsHead
from zoo.compressed_ad.nets.recurrent import RecurrentPolicy, _scaled
from zoo.compressed_ad.rollout import Player, rollout
from zoo.compressed_ad.task import RL2Task

ENV = Darkroom(3, 4)
POINTS = PointMass(8, 5)


def policy(env: Env = ENV, hidden: int = 12) -> RecurrentPolicy:
    torch.manual_seed(0)
    head = BinsHead(env, hidden, 5) if isinstance(env.schema.action, Box) else None
    made = RecurrentPolicy(env, hidden, head)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return made


def task(env: Env = ENV, net: RecurrentPolicy | None = None, **settings: object) -> RL2Task:
    made = RL2Task(net or policy(env), env, torch.optim.Adam, **settings)
    made.logged = {}
    made.log_terms = lambda stage, terms, batch_size: made.logged.update(terms)
    return made


@pytest.mark.parametrize("env", [ENV, POINTS, Bandit(3, 20, 4)], ids=["grid", "points", "bandit"])
def test_acting_step_by_step_is_the_pass_over_the_trial(env: Env) -> None:
    net, tasks = policy(env), env.tasks()[[1, 4, 2]]
    with Player(net, env, tasks, [1, 2, 3], record=True) as player:
        player.advance(3 * env.schema.limit)
    parameters, values = net(
        player.steps[0]._replace() if len(player.steps) == 1 else type(player.steps[0]).cat(player.steps)
    )
    assert values.shape == (3, 3 * env.schema.limit)
    torch.testing.assert_close(parameters, torch.stack(player.logits, 1), atol=1e-5, rtol=1e-5)


def test_the_state_survives_episodes_and_is_reset_with_the_trial() -> None:
    """A bandit shows nothing: what differs between the first pulls of episodes is memory alone."""
    env, net = Bandit(3, 20, 4), policy(Bandit(3, 20, 4))
    steps = rollout(net, env, env.tasks()[:2], [1, 2], 3, record=True)
    logits = steps.logits
    assert (logits[:, 4] - logits[:, 0]).abs().amax() > 0.05  # the second episode's first pull
    changed = steps.steps._replace(rewards=steps.steps.rewards.clone())
    changed.rewards[:, 1] = 1 - changed.rewards[:, 1]  # of the first episode
    before, after = net(steps.steps)[0], net(changed)[0]
    assert torch.equal(before[:, :2], after[:, :2]) and (before[:, 8:] - after[:, 8:]).abs().amax() > 1e-4
    again = rollout(net, env, env.tasks()[:2], [3, 4], 1, record=True)
    assert torch.equal(again.logits[:, 0], logits[:, 0])  # of another trial, nothing is known
    ends = steps.steps._replace(dones=~steps.steps.dones)
    assert not torch.allclose(net(ends)[0], before)


def test_what_the_gru_sees() -> None:
    assert _scaled(torch.tensor([[2, 0]]), ENV.schema.observation).tolist() == [[0, 0, 1, 1, 0, 0]]
    assert _scaled(torch.tensor([3]), Discrete(4)).tolist() == [[0, 0, 0, 1]]
    space = POINTS.schema.observation
    torch.testing.assert_close(_scaled(torch.tensor([[0.75, -0.375]]), space), torch.tensor([[1.0, -0.5]]))
    with pytest.raises(ValueError, match="picture"):
        RecurrentPolicy(
            SimpleNamespace(
                name="x", schema=SimpleNamespace(observation=Box((8, 8, 3), "uint8", (0,), (255,)), action=Discrete(2))
            )
        )
    with pytest.raises(ValueError, match="need a head"):
        RecurrentPolicy(POINTS)
    with pytest.raises(ValueError, match="the policy's observation is"):
        policy().check(Darkroom(5, 4))


def test_advantages_run_across_episodes_and_end_with_the_trial() -> None:
    made = task(discount=0.5, trace=1.0)
    rewards, values = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[10.0, 20.0, 40.0]])
    found = made.advantages(rewards, values) + values
    torch.testing.assert_close(found, torch.tensor([[1 + 1 + 1.0, 2 + 2.0, 4.0]]))


def test_the_first_step_is_the_policy_gradient_and_later_ones_are_clipped() -> None:
    made = task(entropy_weight=0.0, value_weight=0.0, episodes=2)
    data = TrialData(ENV, batch_size=6, trials=2, repeats=3)
    data.setup("fit")
    batches = iter(data.train_dataloader())
    batch = next(batches)
    loss = made.training_step(batch, 0)
    _, steps, before, advantages, _ = made._trial
    assert (
        steps.length == 8
        and abs(float(advantages.mean())) < 1e-6
        and float(loss.detach()) == pytest.approx(0, abs=1e-6)
    )
    loss.backward()
    found = made.policy.gru.weight_hh_l0.grad.clone()
    made.zero_grad()
    parameters, _ = made.policy(steps)
    (made.policy.head.losses(parameters, steps.actions) * advantages).mean().backward()
    torch.testing.assert_close(found, made.policy.gru.weight_hh_l0.grad)
    with torch.no_grad():
        made.policy.head.bias += torch.tensor([9.0, 0, 0, 0, 0])  # far beyond the clip
    same = next(batches)
    assert torch.equal(same["tasks"], batch["tasks"]) and same["seeds"] == batch["seeds"]
    made.zero_grad()
    made.training_step(same, 1).backward()
    ratios = (-made.policy.head.losses(made.policy(steps)[0], steps.actions) - before).exp()
    gains = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    assert float(made.logged["loss_policy"].detach()) == pytest.approx(-float(gains.mean().detach()), rel=1e-5)
    next(batches)
    other = next(batches)
    assert other["trial"] == batch["trial"] + 1 and other["seeds"] != batch["seeds"]


def test_a_run_goes_on_in_the_middle_of_a_batch_of_trials() -> None:
    data = TrialData(ENV, batch_size=6, trials=2, repeats=3)
    data.setup("fit")
    first, second = list(data.train_dataloader())[:2]
    whole = task(episodes=2)
    optimizer = torch.optim.Adam(whole.policy.parameters(), 0.05)
    whole.training_step(first, 0).backward()
    optimizer.step()
    resumed = task(episodes=2)
    resumed.load_state_dict(whole.state_dict())
    assert torch.equal(whole.training_step(second, 1), resumed.training_step(second, 1))


def test_two_processes_see_the_trials_of_one() -> None:
    def seeds(rank: int, world: int) -> list[list[int]]:
        data = TrialData(ENV, batch_size=4 // world, trials=2, repeats=2)
        data._rank_and_world = lambda: (rank, world)
        data.setup("fit")
        return [batch["seeds"] for batch in data.train_dataloader()]

    for whole, one, two in zip(seeds(0, 1), seeds(0, 2), seeds(1, 2), strict=True):
        assert sorted(one + two) == sorted(whole)


def test_entropies() -> None:
    logits = torch.randn(4, 3, 5)
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(policy().head.entropies(logits), expected)
    head = BinsHead(POINTS, 8, 4)
    uniform = head.entropies(torch.zeros(1, 8))  # even bins: two numbers, each evenly from -1 to 1
    torch.testing.assert_close(uniform, torch.tensor([2 * torch.log(torch.tensor(2.0))]))


def test_learns_a_bandit_of_two_arms() -> None:
    env = Bandit(2, 1000, 10)
    torch.manual_seed(0)
    made = task(env, RecurrentPolicy(env, 16), episodes=1, discount=0.9, entropy_weight=0.0, reward_scale=0.3)
    data = TrialData(env, batch_size=64, trials=40, repeats=6)
    data.setup("fit")
    optimizer = torch.optim.Adam(made.policy.parameters(), 0.01)
    for number, batch in enumerate(data.train_dataloader()):
        optimizer.zero_grad()
        made.training_step(batch, number).backward()
        torch.nn.utils.clip_grad_norm_(made.policy.parameters(), 1.0)
        optimizer.step()
    tasks = data.test_tasks.repeat_interleave(5, 0)
    earned = rollout(made.policy, env, tasks, range(len(tasks)), 1).returns.double().mean()
    random, best = (float(each(data.test_tasks).mean()) for each in (env.random_returns, env.oracle_returns))
    assert earned > random + 0.25 * (best - random)
