"""Compressors that learn nothing: which tokens they keep."""

import pytest
import torch

from zoo.compressed_ad.nets.compression import KeepAdaptive, KeepDecaying, KeepRegions, KeepThreshold


def numbered(count: int, batch: int = 1) -> torch.Tensor:
    return torch.arange(float(count)).expand(batch, count)[..., None]


@pytest.mark.parametrize(("count", "kept"), [(40, 8), (9, 9), (10, 7), (5, 1), (6, 0)])
def test_older_tokens_are_kept_ever_more_seldom(count: int, kept: int) -> None:
    places = KeepDecaying(kept, 0.3)(numbered(count))[0, :, 0]
    assert places.shape == (kept,)
    assert (places.diff() >= 1).all() and ((places >= 0) & (places < count)).all()
    if kept:
        assert places[-1] == count - 1
    if (count, kept) == (40, 8):
        assert (places.diff().diff() <= 1).all() and places.diff()[0] > 2 * places.diff()[-1]
        # the quantiles of a density that falls by a half over 12 tokens
        shares = torch.arange(8, dtype=torch.float64) / 8
        ages = -12 * (1 - shares * (1 - 0.5 ** (1 / 0.3))).log2()
        assert places.flip(0).tolist() == (39 - ages.floor()).tolist()


def test_a_long_half_life_is_even() -> None:
    places = KeepDecaying(8, 1000.0)(numbered(40))[0, :, 0]
    assert set(places.diff().tolist()) <= {4, 5}
    with pytest.raises(ValueError, match="half_life"):
        KeepDecaying(3, 0.0)


def test_each_history_gets_the_rule_that_suits_its_attention() -> None:
    attention = torch.full((3, 12), 0.01)
    attention[0, 8:] = 0.23  # the newer half
    attention[1] = 1 / 12  # all, entropy ln 12
    attention[2, [1, 4, 7]] = torch.tensor([0.4, 0.21, 0.3])
    kept = KeepAdaptive(3)(numbered(12, 3), attention / attention.sum(1, keepdim=True))[..., 0]
    assert kept.tolist() == [[9, 10, 11], [3, 7, 11], [1, 4, 7]]
    with pytest.raises(ValueError, match="needs the transformer's attention"):
        KeepAdaptive(3)(numbered(12))


def test_what_is_attended_to_enough_is_kept_and_then_the_newest() -> None:
    attention = torch.full((3, 12), 0.01)
    attention[0, [1, 4]] = torch.tensor([0.6, 0.3])  # two above the threshold
    attention[1, [0, 2, 5, 8, 9]] = torch.tensor([0.15, 0.2, 0.3, 0.12, 0.16])  # more than there is room for
    attention[2, 3] = 0.09  # none
    kept = KeepThreshold(4, 0.1, minimum=1)(numbered(12, 3), attention)[..., 0]
    assert kept.tolist() == [[1, 4, 10, 11], [0, 2, 5, 9], [3, 9, 10, 11]]
    assert KeepThreshold(0)(numbered(12, 3), attention).shape == (3, 0, 1)
    with pytest.raises(ValueError, match="threshold is"):
        KeepThreshold(4, 1.5)
    with pytest.raises(ValueError, match="needs the transformer's attention"):
        KeepThreshold(4)(numbered(12))


def test_what_is_older_than_the_last_regions_becomes_zeros() -> None:
    markers = torch.zeros(4, 12).long()
    markers[0, [2, 5, 8]] = 2  # the last region, 9 to 11, has not ended
    markers[1, [2, 6, 11]] = 2  # it ends with the newest token
    markers[2, [3, 7]] = 1  # a beginning alone is no end
    markers[3, 9] = 2
    logits = torch.nn.functional.one_hot(markers, 3).float()
    tokens = numbered(12, 4) + 1
    kept = KeepRegions(1, 9)(tokens, logits)[..., 0]
    assert kept.tolist() == [
        [0, 0, 0, 7, 8, 9, 10, 11, 12],
        [4, 5, 6, 7, 8, 9, 10, 11, 12],
        [4, 5, 6, 7, 8, 9, 10, 11, 12],
        [4, 5, 6, 7, 8, 9, 10, 11, 12],
    ]
    assert KeepRegions(1, 4, regions=1)(tokens, logits)[3, :, 0].tolist() == [0, 0, 11, 12]
    assert KeepRegions(1, 0)(tokens, logits).shape == (4, 0, 1)
    with pytest.raises(ValueError, match="regions is at least 1"):
        KeepRegions(1, 4, 0)
    with pytest.raises(ValueError, match="needs the logits of its head"):
        KeepRegions(1, 4)(tokens)
