"""UNet, global encoder, denoiser, mel features and discriminator against what they should compute."""

import math

import pytest
import torch

from tests.audiosr import task_parts
from zoo.audiosr.nets.denoiser import Denoiser, GlobalEncoder, concat
from zoo.audiosr.nets.discriminator import PatchDiscriminator
from zoo.audiosr.nets.features import MelFeatures, crop_to_multiple
from zoo.audiosr.nets.unet import SpatialTransformer, UNet

UNET = {**task_parts.UNET, "channels": 16}
ENCODER = {"n_mels": 32, "channels": 8, "heads": 2, "layers": 1, "context_channels": 5, "positions": 5}
MEL = {"sample_rate": 16000, "n_fft": 512, "hop_length": 160, "n_mels": 32}


def build(**options: object) -> UNet:
    torch.manual_seed(0)
    net = UNet(**UNET, **options)
    generator = torch.Generator().manual_seed(1)
    for parameter in net.parameters():  # layers that start at zero hide those before them
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return net


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x, vector = torch.randn(2, 4, 4, 6, generator=generator), torch.randn(2, 5, generator=generator)
    return x, torch.tensor([3, 700]), vector


@pytest.mark.parametrize(
    ("net", "parameters"),
    [
        (lambda: UNet(), 258_195_088),  # AudioSR
        (lambda: UNet(fusion="replace", context_channels=128), 288_248_208),  # modelV1
        (lambda: UNet(fusion="residual", context_channels=128, transformers_per_down_block=1), 255_479_184),  # model.py
        (lambda: GlobalEncoder(), 569_888 + 262_272),  # modelV1
        (lambda: GlobalEncoder(channels=256, heads=8, layers=4), 2_708_768 + 1_048_832),  # model.py
    ],
)
def test_parameters_of_the_originals(net, parameters):
    with torch.device("meta"):
        made = net()
    assert sum(parameter.numel() for parameter in made.parameters()) == parameters


def test_attention_to_one_vector_is_torchs():
    torch.manual_seed(0)
    net, context, x = SpatialTransformer(16, 2, 4, "residual", 5), torch.randn(2, 5), torch.randn(2, 16, 4, 6)
    key = net.global_proj(context)[:, None]
    expected, _ = net.global_attn(x.flatten(2).transpose(1, 2), key, key)
    expected = expected.transpose(1, 2).reshape(x.shape)
    calls = []
    net.norm.register_forward_pre_hook(lambda module, arguments: calls.append(arguments[0]))
    net(x, context).sum().backward()
    net.fusion = "replace"
    net(x, context)
    torch.testing.assert_close(calls[0], x + expected)
    torch.testing.assert_close(calls[1], expected)
    assert all(parameter.grad is not None for parameter in net.parameters())  # DDP refuses parameters without


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_checkpointing_gives_equal_gradients_with_frozen_blocks(autocast):
    """ProjectLily's own checkpointing raised under autocast, and with blocks that do not train."""
    gradients, saved = [], []
    for checkpointing in (False, True):
        net, sizes = build(fusion="residual", context_channels=5, checkpointing=checkpointing), []
        net.input_blocks.requires_grad_(False)
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
            torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t),
        ):
            loss = net(*inputs()).float().square().mean()
        saved.append(sum(sizes))
        loss.backward()
        gradients.append({name: p.grad for name, p in net.named_parameters() if p.requires_grad})
    torch.testing.assert_close(gradients[1], gradients[0], atol=0, rtol=0)
    assert saved[1] < saved[0]


@torch.no_grad()
def test_encoded_clip_serves_many_calls_and_positions_stretch():
    net = Denoiser(build(fusion="residual", context_channels=5), GlobalEncoder(**ENCODER)).eval()
    x, t, _ = inputs()
    clip = torch.randn(2, 1, 9, 32)
    expected = net(x, t, clip)
    torch.testing.assert_close(net(x, t, context=net.encode_clip(clip)), expected)
    assert not torch.equal(net(x, t), expected)


def test_concat_resizes_the_condition():
    joined = concat(torch.zeros(1, 2, 4, 4), torch.ones(1, 3, 2, 2))
    torch.testing.assert_close(joined[:, 2:], torch.ones(1, 3, 4, 4))


@pytest.mark.parametrize(("kind", "frames", "factor"), [("audiosr", 10, 1), ("projectlily", 11, 2)])
def test_mel_images(kind, frames, factor):
    """Time first, low bands first; powers grow twice as fast as magnitudes; float32 under autocast."""
    features = MelFeatures(kind, **MEL)
    assert features(torch.zeros(2, 1, 1600)).shape == (2, 1, frames, 32) and features.frames(1600) == frames
    seconds = torch.arange(16000) / 16000
    image = features((torch.sin(2 * math.pi * 500 * seconds) * (seconds > 0.5))[None, None])[0, 0]
    assert image[:40].mean() < image[-40:].mean() and 0 < image[-40:].mean(dim=0).argmax() < 12
    noise = torch.randn(1, 1, 8000, generator=torch.Generator().manual_seed(0))
    growth = features(10 * noise) - features(noise)
    torch.testing.assert_close(growth, torch.full_like(growth, factor * math.log(10)), atol=1e-3, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(features(noise), MelFeatures(kind, **MEL)(noise))


def test_scores_see_patches_of_the_published_size():
    net, mel = PatchDiscriminator(channels=2, layers=3), torch.randn(2, 1, 160, 96, requires_grad=True)
    ((scores, maps),) = net(mel)
    assert scores.shape == (2, 18 * 10) and len(maps) == 5 and maps[-1].shape == (2, 1, 18, 10)
    torch.testing.assert_close(net(mel[:1])[0][0], scores[:1])
    maps[-1][0, 0, 9, 5].backward()
    reached = mel.grad[0, 0].abs() > 0
    assert int(reached.any(1).sum()) == int(reached.any(0).sum()) == 70


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: UNet(**{**UNET, "attention_factors": (4,)}), "attention_factors"),
        (lambda: UNet(**{**UNET, "head_channels": 12}), "heads of 12"),
        (lambda: Denoiser(build(), GlobalEncoder(**ENCODER)), "both or neither"),
        (lambda: crop_to_multiple(torch.zeros(1, 1, 3, 32), 4), "3 frames"),
    ],
)
def test_what_does_not_fit_is_refused(call, key):
    with pytest.raises(ValueError, match=key):
        call()
