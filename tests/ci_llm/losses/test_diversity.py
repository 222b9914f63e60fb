"""The diversity term. Two gloo processes: that test starts this file as a script, which forks them."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from tests.harness import environment
from zoo.ci_llm.losses.diversity import Diversity, text_representations

MASKS = {"right": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]), "left": torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1]])}
LABELS = {
    "right": torch.tensor([[-100, 5, 6, -100], [-100, 7, -100, -100]]),
    "left": torch.tensor([[-100, -100, 5, 6], [-100, -100, -100, 7]]),
}
POSITIONS = {  # tests/parity has the other strategies
    "last_token": {"right": ([2], [1]), "left": ([3], [3])},
    "answer_mean": {"right": ([0, 1], [0]), "left": ([1, 2], [2])},
}


def values(agents=3, dims=8, seed=0):
    return torch.randn(agents, 2, 4, dims, generator=torch.Generator().manual_seed(seed))


def clouds(agents=3):
    return values(agents).flatten(1, 2)


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("strategy", POSITIONS)
def test_strategies_select_positions(strategy, side):
    points = text_representations(values(), MASKS[side], LABELS[side], strategy)
    for row, positions in enumerate(POSITIONS[strategy][side]):
        torch.testing.assert_close(points[:, row], values()[:, row, positions].mean(1))
    masks, labels = (torch.stack([table["left"], table["right"], table[side]]) for table in (MASKS, LABELS))
    separate = text_representations(values(), masks, labels, strategy)  # texts for each agent
    torch.testing.assert_close(separate[2], points[2])


def test_normalised_points_have_length_one():
    points = Diversity(normalize=True).represent(values(), MASKS["right"])
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(3, 2))


def test_warm_up_and_hinge():
    term = Diversity(weight=0.1, warmup_steps=4)
    assert [term.factor(step) for step in (0, 3, 4, 9)] == pytest.approx([0.02, 0.08, 0.1, 0.1])
    assert term.loss(torch.tensor(2.0), 9).item() == pytest.approx(-0.2)
    hinge = Diversity(weight=0.1, target=3.0)
    assert [hinge.loss(torch.tensor(value)).item() for value in (2.0, 4.0)] == pytest.approx([0.1, 0.0])


def rank(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    points = (clouds()[:, 5:] if number else clouds()[:, :5]).clone().requires_grad_()
    value = Diversity(projections=8, gather=True).value(points, 5)
    value.backward()
    torch.save((value.detach(), points.grad), f"{folder}/{number}.pt")
    dist.destroy_process_group()


@pytest.mark.numeric
def test_two_processes_give_value_and_gradient_of_one(tmp_path):
    subprocess.run([sys.executable, __file__, str(tmp_path)], check=True, env=environment())
    points = clouds().requires_grad_()
    value = Diversity(projections=8).value(points, 5)
    value.backward()
    parts = [torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in (0, 1)]
    assert all(torch.allclose(part, value.detach()) for part, _ in parts)
    # each rank holds the sum over ranks; data-parallel training takes the mean of the parameters' gradients
    torch.testing.assert_close(torch.cat([gradient for _, gradient in parts], dim=1) / 2, points.grad)


if __name__ == "__main__":
    from torch.multiprocessing import start_processes

    start_processes(rank, args=(sys.argv[1],), nprocs=2, start_method="fork")
