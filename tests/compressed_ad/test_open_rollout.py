"""Acting where episodes are of different lengths: each pair's returns are its own, in the order of its episodes."""

import pytest
import torch

from zoo.common import registry
from zoo.compressed_ad.envs.gymnasium import GymnasiumEnv
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.nets.embedding import SpaceEmbedding
from zoo.compressed_ad.nets.heads import BinsHead
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.transformer import Transformer
from zoo.compressed_ad.rollout import Player, rollout

pytest.importorskip("gymnasium")


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> GymnasiumEnv:
    monkeypatch.setattr(registry, "_allowed", ["tests.compressed_ad"])
    return GymnasiumEnv("tests.compressed_ad.envs.scripted.Counter", {"make.length": [2, 5, 3]}, limit=4)


def policy(env: GymnasiumEnv | PointMass) -> InContextPolicy:
    torch.manual_seed(0)
    return InContextPolicy(
        SpaceEmbedding(env, 16), Transformer(16, 1, 2, 9, dropout=0.0), head=BinsHead(env, 16)
    ).eval()


def test_returns_go_by_each_pairs_own_episodes(counters: GymnasiumEnv) -> None:
    net, tasks = policy(counters), counters.tasks()
    with Player(net, counters, tasks, [1, 2, 3], record=True) as player:
        first = player.play(3)
        later = player.play(2)
    assert player.time == 20  # five episodes of the longest
    returns = torch.cat([first, later], 1)
    for row, length in enumerate((2, 4, 3)):
        rewards = torch.cat([step.rewards[row] for step in player.steps])
        expected = rewards[: 5 * length].view(5, length).sum(1)
        torch.testing.assert_close(returns[row], expected)
        assert torch.cat([step.dones[row] for step in player.steps]).nonzero()[:, 0].tolist()[0] == length - 1
    whole = rollout(net, counters, tasks, [1, 2, 3], 5).returns
    torch.testing.assert_close(whole, returns)
    alone = rollout(net, counters, tasks[2:], [3], 5).returns
    torch.testing.assert_close(alone[0], whole[2])
    assert rollout(net, counters, tasks, [1, 2, 3], 2, greedy=True).returns.isfinite().all()


def test_only_grids_are_acted_in_aimlessly() -> None:
    env = PointMass(4, 3)
    with Player(policy(env), env, env.tasks(), range(4)) as player, pytest.raises(ValueError, match="is for grids"):
        player.play(1, aimless=True)
