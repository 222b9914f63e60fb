"""Two gloo processes: that test starts this file as a script, which forks them from one import of torch."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from tests.harness import environment
from zoo.ci_llm.losses.distances import pairwise_divergences
from zoo.ci_llm.losses.diversity import Diversity, gather_points, sliced_wasserstein, text_representations


def clouds(agents=3, rows=4, dims=8, seed=0):
    return torch.randn(agents, rows, dims, generator=torch.Generator().manual_seed(seed))


def test_one_agent_has_no_diversity():
    assert sliced_wasserstein(clouds(1)).item() == 0
    assert Diversity().value(clouds(1)).item() == 0


MASKS = {"right": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]), "left": torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1]])}
LABELS = {
    "right": torch.tensor([[-100, 5, 6, -100], [-100, 7, -100, -100]]),
    "left": torch.tensor([[-100, -100, 5, 6], [-100, -100, -100, 7]]),
}
WHERE = {
    "last_token": {"right": ([2], [1]), "left": ([3], [3])},
    "first_token": {"right": ([0], [0]), "left": ([1], [2])},
    "mean_pool": {"right": ([0, 1, 2], [0, 1]), "left": ([1, 2, 3], [2, 3])},
    "answer_mean": {"right": ([0, 1], [0]), "left": ([1, 2], [2])},
}


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("strategy", WHERE)
def test_strategies_heed_the_mask(strategy, side):
    values = clouds(2, 8).reshape(2, 2, 4, 8)
    found = text_representations(values, MASKS[side], LABELS[side], strategy)
    for row, positions in enumerate(WHERE[strategy][side]):
        torch.testing.assert_close(found[:, row], values[:, row, positions].mean(1))


def test_answer_tokens_are_points_of_their_own():
    values = clouds(2, 8).reshape(2, 2, 4, 8)
    found = text_representations(values, MASKS["right"], LABELS["right"], "answer_tokens")
    torch.testing.assert_close(found, torch.stack([values[:, 0, 0], values[:, 0, 1], values[:, 1, 0]], dim=1))


@pytest.mark.parametrize("strategy", WHERE)
def test_agents_that_read_texts_of_their_own(strategy):
    values = clouds(2, 8).reshape(2, 2, 4, 8)
    masks, labels = (torch.stack([table["left"], table["right"]]) for table in (MASKS, LABELS))
    found = text_representations(values, masks, labels, strategy)
    for agent, side in enumerate(("left", "right")):
        alone = text_representations(values[agent][None], MASKS[side], LABELS[side], strategy)
        torch.testing.assert_close(found[agent], alone[0])
    with pytest.raises(ValueError, match="same texts"):
        text_representations(values, masks, labels, "answer_tokens")


def test_without_mask_padding_counts():
    values = clouds(2, 8).reshape(2, 2, 4, 8)
    mask = MASKS["right"]
    torch.testing.assert_close(text_representations(values, mask, None, "last_token", mask=False), values[:, :, 3])
    torch.testing.assert_close(text_representations(values, mask, None, "mean_pool", mask=False), values.mean(2))


def test_missing_labels_and_unknown_strategies_are_refused():
    values = clouds(2, 8).reshape(2, 2, 4, 8)
    with pytest.raises(ValueError, match="needs labels"):
        text_representations(values, MASKS["right"], None, "answer_mean")
    with pytest.raises(ValueError, match="strategy is one of last_token"):
        text_representations(values, MASKS["right"], None, "middle")


def test_weight_zero_asks_for_nothing():
    off = Diversity(weight=0)
    assert not off.enabled and not off.needs_hidden
    assert Diversity().needs_hidden and not Diversity(space="probs").needs_hidden
    assert not Diversity(kind="js", strategy="answer_tokens").needs_hidden


def test_spaces_and_normalisation():
    logits, hidden = clouds(3, 8, 5).reshape(3, 2, 4, 5), clouds(3, 8, 6, seed=1).reshape(3, 2, 4, 6)
    mask, labels = MASKS["right"], LABELS["right"]
    torch.testing.assert_close(Diversity().represent(logits, hidden, mask)[:, 0], hidden[:, 0, 2])
    torch.testing.assert_close(Diversity(space="logits").represent(logits, None, mask)[:, 0], logits[:, 0, 2])
    probs = Diversity(space="probs", strategy="answer_mean").represent(logits, None, mask, labels)
    torch.testing.assert_close(probs[:, 0], logits.softmax(-1)[:, 0, :2].mean(1))
    probs = Diversity(space="probs").represent(logits, None, mask)
    torch.testing.assert_close(probs[:, 0], logits[:, 0, 2].softmax(-1))
    unit = Diversity(normalize=True).represent(logits, hidden, mask)
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(3, 2))
    with pytest.raises(ValueError, match="needs hidden states"):
        Diversity().represent(logits, None, mask)


def test_predictive_diversity():
    logits = clouds(3, 8, 5).reshape(3, 2, 4, 5).requires_grad_()
    term = Diversity(kind="kl", strategy="answer_tokens")
    points = term.represent(logits, None, MASKS["right"], LABELS["right"])
    value = term.value(points)
    torch.testing.assert_close(value, pairwise_divergences(points, "kl").mean())
    value.backward()
    assert logits.grad[:, 0, 0].abs().sum() > 0 and logits.grad[:, 0, 3].abs().sum() == 0
    with pytest.raises(ValueError, match="answer_tokens"):
        Diversity(kind="js", strategy="answer_mean")


def test_directions_change_with_the_step_and_come_again():
    term, points = Diversity(projections=4), clouds()
    assert term.value(points, 3).item() == term.value(points, 3).item() != term.value(points, 4).item()
    assert Diversity(projections=4, seed=1).value(points, 3).item() != term.value(points, 3).item()


def test_warm_up_and_hinge():
    term = Diversity(weight=0.1, warmup_steps=4)
    assert [term.factor(step) for step in (0, 3, 4, 9)] == pytest.approx([0.02, 0.08, 0.1, 0.1])
    value = torch.tensor(2.0, requires_grad=True)
    assert term.loss(value, 9).item() == pytest.approx(-0.2)
    hinge = Diversity(weight=0.1, target=3.0)
    assert hinge.loss(value).item() == pytest.approx(0.1)
    reached = hinge.loss(torch.tensor(4.0, requires_grad=True))
    assert reached.item() == 0


def test_bad_settings_are_refused_and_first_token_warned_of():
    with pytest.raises(ValueError, match="weight is at least 0"):
        Diversity(weight=-1)
    with pytest.warns(UserWarning, match="first_token"):
        Diversity(strategy="first_token")


def test_clouds_of_unequal_ranks_are_joined():
    other = clouds(3, 2, seed=1)

    def gather(values):
        mine_first = other if values.dim() == 3 else torch.tensor([2])
        padded = torch.nn.functional.pad(mine_first, (0, 0, 0, 2)) if values.dim() == 3 else mine_first
        return torch.stack([values, padded])

    torch.testing.assert_close(gather_points(clouds(), gather), torch.cat([clouds(), other], dim=1))
    torch.testing.assert_close(gather_points(clouds()), clouds())


def rank(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    points = (clouds()[:, 3:] if number else clouds()[:, :3]).clone().requires_grad_()
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
