"""The diversity term; tests/parity has the strategies of the original, test_task_ddp.py two processes."""

import pytest
import torch

from zoo.ci_llm.losses.diversity import Diversity, text_representations

MASKS = {"right": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]), "left": torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1]])}
LABELS = {
    "right": torch.tensor([[-100, 5, 6, -100], [-100, 7, -100, -100]]),
    "left": torch.tensor([[-100, -100, 5, 6], [-100, -100, -100, 7]]),
}
ANSWERS = {"right": ([0, 1], [0]), "left": ([1, 2], [2])}  # where they are foretold


def values():
    return torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("side", MASKS)
def test_answers_are_selected(side):
    points = text_representations(values(), MASKS[side], LABELS[side], "answer_mean")
    for row, positions in enumerate(ANSWERS[side]):
        torch.testing.assert_close(points[:, row], values()[:, row, positions].mean(1))
    masks, labels = (torch.stack([table["left"], table["right"], table[side]]) for table in (MASKS, LABELS))
    separate = text_representations(values(), masks, labels, "answer_mean")  # texts for each agent
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
