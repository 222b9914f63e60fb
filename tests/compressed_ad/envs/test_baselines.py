import pytest
import torch

from zoo.compressed_ad.envs.baselines import explorer_returns, oracle_return, random_return
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom, DarkroomPermuted
from zoo.compressed_ad.envs.point_mass import PointMass


def parts(env):
    """Tasks for training and for test of the original's split."""
    return [env.tasks()[indices] for indices in env.split(0, 0.9)]


def test_random_return_in_the_darkroom():
    returns = random_return(Darkroom())
    assert returns.mean().item() == pytest.approx(20 / 81, rel=1e-12)
    assert random_return(Darkroom(), parts(Darkroom())[1]).mean().item() == pytest.approx(0.3254, abs=5e-5)
    assert random_return(Darkroom(5, 10)).mean().item() == pytest.approx(0.4, rel=1e-12)
    distance = (Darkroom().tasks() - 4).abs().sum(dim=1)
    by_distance = [returns[distance == d].mean().item() for d in range(9)]
    # The spec's figures were rounded twice: 0.95349 to 0.9535 to 0.954.
    expected = [1.179, 0.954, 0.546, 0.317, 0.191, 0.130, 0.089, 0.059, 0.042]
    assert by_distance == pytest.approx(expected, abs=5.5e-4)


@pytest.mark.parametrize(
    "env", [Darkroom(4, 6, hard=True), DarkKeyToDoor(3, 8), DarkroomPermuted(3, 8), Darkroom(4, 6, random_start=True)]
)
def test_random_return_equals_many_random_episodes(env):
    tasks = env.tasks()[::11]
    copies = 4000
    worlds = env.start(tasks.repeat_interleave(copies, dim=0), range(len(tasks) * copies))
    generator = torch.Generator().manual_seed(0)
    total = sum(
        worlds.step(torch.randint(5, (len(worlds.tasks),), generator=generator)).rewards for _ in range(env.horizon)
    )
    measured = total.view(len(tasks), copies).double()
    error = (measured.mean(dim=1) - random_return(env, tasks)).abs()
    assert bool((error < 4.5 * measured.std(dim=1) / copies**0.5 + 1e-9).all())


def test_oracle_return():
    train, test = parts(Darkroom())
    assert oracle_return(Darkroom()).mean().item() == pytest.approx(16.543, abs=5e-4)
    assert oracle_return(Darkroom(), train).mean().item() == pytest.approx(16.466, abs=5e-4)
    assert oracle_return(Darkroom(), test).mean().item() == 17.25
    assert oracle_return(Darkroom(5, 10)).mean().item() == pytest.approx(8.56, rel=1e-12)
    assert oracle_return(DarkroomPermuted()).tolist() == [5.0] * 120
    assert oracle_return(DarkKeyToDoor()).tolist() == [2.0] * 6561
    # From the goal and from both its neighbours it pays in both steps, from the far corner in the second alone.
    assert oracle_return(Darkroom(2, 2, random_start=True), torch.tensor([[0, 0]])).tolist() == [7 / 4]


@pytest.mark.parametrize("env", [DarkKeyToDoor(5, 20), Darkroom(4, 6, hard=True), Darkroom(4, 6, random_start=True)])
def test_explorer_ends_as_the_oracle(env):
    tasks = env.tasks()[::7]
    returns = explorer_returns(env, 12, tasks, range(len(tasks)))
    worlds = env.start(tasks, range(len(tasks)))
    for _ in range(11 * env.horizon):
        worlds.step(torch.zeros(len(tasks), dtype=torch.int64))
    assert returns[:, -1].tolist() == env.best_return(worlds.tasks, worlds.states).tolist()
    assert returns[:, 0].mean() < returns[:, -1].mean()


@pytest.mark.parametrize("env", [PointMass(), PointMass(goals=5, horizon=7, speed=0.3)], ids=("plain", "odd"))
def test_the_straight_line_of_a_point_mass_earns_what_the_closed_form_states(env):
    tasks = env.tasks()
    envs, total = env.start(tasks), torch.zeros(len(tasks), dtype=torch.float64)
    for _ in range(env.horizon):
        transition = envs.step(envs.optimal_actions())
        total += transition.rewards
    assert transition.truncated.all() and not transition.terminated.any()
    assert not envs.states.any()  # the next episode has begun
    torch.testing.assert_close(total, env.oracle_returns(tasks), atol=1e-5, rtol=0)
