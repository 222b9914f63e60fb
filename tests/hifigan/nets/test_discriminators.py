import copy

import pytest
import torch
import torch.nn.functional as F

from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator, MultiScaleDiscriminator, SpectralNorm


def test_waveform_is_folded_in_rows_of_a_period():
    mpd = MultiPeriodDiscriminator(periods=(3,), channel_mult=1 / 16).eval()
    conv = mpd.discriminators[0].convs[0]
    x = torch.arange(10.0)[None, None]
    folded = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 8, 7]], dtype=torch.float32)[None, None]
    torch.testing.assert_close(mpd(x)[0][1][0], F.leaky_relu(conv(folded), 0.1))


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*")
def test_spectral_norm_equals_the_old_one_in_training_and_evaluation():
    torch.manual_seed(0)
    old = torch.nn.utils.spectral_norm(torch.nn.Conv1d(3, 5, 4))
    norm = SpectralNorm(old.weight_orig.detach())
    weight = old.weight_orig.detach().clone().requires_grad_()
    norm._u.copy_(old.weight_u)
    norm._v.copy_(old.weight_v)
    x = torch.randn(2, 3, 9)
    for training in (True, True, False, True):
        norm.train(training)
        old.train(training)
        old(x).square().sum().backward()
        F.conv1d(x, norm(weight), old.bias).square().sum().backward()
        torch.testing.assert_close(norm._u, old.weight_u)
        torch.testing.assert_close(norm._v, old.weight_v)
        torch.testing.assert_close(weight.grad, old.weight_orig.grad)


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
