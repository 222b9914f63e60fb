import pytest
import torch

from zoo.ci_llm.losses.distances import pairwise_kl, pairwise_sliced_wasserstein, random_directions


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("pairs", [None, 3])
def test_permuted_clouds_are_at_distance_zero_and_shifted_ones_at_the_shift(pairs):
    cloud, shift = torch.randn(6, 8, generator=generator()), torch.ones(8)
    permuted = torch.stack([cloud, cloud[torch.randperm(6, generator=generator())], cloud])
    assert pairwise_sliced_wasserstein(permuted, random_directions(8, 32, generator(), pairs)).max().item() < 1e-12
    directions = random_directions(8, 64, generator())
    distance = pairwise_sliced_wasserstein(torch.stack([cloud, cloud + shift]), directions)
    torch.testing.assert_close(distance, (shift @ directions).square().mean()[None])


def test_divergence_of_two_coins():
    p, q = torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5])
    expected = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    divergence = pairwise_kl(torch.stack([p, q]).log()[:, None])
    assert divergence.item() == pytest.approx(expected.item(), rel=1e-5)
