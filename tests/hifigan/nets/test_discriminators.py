"""The norms of the discriminators; tests/parity has their numbers."""

import copy

import torch

from zoo.hifigan.nets.discriminators import MultiScaleDiscriminator


def test_spectral_norm_survives_copies_and_two_forwards_before_backward():
    msd = copy.deepcopy(MultiScaleDiscriminator(channel_mult=1 / 16))
    x = torch.randn(1, 1, 256)
    first = msd.eval()(x)[0][0].sum()
    second = msd.train()(x)[0][0].sum()
    (first + second).backward()
    before = msd.discriminators[0].convs[0].parametrizations.weight[0]._u.clone()
    with torch.no_grad():
        msd(x)
    assert not torch.equal(before, msd.discriminators[0].convs[0].parametrizations.weight[0]._u)
    after = msd.eval().discriminators[0].convs[0].parametrizations.weight[0]._u.clone()
    msd(x)
    torch.testing.assert_close(after, msd.discriminators[0].convs[0].parametrizations.weight[0]._u, rtol=0, atol=0)
