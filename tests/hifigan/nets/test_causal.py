"""Causal generators: no sample of a frame depends on a later one; streams give what the whole gives."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.hifigan.convert.converter import HifiganConverter
from zoo.hifigan.inference.vocoder import Vocoder
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.conditioners import ConformerConditioner, LinearConditioner
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.vocos import Vocos

CHANNELS = 3


@st.composite
def staged(draw, cls, **options):
    """A small net with rates, kernels (also of odd difference) and blocks as they come."""
    rates = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    blocks = draw(st.lists(st.tuples(st.sampled_from((1, 3, 5)), st.lists(st.integers(1, 4), min_size=1, max_size=2)),
                           min_size=1, max_size=2))  # fmt: skip
    kernels = [rate + draw(st.integers(0, 2 * rate + 1)) for rate in rates]
    kind = draw(st.sampled_from(("1", "2")))
    return cls(CHANNELS, 8, rates, kernels, kind, *zip(*blocks, strict=True), causal=True, **options)


@st.composite
def spectral(draw):
    hop, layers = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    n_fft = hop + draw(st.integers(0, 30))
    convnext = draw(st.booleans())
    head = draw(st.sampled_from(("istft", "mdct_symexp", "mdct_cos")))
    return Vocos(CHANNELS, 6, 9, layers, n_fft + n_fft % 2, hop, "same", "convnext" if convnext else "resnet", head,
                 causal=True)  # fmt: skip


@st.composite
def causal(draw):
    torch.manual_seed(draw(st.integers(0, 2**31)))
    conditioner = LinearConditioner(CHANNELS, 2) if draw(st.booleans()) else None
    kinds = [staged(Generator, conditioner=conditioner), staged(BigVGAN, activation="snake", tanh=True), spectral()]
    return draw(st.one_of(kinds)).double().eval()


@settings(max_examples=40, deadline=None)
@given(causal(), st.integers(1, 40))
def test_no_frame_changes_what_is_before_it(generator, frames):
    x = torch.randn(1, CHANNELS, frames, dtype=torch.float64)
    # each item has another frame changed, much
    changed = x.repeat(frames, 1, 1) + 9 * torch.eye(frames, dtype=torch.float64)[:, None]
    with torch.no_grad():
        whole, moved = generator(x), generator(changed)
    assert whole.shape == (1, 1, frames * generator.hop_length) and generator.look_ahead_frames == 0
    moved = (moved - whole).abs()[:, 0].unflatten(1, (frames, -1)).amax(2)  # (changed frame, frame heard)
    assert frames == 1 or moved.max() > 0
    assert torch.tril(moved, -1).max() <= 1e-12
    assert torch.triu(moved, generator.receptive_frames + 1).max() <= 1e-12


@settings(max_examples=40, deadline=None)
@given(causal(), st.lists(st.integers(0, 7), max_size=12), st.booleans())
def test_pieces_of_any_size_are_the_whole(generator, sizes, double):
    generator = generator if double else generator.float()
    dtype = torch.float64 if double else torch.float32
    frames = sum(sizes)
    x, other = torch.randn(2, 1, CHANNELS, frames, dtype=dtype)
    model = Vocoder(generator, None, 8000)
    streams = [model.stream(), model.stream()]
    assert (streams[0].look_ahead_frames, streams[0].look_ahead_seconds) == (0, 0)
    given = [[], []]
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):  # in turns: neither disturbs the other
        for stream, source, pieces in zip(streams, (x, other), given, strict=True):
            pieces.append(stream.push(source[0, :, start : start + size].numpy()))
            assert len(pieces[-1]) == size * generator.hop_length
    for stream, source, pieces in zip(streams, (x, other), given, strict=True):
        assert len(stream.close()) == len(stream.close()) == 0
        with torch.no_grad():
            whole = generator(source)[0, 0].numpy() if frames else np.zeros(0)
        np.testing.assert_allclose(np.concatenate([*pieces, np.zeros(0)]), whole, rtol=0,
                                   atol=(1e-13 if double else 1e-6) * max(1, abs(whole).max(initial=0)))  # fmt: skip


@pytest.mark.parametrize("make", [
    lambda: Generator(CHANNELS, 8, (4, 2), (8, 4), padding_mode="reflect"),
    lambda: BigVGAN(CHANNELS, 8, (4, 2), (8, 4), resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 2),)),
    lambda: Vocos(CHANNELS, 6, 9, 2, 16, 4, "center"),
])  # fmt: skip
def test_generators_that_look_ahead_wait_for_it(make):
    generator = make().eval()
    model = Vocoder(generator, None, 8000)
    ahead, hop = generator.receptive_frames, generator.hop_length
    x = torch.randn(CHANNELS, ahead + 60)
    stream, pieces, known = model.stream(), [], 0
    assert (stream.look_ahead_frames, stream.look_ahead_seconds) == (ahead, ahead * hop / 8000)
    for size in [1, 0, 3, ahead - 4, 1, 1, 0, 20, 7, 28, 3]:
        pieces.append(stream.push(x[:, known : known + size]))
        known += size
        assert sum(map(len, pieces)) == max(0, known - ahead) * hop
    pieces.append(stream.close())
    assert known == x.shape[1]
    with torch.no_grad():
        np.testing.assert_allclose(np.concatenate(pieces), generator(x[None])[0, 0].numpy(), rtol=0, atol=1e-6)
    short = model.stream()
    assert len(short.push(x[:, :30])) == max(0, 30 - ahead) * hop and len(short.close()) == min(30, ahead) * hop


def small(**options):
    torch.manual_seed(0)
    return Generator(CHANNELS, 8, (4, 2), (8, 4), resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 2),),
                     causal=True, **options)  # fmt: skip


def test_a_stream_in_the_hands_of_its_user(monkeypatch):
    generator = small()
    model = Vocoder(generator.eval(), None, 8000)
    x = torch.randn(CHANNELS, 12).numpy()
    whole = model.from_mel(x)
    names = list(generator.state_dict())
    stream = model.stream()
    first = stream.push(x[:, :5])
    for wrong in (x[0], x[:2], x[None], "word"):
        with pytest.raises(ValueError, match=r"expected frames \(3, n\)|could not convert"):
            stream.push(wrong)
    np.testing.assert_allclose(np.concatenate([first, stream.push(x[:, 5:])]), whole, atol=1e-6)
    stream.close()
    with pytest.raises(ValueError, match="stream is closed"):
        stream.push(x)
    # the model itself remembers nothing, keeps its weight norm and shares what is not derived from it
    np.testing.assert_array_equal(model.from_mel(x), whole)
    assert list(generator.state_dict()) == names and "conv_pre.parametrizations.weight.original0" in names
    folded = Vocoder(generator.fuse_(), None, 8000)
    assert folded.stream()._generator.conv_pre.weight.data_ptr() == generator.conv_pre.weight.data_ptr()
    np.testing.assert_allclose(np.concatenate(list(folded.stream(np.split(x, [1, 1, 4], 1)))), whole, atol=1e-6)
    # a push that fails half-way leaves a stream that says so
    broken = folded.stream()
    monkeypatch.setattr(broken._generator.conv_post, "forward", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken.push(x)
    with pytest.raises(ValueError, match="a push failed"):
        broken.push(x)
    # threads
    results = {}

    def run(number):
        stream = folded.stream()
        results[number] = np.concatenate([stream.push(x[:, each : each + 1]) for each in range(12)])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        np.testing.assert_allclose(result, whole, atol=1e-6)


@pytest.mark.parametrize("make", [Generator, BigVGAN, Vocos])
def test_the_weights_are_those_of_the_usual_net(make):
    with torch.device("meta"):
        usual, causal = make(), make(causal=True)
    assert {key: value.shape for key, value in usual.state_dict().items()} == {
        key: value.shape for key, value in causal.state_dict().items()
    }
    assert causal.receptive_frames <= 2 * usual.receptive_frames


def test_what_cannot_be_causal_is_refused(tmp_path):
    attention = ConformerConditioner(CHANNELS, 8, dim=8, heads=2, ffn_dim=8, kernel_size=3)
    for make, message in (
        (lambda: small(conditioner=attention), "ConformerConditioner looks at later frames"),
        (lambda: small(padding_mode="reflect"), "padding_mode must be zeros"),
        (lambda: small(output_padding=1), "output_padding null"),
        (lambda: Vocos(causal=True, padding="center"), "padding must be same"),
        (lambda: HifiganConverter().to_original(small(), tmp_path / "g_00000000"), "no causal generator"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    assert not list(tmp_path.iterdir())
