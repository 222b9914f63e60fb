"""Every net that a recipe names compiles into one graph, whatever the sizes of its inputs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.audiosr import task_parts as audiosr
from tests.ci_llm import crowd_parts
from tests.compressed_ad.test_losses import histories
from tests.miipher.parts import backbone, cleaner
from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.spectral import MultiScaleMel
from zoo.audiosr.nets.discriminator import PatchDiscriminator
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.ci_llm.nets.backbone import LearningBackbone
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.nets.compression import EncoderCompressor, FieldDecoder, QueryCompressor, ReconstructionDecoder
from zoo.compressed_ad.nets.embedding import FactoredEmbedding, LinearEmbedding, SpaceEmbedding
from zoo.compressed_ad.nets.heads import BinsHead
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.nets.transformer import Transformer
from zoo.flow.nets.dit import DiT
from zoo.flow.nets.mlp import ToyNet
from zoo.flow.nets.unet import UNet
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator, MultiScaleDiscriminator
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.hifigan.nets.spectral_discriminators import (
    MultiBandDiscriminator,
    MultiOctaveDiscriminator,
    MultiResolutionDiscriminator,
)
from zoo.hifigan.nets.stochastic import StochasticVocos
from zoo.hifigan.nets.vocos import Vocos

Inputs = Callable[[int], tuple[Any, ...]]
"""Inputs by a size, so that two sizes show that nothing was specialised away."""


class Call(nn.Module):
    """A function of modules as a module."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.parts.values(), *inputs)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.int64)


def policy(embedding: Any, compressor: Any) -> InContextPolicy:
    return InContextPolicy(
        embedding(16, 5), Transformer(16, 1, 2, 12, dropout=0.0), compressor(16, 3, 1, 2, dropout=0.0)
    )


def points() -> tuple[nn.Module, Inputs]:
    env = PointMass()
    net = InContextPolicy(SpaceEmbedding(env, 16), Transformer(16, 1, 2, 40, dropout=0.0), head=BinsHead(env, 16))

    def act(net: InContextPolicy, steps: Steps) -> torch.Tensor:
        return net.head.losses(net(steps).logits, steps.actions)

    def inputs(size: int) -> tuple[Any, ...]:
        return (EpsilonCurriculum(env, 1).histories(env.tasks()[:2], [0, 1]).slice(0, size),)

    return Call(act, net=net), inputs


def denoiser() -> tuple[nn.Module, Inputs]:
    return audiosr.denoiser("residual", attention_factors=[]), lambda size: (
        noise(2, 4, 4 * size, 16), torch.tensor([3, 5]), noise(2, 1, 8 * size, 32)
    )  # fmt: skip


def encoder(kind: str) -> tuple[nn.Module, Inputs]:
    return backbone(kind), lambda size: (noise(2, 640 * size), torch.tensor([640 * size, 640 * size - 100]))


def language_model(name: str) -> tuple[nn.Module, Inputs]:
    crowd = crowd_parts.crowd(name)
    call = Call(lambda crowd, ids, mask: crowd(ids, mask), crowd=crowd)
    return call, lambda size: (ones(2, 2 * size), torch.cat([ones(2, 2 * size - 1), ones(2, 1) * 0], 1))


def mel(size: int) -> tuple[Any, ...]:
    return (noise(2, 4, size),)


def clip(size: int) -> tuple[Any, ...]:
    return (noise(2, 1, 90 * size),)


def history(size: int) -> tuple[Any, ...]:
    return (histories(size, 14),)


RESBLOCKS: dict[str, Any] = {"resblock_kernel_sizes": (3,), "resblock_dilation_sizes": ((1,),)}
WAVEFORM = ("hubert_preln", "wavlm")  # HuBERT stands in the cleaner, wav2vec 2.0 is read as WavLM is
NETS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "Generator": lambda: (Generator(4, 8, (2, 2), (4, 4), **RESBLOCKS), mel),
    "BigVGAN": lambda: (BigVGAN(4, 8, (2, 2), (4, 4), **RESBLOCKS), mel),
    "StochasticVocos": lambda: (StochasticVocos(LogMel(8000, 64, 16, 64, 4, 0.0, None), 8, 12, 1), mel),
    "MagnitudeVocos": lambda: (MagnitudeVocos(4, 16, 2, 32, 8, 12, 1, 2), mel),
    "Vocos-codes": lambda: (
        Vocos(4, 8, 12, 1, 16, 4, conditions=2), lambda size: (noise(2, 4, size), torch.tensor(1))
    ),
    "Vocos": lambda: (Vocos(4, 8, 12, 2, 16, 4, "center"), mel),
    "MultiBandDiscriminator": lambda: (MultiBandDiscriminator((64, 32), channels=2), clip),
    "MultiResolutionDiscriminator": lambda: (MultiResolutionDiscriminator(((32, 8, 16),), 1 / 16), clip),
    "MultiOctaveDiscriminator": lambda: (
        MultiOctaveDiscriminator(16000, (64,), (6,), (6,), 2, (1, 2)), lambda size: (noise(2, 1, 300 * size),)
    ),
    "MultiScaleMel": lambda: (
        MultiScaleMel(16000, (32, 64), (4, 8)), lambda size: (noise(2, 1, 90 * size), noise(2, 1, 90 * size) / 2)
    ),
    "MultiPeriodDiscriminator": lambda: (MultiPeriodDiscriminator([2, 3], channel_mult=1 / 32), clip),
    "MultiScaleDiscriminator": lambda: (MultiScaleDiscriminator(1, channel_mult=1 / 32), clip),
    "LogMel": lambda: (LogMel(16000, 256, 64, 256, 20, 0.0, None), lambda size: (noise(2, 500 * size),)),
    "MelFeatures": lambda: (audiosr.features(), lambda size: (noise(2, 1, 500 * size),)),
    "Denoiser": denoiser,
    "FrozenAutoencoder": lambda: (
        Call(lambda net, mel: net.decode(net.encode(mel)[:, :2]), net=FrozenAutoencoder(config=audiosr.AUTOENCODER)),
        lambda size: (noise(2, 1, 4 * size, 32),),
    ),
    "FrozenVocoder": lambda: (FrozenVocoder(config=audiosr.VOCODER), lambda size: (noise(2, 1, size, 32),)),
    "PatchDiscriminator": lambda: (PatchDiscriminator(4, 2), lambda size: (noise(2, 1, 8 * size, 32),)),
    "UNet": lambda: (
        UNet(8, 1, 8, channel_mult=[1, 2], attention_levels=[1], res_blocks=1, num_classes=3),
        lambda size: (noise(size, 1, 8, 8), torch.linspace(0, 1, size), ones(size)),
    ),
    **{
        f"DiT-{positions}": lambda positions=positions: (
            DiT(8, 1, depth=2, dim=16, heads=2, num_classes=3, positions=positions, context_dim=4),
            lambda size: (
                noise(3, 1, 8, 2 * size), torch.linspace(0, 1, 3), ones(3),
                {"tokens": noise(3, size, 4), "mask": ones(3, size)},
            ),
        )
        for positions in ("sincos", "rope")
    },
    "ToyNet": lambda: (ToyNet(), lambda size: (noise(size, 2), torch.linspace(0, 1, size))),
    **{f"Backbone-{kind}": (lambda kind=kind: encoder(kind)) for kind in WAVEFORM},
    "Cleaner": lambda: (cleaner(), encoder("hubert")[1]),
    **{f"Crowd-{name}": (lambda name=name: language_model(name)) for name in ("llama", "gemma2")},
    "LearningBackbone": lambda: (
        Call(
            lambda net, ids, mask: net(input_ids=ids, attention_mask=mask, use_cache=False).logits,
            net=LearningBackbone(config=crowd_parts.CONFIGS["llama"]),
        ),
        language_model("llama")[1],
    ),
    "InContextPolicy": lambda: (policy(FactoredEmbedding, QueryCompressor), history),
    "EncoderCompressor": lambda: (policy(LinearEmbedding, EncoderCompressor), history),
    "BinsHead": points,
    "ReconstructionDecoder": lambda: (
        ReconstructionDecoder(16, 1, 2), lambda size: (noise(2, 3, 16), torch.arange(size))
    ),
    "FieldDecoder": lambda: (FieldDecoder(16, 5, heads=2), lambda size: (noise(2, 3, 16), torch.arange(size))),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):  # without it a GRU is run as it is, between two graphs
        yield
    torch._dynamo.reset()


FAST = ("Cleaner", "Crowd-llama", "Denoiser", "Generator", "InContextPolicy", "UNet")  # one a system


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NETS]
)
def test_net_is_one_graph(name: str) -> None:
    torch.manual_seed(0)
    net, inputs = NETS[name]()
    compiled = torch.compile(net.eval(), backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for size in (6, 9):
            expected, results = (torch.utils._pytree.tree_leaves(call(*inputs(size))) for call in (net, compiled))
            for actual, reference in zip(results, expected, strict=True):
                torch.testing.assert_close(actual, reference)
