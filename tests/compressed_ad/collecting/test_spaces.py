"""PPO beyond grids: its distributions against torch's, what follows an episode, histories that are what happened."""

import numpy as np
import pytest
import torch
from torch import distributions

from zoo.common import registry
from zoo.compressed_ad.collecting.collect import collect
from zoo.compressed_ad.collecting.ppo import PPO
from zoo.compressed_ad.collecting.spaces import Moments, Scales, SpaceNets
from zoo.compressed_ad.data.history import HistoryStore, Recorder, thin
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.gymnasium import GymnasiumEnv
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.envs.schema import Box, Discrete, Schema, box

POINTS = PointMass(8, 6)
SMALL = PPO(rollout_steps=9, minibatch=30, epochs=2)


@pytest.fixture(autouse=True)
def admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_allowed", ["tests.compressed_ad"])


def gym(name: str, **arguments: object) -> GymnasiumEnv:
    pytest.importorskip("gymnasium")
    return GymnasiumEnv(f"tests.compressed_ad.envs.scripted.{name}", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [Discrete(18), box((3, 1), "float64", [-1, 0, -4], [1, 3, 4])])
def test_actions_are_drawn_and_judged_as_torch_does(action: Discrete | Box) -> None:
    space = SpaceNets(Schema(box((2, 2), "float32", -np.inf, np.inf), action, 5))
    generator = torch.Generator().manual_seed(0)
    weights = space.initial_weights([3, 4])
    weights += 0.1 * torch.randn(weights.shape, generator=generator)
    observations = torch.randn(2, 4000, space.inputs, generator=generator)[:, :1].expand(-1, 4000, -1)
    uniforms = torch.rand(space.numbers, 2, 4000, generator=generator, dtype=torch.float64)
    actions, log_chances, values = space.draw(weights, observations, uniforms)
    again, same_values = space.evaluate_actions(weights, None, observations, actions)
    assert torch.equal(log_chances, again) and torch.equal(values, same_values)
    outputs, log_stds, _ = space._outputs(weights, observations)
    if isinstance(action, Discrete):
        expected = distributions.Categorical(logits=outputs)
        shares = torch.nn.functional.one_hot(actions, 18).float().mean(1)
        torch.testing.assert_close(shares, expected.probs[:, 0], atol=0.03, rtol=0)
        torch.testing.assert_close(log_chances, expected.log_prob(actions))
        assert space.meant(actions.flatten()).tolist() == actions.flatten().tolist()
        return
    expected = distributions.Normal(outputs, log_stds.exp().expand_as(outputs))
    torch.testing.assert_close(log_chances, expected.log_prob(actions).sum(-1))
    torch.testing.assert_close(actions.mean(1), outputs[:, 0], atol=0.08, rtol=0)
    meant = space.meant(actions.flatten(0, 1))
    assert meant.shape == (8000, 3, 1) and meant.dtype == torch.float64
    low, high = (torch.tensor(each).view(3, 1) for each in action.limits())
    wanted = (low + high) / 2 + actions.flatten(0, 1)[..., None] * (high - low) / 2
    torch.testing.assert_close(meant.float(), wanted.maximum(low).minimum(high))


def test_unbounded_actions_are_taken_as_they_are_and_pictures_are_refused() -> None:
    space = SpaceNets(Schema(Discrete(3), box((2,), "float32", -np.inf, np.inf), 5))
    assert space.meant(torch.tensor([[-7.0, 9.0]])).tolist() == [[-7, 9]]
    assert space.features(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match="ppo learns no pictures"):
        SpaceNets(Schema(box((8, 8, 3), "uint8", 0, 255), Discrete(2), 5))
    with pytest.raises(ValueError, match=r"ppo.frames is 2, which is for grids; point_mass is none"):
        PPO(frames=2).check(POINTS, 10)


def test_moments_are_those_of_all_rows() -> None:
    rows = 1e3 + torch.randn(2, 30, 3, generator=torch.Generator().manual_seed(0)).double()
    moments = Moments(2, 3)
    for part in rows.split([1, 7, 22], 1):
        moments.add(part)
    np.testing.assert_allclose(moments.mean, rows.mean(1), rtol=1e-12)
    np.testing.assert_allclose(moments.std(), rows.std(1, correction=0), rtol=1e-9)


def test_rewards_are_scaled_by_the_discounted_return_within_episodes() -> None:
    scales = Scales(SpaceNets(POINTS.schema), (1, 1), 0.5)
    rewards, dones = torch.tensor([4.0, 2.0, 8.0, 0.0]), torch.tensor([False, True, False, False])
    found = scales.rewards(rewards.view(4, 1, 1), dones.view(4, 1, 1)).flatten()
    torch.testing.assert_close(found, rewards / float(np.std([4, 4, 8, 4])), rtol=1e-3, atol=0)


def test_only_what_terminates_ends_what_is_expected() -> None:
    """With a trace of 0 the critics' targets are scaled reward + discount * value of the true successor."""
    env = gym("Counter", features={"make.length": [3, 9]}, limit=4)  # the first terminates, the second is truncated
    ppo, space = PPO(trace=0.0, discount=0.5), SpaceNets(env.schema)
    weights = space.initial_weights([1, 2])
    weights += 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0))
    recorder, scales = Recorder(env.schema, 2, 10), Scales(space, (2, 1), 0.5)
    uniforms = torch.rand(10, space.numbers, 2, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rollout = ppo._play_open(weights, space, env.start(env.tasks(), [0, 1]), scales, uniforms, recorder, 0)
    rows = recorder.histories
    rewards = torch.from_numpy(rows["reward"].copy()) / torch.from_numpy(scales._returns.std()).float()
    after = space.values(weights, scales.normalised(torch.from_numpy(rows["next_state"].copy())))
    ended, truncated = (torch.from_numpy(rows[name].copy()) for name in ("terminated", "truncated"))
    assert ended[0].nonzero().flatten().tolist() == [2, 5, 8] and truncated[1].nonzero().flatten().tolist() == [3, 7]
    expected = rewards.clamp(-10, 10) + 0.5 * after * ~ended
    at_end = ended | truncated
    at_end[:, -1] = True
    torch.testing.assert_close(rollout.returns[at_end], expected[at_end], rtol=1e-3, atol=1e-3)
    values = space.values(weights, rollout.observations)
    inside = rewards.clamp(-10, 10)[:, :-1] + 0.5 * values[:, 1:]
    torch.testing.assert_close(rollout.returns[:, :-1][~at_end[:, :-1]], inside[~at_end[:, :-1]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["points", "corridor"])
def test_histories_are_what_happened_and_depend_on_their_own_seed_alone(kind: str) -> None:
    env: Env = POINTS if kind == "points" else gym("Corridor", features={"set.mirrored": [False, True]}, limit=7)
    tasks, told = env.tasks()[:2], []
    histories = SMALL.histories(env, tasks, [5, 6], streams=3, steps=24, advance=told.append)
    assert histories.shape == (2, 3, 24) and histories.dtype == env.schema.dtype and sum(told) == histories.size
    alone = SMALL.histories(env, tasks[1:], [6], streams=3, steps=24)
    assert np.array_equal(alone, histories[1:])
    assert not np.array_equal(histories[0, 0]["action"], histories[0, 1]["action"])
    rows = histories[1]
    over = (rows["terminated"] | rows["truncated"])[:, :-1]
    assert np.array_equal(rows["state"][:, 1:][~over], rows["next_state"][:, :-1][~over])
    if kind == "points":
        moves = rows["action"] / np.maximum(np.linalg.norm(rows["action"], axis=-1, keepdims=True), 1)
        np.testing.assert_allclose(rows["next_state"], rows["state"] + 0.15 * moves, atol=1e-6)
        assert over[:, 5::6].all() and over.sum() == 3 * 3 and (abs(rows["action"]) <= 1).all()


def test_learns_points() -> None:
    env, ppo = PointMass(8, 10), PPO(rollout_steps=40, minibatch=400, epochs=10)
    returns = ppo.histories(env, env.tasks()[[3]], [1], streams=20, steps=480)["reward"].reshape(20, 48, 10).sum(-1)
    best, random = float(env.oracle_returns(env.tasks()[:1])), returns[:, :4].mean()
    assert returns[:, -4:].mean() > random + 0.6 * (best - random)


def test_thinned_histories_keep_whole_episodes(tmp_path) -> None:
    rows = np.zeros((1, 2, 15), dtype=POINTS.schema.dtype)
    rows["reward"] = np.arange(15)
    rows["truncated"][0, 0, 2::3] = True  # episodes of 3
    rows["terminated"][0, 1, [0, 1, 6, 8, 9]] = True  # of 1, 1, 5, 2, 1, and a cut one of 5
    kept = thin(rows, 6, 2)["reward"][0]
    assert kept.tolist() == [[0, 1, 2, 6, 7, 8], [0, 2, 3, 4, 5, 6]]
    settings = {"episodes": 3, "streams": 2, "tasks": [0, 5], "train_share": 0.5, "progress": False}
    collect(POINTS, tmp_path / "all", SMALL, **settings | {"episodes": 6})
    collect(POINTS, tmp_path / "thin", SMALL, **settings, episode_stride=2)
    every, some = HistoryStore(tmp_path / "all"), HistoryStore(tmp_path / "thin")
    assert (every.episode_stride, some.episode_stride) == (1, 2) and "episode_stride" not in every.index
    assert np.array_equal(some.returns(1), every.returns(1)[:, ::2])
    with pytest.raises(ValueError, match="episode_stride is at least 1"):
        collect(POINTS, tmp_path / "none", SMALL, **settings, episode_stride=0)
    with pytest.raises(ValueError, match="begun with other"):
        collect(POINTS, tmp_path / "thin", SMALL, **settings, episode_stride=3)
