import pytest
import torch
from torch import Tensor

from tests.numeric import exactly
from zoo.flow.nets.transformer import rotate
from zoo.flow.process.guidance import Guidance
from zoo.flow.sequence.net import Conditioned, Rotary, SequenceNet, valid_frames

SIZES = {"channels": 3, "condition_channels": 5, "dim": 16, "layers": 2, "heads": 2}


def build(**kwargs: object) -> SequenceNet:
    """A net whose gates are open: as built it gives zeros."""
    torch.manual_seed(0)
    net = SequenceNet(**{**SIZES, **kwargs})
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape))
    return net.eval()


def make(batch: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(frames)
    x, condition = (torch.randn(batch, size, frames, generator=generator) for size in (3, 5))
    return x, torch.rand(batch, generator=generator), condition


def test_starts_at_zero() -> None:
    assert not SequenceNet(**SIZES)(*make(2, 9)).any()


@pytest.mark.parametrize("frames", [1, 7, 300])
def test_any_length(frames: int) -> None:
    x, t, condition = make(2, frames)
    result = build()(x, t, condition)
    assert result.shape == x.shape and bool(result.isfinite().all())


@pytest.mark.parametrize("front_kernel", [1, 5])
def test_padding_changes_nothing(front_kernel: int) -> None:
    net, lengths = build(front_kernel=front_kernel), torch.tensor([11, 4, 7])
    x, t, condition = make(3, 11)
    x[1, :, 4:], condition[2, :, 7:] = torch.inf, torch.nan
    together = exactly(SequenceNet.__call__, net, x, t, condition, lengths)
    for i, length in enumerate(lengths.tolist()):
        item = x[i : i + 1, :, :length], t[i : i + 1], condition[i : i + 1, :, :length]
        alone = exactly(SequenceNet.__call__, net, *item)
        torch.testing.assert_close(together[i : i + 1, :, :length], alone, atol=1e-10, rtol=0)
        assert not together[i, :, length:].any()


def test_everything_given_matters() -> None:
    net, (x, t, condition) = build(), make(1, 6)
    before = net(x, t, condition)
    assert not torch.allclose(before, net(x + 0.1, t, condition))
    assert not torch.allclose(before, net(x, t / 2, condition))
    assert not torch.allclose(before, net(x, t, condition + 0.1))
    changed = condition.clone()
    changed[:, :, -1] += 1  # a frame sees the others
    assert not torch.allclose(before[:, :, 0], net(x, t, changed)[:, :, 0])


def test_null_condition_takes_the_place_of_a_dropped_one() -> None:
    net, (x, t, condition) = build(), make(2, 6)
    null = net.null_condition[None, :, None].expand(2, -1, 6)
    result = net(x, t, condition, given=torch.tensor([1, 0]))
    torch.testing.assert_close(result[:1], net(x, t, condition)[:1])
    torch.testing.assert_close(result[1:], net(x, t, null)[1:])


def test_rotary_positions_are_relative() -> None:
    positions = Rotary(8)(torch.zeros(1, 20, 1))
    query, key = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(1))
    turned = [rotate(each.expand(20, 8), positions) for each in (query, key)]
    products = turned[0] @ turned[1].T
    torch.testing.assert_close(products[0, 5], products[12, 17])
    torch.testing.assert_close(products.diagonal(), (query @ key.T).flatten().expand(20))
    assert not torch.allclose(products[0, 5], products[0, 6])


def test_gradient_checkpointing_changes_no_gradient() -> None:
    found = []
    for checkpointing in (False, True):
        net = build(gradient_checkpointing=checkpointing).train()
        net(*make(2, 6), lengths=torch.tensor([6, 3]), given=torch.tensor([1, 0])).square().sum().backward()
        found.append([weight.grad for weight in net.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_every_weight_has_a_gradient_whatever_is_dropped() -> None:
    for given in ([1, 1], [0, 0]):
        net = build()
        net(*make(2, 6), given=torch.tensor(given)).sum().backward()
        assert all(weight.grad is not None for weight in net.parameters())


def test_autocast_stays_near() -> None:
    net, (x, t, condition) = build(dim=32), make(2, 12)
    exact = net(x, t, condition)
    with torch.autocast("cpu", torch.bfloat16):
        result = net(x, t, condition, torch.tensor([12, 12]))
    assert (result.float() - exact).abs().mean() < 0.05 * exact.abs().mean()


def test_conditioned_net_serves_guidance() -> None:
    net, (x, _, condition), lengths = build(), make(2, 6), torch.tensor([6, 4])
    net, x, condition, label = net.double(), x.double(), condition.double(), torch.ones(2, dtype=torch.int64)
    bound = Conditioned(net, condition, lengths)
    with_it = net(x, 0.3, condition, lengths)
    without = net(x, 0.3, condition, lengths, torch.zeros(2))
    torch.testing.assert_close(bound(x, 0.3, label), with_it)
    torch.testing.assert_close(Guidance(2.0).predict(bound, 0.3, x, label), 2 * with_it - without)
    torch.testing.assert_close(Guidance(0.0, null_mode="none").predict(bound, 0.3, x, label), without)


def test_valid_frames() -> None:
    assert valid_frames(torch.tensor([1, 3]), 3).tolist() == [[True, False, False], [True, True, True]]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="dim 15 and heads 2"):
        build(dim=15)
    with pytest.raises(ValueError, match="front_kernel is odd"):
        build(front_kernel=2)
    x, t, condition = make(1, 4)
    with pytest.raises(ValueError, match=r"condition \(B, 5, T\), found \(1, 3, 4\) and \(1, 5, 3\)"):
        build()(x, t, condition[:, :, :3])
