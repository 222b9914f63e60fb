"""The nets of an original's file, in the order of the image axes that they were trained in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.audiosr.convert_check import Report, check, compare
from zoo.audiosr.convert_files import Original, describe_nets
from zoo.audiosr.convert_names import COPY, Layout, State
from zoo.audiosr.denoiser import Denoiser
from zoo.audiosr.global_encoder import GlobalEncoder
from zoo.audiosr.vae import Autoencoder
from zoo.hifigan.generator import Generator


class OriginalUNet(nn.Module):
    """A denoiser that takes the whole clip's mel in the axis order of its file.

    Args:
        net: UNet and, if there is one, global encoder.
        is_mel_first: whether mels and latents are (B, C, n_mels, F).
    """

    def __init__(self, net: Denoiser, is_mel_first: bool) -> None:
        super().__init__()
        self.net = net
        self.is_mel_first = is_mel_first

    def forward(self, x: Tensor, t: Tensor, full_audio: Tensor | None = None) -> Tensor:
        """Predict v (or the noise).

        Args:
            x: noisy latents and condition side by side (B, in_channels, H, W).
            t: diffusion steps (B,).
            full_audio: log-mel of the whole clip, in the order of the file; None leaves the global context out.

        Returns:
            (B, out_channels, H, W).
        """
        if full_audio is not None and self.is_mel_first:
            full_audio = full_audio.transpose(-1, -2)
        return self.net(x, t, full_audio)


class OriginalModel(nn.Module):
    """All nets of a file.

    Attributes:
        vae: `encode(mel)` gives moments, `decode(z)` a mel.
        unet: `unet(x, t, full_audio=None)`.
        condition_vae: encodes the condition where the file has another autoencoder for it; None where one serves both.
        vocoder: weight norm folded; None where the file has none. ProjectLily runs it on exp(log-mel), AudioSR on the
            log-mel.
        layout: of the file.
        config: the original's configuration; {} without one.
        step: optimizer steps trained.
        report: how its tensors matched, by component.
        notes: what was passed over.
    """

    def __init__(
        self,
        vae: Autoencoder,
        unet: OriginalUNet,
        vocoder: Generator | None,
        layout: Layout,
        condition_vae: Autoencoder | None = None,
    ) -> None:
        super().__init__()
        self.condition_vae = condition_vae
        self.vae = vae
        self.unet = unet
        self.vocoder = vocoder
        self.layout: Layout = layout
        self.config: dict[str, Any] = {}
        self.step = 0
        self.report: Report = {}
        self.notes: list[str] = []

    @property
    def global_encoder(self) -> GlobalEncoder | None:
        """`global_encoder(mel)` gives the clip's vector and its tokens, of mels (B, 1, n_mels, F)."""
        return self.unet.net.global_encoder


def build_model(original: Original, ema: bool, min_matched: float, allow_partial: bool) -> OriginalModel:
    """Build the nets of a file and load their weights.

    Args:
        original: what was read.
        ema: take the averaged parameters where the file has them.
        min_matched: share of each component's tensors that must match, 0 to 1.
        allow_partial: see `zoo.audiosr.convert_check.check`.

    Returns:
        The nets in evaluation mode.

    Raises:
        ValueError: when the autoencoder or the UNet is missing or not whole.
    """
    nets = describe_nets(original)
    report = compare(original, nets)
    notes = check(original, report, min_matched, allow_partial)
    if missing := [name for name in ("vae", "unet") if name not in nets]:
        raise ValueError(f"{original.path} holds no {' and no '.join(missing)}, without which nothing is computed")
    states = dict(original.parts)
    if ema:
        states |= {name: {**original.parts[name], **own} for name, own in original.averaged.items()}
    built: dict[str, Any] = {name: _loaded(cls(**arguments), states[name]) for name, (cls, arguments) in nets.items()}
    denoiser = Denoiser(built["unet"], built.get("global_encoder"))
    denoiser.latent_scale.copy_(original.scale)
    unet = OriginalUNet(denoiser, original.is_mel_first)
    model = OriginalModel(built["vae"], unet, built.get("vocoder"), original.layout, built.get(COPY))
    model.config, model.step, model.report, model.notes = original.config, original.step, report, notes
    return model.eval()


def _loaded(net: nn.Module, state: State) -> nn.Module:
    """Load what fits; `check` has judged the rest."""
    if isinstance(net, Generator):
        net.fuse_()
    own = net.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    net.load_state_dict(fitting, strict=False)
    return net


@torch.no_grad()
def transpose_kernels(net: nn.Module) -> None:
    """Turn a net for mel-first images into one for time-first images, or back, in place."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.copy_(layer.weight.transpose(-1, -2).clone())
