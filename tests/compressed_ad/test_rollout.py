import pytest
import torch

from tests.compressed_ad import parts
from tests.compressed_ad.envs.scripted import PACKAGE  # noqa: F401 - registers the environments
from tests.compressed_ad.parts import assert_possible
from zoo.compressed_ad import Env, Forget, GymnasiumEnv, InContextPolicy, SpaceEmbedding, Transformer
from zoo.compressed_ad import rollout as module
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom, DarkroomPermuted
from zoo.compressed_ad.nets.heads import BinsHead
from zoo.compressed_ad.rollout import ContextPlayer, goalless_actions, rollout

ENV = Darkroom(5, 6)
TASKS = torch.tensor([[2, 3], [0, 0], [2, 2], [4, 1]])
SEEDS = [5, 2**64 - 1, 0, 77]


def policy() -> InContextPolicy:
    net = parts.policy(3, depth=2).eval()
    net.head.weight.data *= 5  # so that what was seen decides the actions
    return net


def test_the_recorded_history_is_one_of_the_environment() -> None:
    net = policy()
    results = rollout(net, ENV, TASKS, SEEDS, 4, record=True)
    steps = results.steps
    assert steps is not None and steps.length == 24
    assert results.returns.shape == (4, 4) and results.returns.dtype == torch.float32
    torch.testing.assert_close(steps.rewards.view(4, 4, 6).sum(2).float(), results.returns)
    assert steps.dones.nonzero()[:, 1].unique().tolist() == [5, 11, 17, 23]
    assert_possible(ENV, TASKS, steps)
    assert results.compressions == [10, 18]
    assert not results.returns.is_inference() and not steps.states.is_inference()


def test_neither_company_nor_blocks_change_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    net = policy()
    full = rollout(net, ENV, TASKS, SEEDS, 5)
    for pair in range(4):
        alone = rollout(net, ENV, TASKS[pair : pair + 1], SEEDS[pair : pair + 1], 5)
        assert torch.equal(alone.returns[0], full.returns[pair])
    monkeypatch.setattr(module, "RANDOM_STEPS", 7)  # which end within episodes
    assert torch.equal(full.returns, rollout(net, ENV, TASKS, SEEDS, 5).returns)


@pytest.mark.parametrize("env", [ENV, DarkroomPermuted(3, 8), DarkKeyToDoor(2, 9), DarkKeyToDoor(3, 9)])
def test_aimless_episodes_bring_no_reward(env: Env) -> None:
    tasks = env.tasks()
    net = parts.policy(grid=env.grid_size, window=8, compressor=Forget()).eval()
    with ContextPlayer(net, env, tasks, range(len(tasks)), record=True) as player:
        assert bool(goalless_actions(player.envs).any(1).all())
        assert player.run_episodes(3, avoid_goals=True).abs().sum() == 0
    assert torch.cat([step.actions for step in player.steps]).unique().tolist() == [0, 1, 2, 3, 4]
    assert player.run_episodes(1).shape == (len(tasks), 1)


def test_returns_go_by_each_pairs_own_episodes() -> None:
    env = GymnasiumEnv("Counter-v0", [{"length": 2}, {"length": 5}, {"length": 3}], limit=4)
    torch.manual_seed(0)
    embedding, transformer = SpaceEmbedding(env, 16), Transformer(16, 1, 2, 9, dropout=0.0)
    net, tasks = InContextPolicy(embedding, transformer, head=BinsHead(env, 16)).eval(), env.tasks()
    with ContextPlayer(net, env, tasks, [1, 2, 3], record=True) as player:
        returns = torch.cat([player.run_episodes(3), player.run_episodes(2)], 1)
    assert player.time == 20  # five episodes of the longest
    for row, length in enumerate((2, 4, 3)):
        rewards = torch.cat([step.rewards[row] for step in player.steps])
        torch.testing.assert_close(returns[row], rewards[: 5 * length].view(5, length).sum(1))
    torch.testing.assert_close(rollout(net, env, tasks, [1, 2, 3], 5).returns, returns)
    torch.testing.assert_close(rollout(net, env, tasks[2:], [3], 5).returns[0], returns[2])
