import pytest
import torch

from zoo.flow.sequence.net import LEAST_DEVIATION, Normaliser


def test_statistics_are_those_of_all_frames() -> None:
    generator = torch.Generator().manual_seed(0)
    shift = torch.tensor([[3.0], [-2.0]])
    pairs = [
        (torch.randn(2, n, generator=generator) * 4 + shift, torch.randn(3, n, generator=generator)) for n in (5, 90)
    ]
    normaliser = Normaliser(2, 3)
    assert not normaliser.is_fitted
    normaliser.fit(iter(pairs))
    clean, degraded = (torch.cat(each, dim=1) for each in zip(*pairs, strict=True))
    assert normaliser.is_fitted and normaliser.frames == 95
    torch.testing.assert_close(normaliser.mean, clean.mean(dim=1))
    torch.testing.assert_close(normaliser.condition_deviation, degraded.std(dim=1, unbiased=False))
    scaled = normaliser.normalise(clean[None])
    torch.testing.assert_close(scaled.std(dim=2, unbiased=False), torch.ones(1, 2))
    torch.testing.assert_close(normaliser.restore(scaled)[0], clean)
    torch.testing.assert_close(normaliser.normalise_condition(degraded[None]).mean(dim=2), torch.zeros(1, 3))


def test_statistics_are_saved() -> None:
    normaliser, other = Normaliser(1, 1), Normaliser(1, 1)
    normaliser.fit([(torch.arange(4.0)[None], torch.ones(1, 4).cumsum(1))])
    other.load_state_dict(normaliser.state_dict())
    assert other.is_fitted and torch.equal(other.mean, normaliser.mean)


def test_a_constant_bin_is_not_blown_up() -> None:
    normaliser = Normaliser(2, 1)
    normaliser.fit([(torch.stack([torch.full((8,), 7.0), torch.arange(8.0)]), torch.arange(8.0)[None])])
    spread = torch.arange(8.0).std(unbiased=False)
    torch.testing.assert_close(normaliser.deviation, torch.stack([LEAST_DEVIATION * spread / 2, spread]))


def test_what_cannot_be_scaled_is_named() -> None:
    with pytest.raises(ValueError, match="no example"):
        Normaliser(1, 1).fit([])
    with pytest.raises(ValueError, match=r"expected 1 and 2 bins .* found \(1, 4\) and \(1, 4\)"):
        Normaliser(1, 2).fit([(torch.zeros(1, 4), torch.zeros(1, 4))])
    with pytest.raises(ValueError, match="sequences of the training set are constant"):
        Normaliser(1, 1).fit([(torch.zeros(1, 4), torch.arange(4.0)[None])])
    with pytest.raises(ValueError, match="conditions of the training set are constant or not finite"):
        Normaliser(1, 1).fit([(torch.arange(4.0)[None], torch.full((1, 4), torch.nan))])
