"""A restorer as one ONNX graph: speech at 16 kHz in, restored speech at the vocoder's rate out."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.export import Dim

from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.miipher.nets.cleaner import Cleaner, Encoder
from zoo.miipher.nets.families import WaveformFamily
from zoo.runs.onnx_export import OnnxGraph

SHAPES = ((2, 24), (1, 16), (3, 20), (1, 37), (1, 101))  # (batch, frames) of the examples


class _Restoration(nn.Module):
    def __init__(self, encoder: Encoder, generator: WaveformGenerator) -> None:
        super().__init__()
        self.encoder, self.generator = encoder, generator

    def forward(self, waveform: Tensor) -> Tensor:
        features = self.encoder(waveform)  # (B, F, C)
        return self.generator(features.transpose(1, 2))[:, 0]  # (B, F * hop)


def restoration_graph(encoder: Encoder, generator: WaveformGenerator) -> OnnxGraph:
    """Describe copies of encoder and vocoder as one graph.

    It maps `waveform` (B, F * hop) at 16 kHz, with a peak of 0.95, to `audio` (B, F * hop').

    Clips of a batch are equally long; fewer than 16 frames give another result than a `Restorer`, which computes as if
    silence followed. ValueError when the encoder takes filter banks, or the generator searches for phases.
    """
    backbone = encoder.backbone if isinstance(encoder, Cleaner) else encoder
    if not isinstance(backbone.front, WaveformFamily):
        raise ValueError(f"no ONNX export: {backbone.family} takes filter banks, computed outside of the graph")
    if isinstance(generator, MagnitudeVocos):
        raise ValueError(f"no ONNX export: {type(generator).__name__} searches for phases, on complex numbers")
    net = copy.deepcopy(_Restoration(encoder, generator)).cpu().float().eval().requires_grad_(False)
    net.generator.remove_weight_norm_()
    random, hop = torch.Generator().manual_seed(0), encoder.hop_samples
    examples = [(0.1 * torch.randn(batch, frames * hop, generator=random),) for batch, frames in SHAPES]
    return OnnxGraph(net, {"waveform": {0: "batch", 1: hop * Dim("frames")}}, ["audio"], examples)
