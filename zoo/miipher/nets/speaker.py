"""A frozen speaker encoder from transformers, through which gradients pass: who speaks, as a vector."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from zoo.common.tensors import seeded_rng
from zoo.miipher.nets.families import SAMPLE_RATE, standardise
from zoo.runs.frozen import FrozenModule, build_config, load_config, load_pretrained

WAVEFORM_MODELS = ("data2vec-audio", "unispeech-sat", "wav2vec2", "wav2vec2-conformer", "wavlm")


class SpeakerEncoder(FrozenModule):
    """An x-vector model of transformers, always in evaluation mode. Loading from the hub was not run here.

    Args:
        source: hub id (microsoft/wavlm-base-plus-sv) or a folder in transformers' layout; null for random weights of
            `config`. Only configuration and weights are read; no program of the repository is run.
        revision: commit of the hub repository.
        config: for random weights, where there is no source: `model_type` and what else its configuration takes.
        normalize: scale each clip to zero mean and unit variance: `do_normalize` of its preprocessor_config.json.
        seed: of random weights.

    Raises:
        FileNotFoundError: when the source cannot be had.
        ValueError: when the model does not take waveforms.
    """

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        normalize: bool = False,
        seed: int = 0,
    ) -> None:
        from transformers import AutoModelForAudioXVector
        from transformers.utils import is_peft_available

        if is_peft_available():
            importlib.import_module("peft")  # as transformers does in the first pass: better now than within a step
        super().__init__(source, revision)
        if source is None and "model_type" not in (config or {}):
            raise ValueError("speaker: give source (pretrained), or config with model_type (random weights)")
        settings = build_config(config or {}) if source is None else load_config(source, revision)
        if settings.model_type not in WAVEFORM_MODELS:
            raise ValueError(f"speaker: expected one of {', '.join(WAVEFORM_MODELS)}, found {settings.model_type}")
        if source is None:
            with seeded_rng(seed):
                self.model = AutoModelForAudioXVector.from_config(settings, trust_remote_code=False)
        else:
            self.model = load_pretrained(AutoModelForAudioXVector, source, revision, dtype=torch.float32)
        self.normalize = normalize
        self.sample_rate = SAMPLE_RATE
        hop = field = 1
        for kernel, stride in zip(settings.conv_kernel, settings.conv_stride, strict=True):
            field, hop = field + (kernel - 1) * hop, hop * stride
        layers = zip(settings.tdnn_kernel, settings.tdnn_dilation, strict=True)
        frames = 2 + sum((kernel - 1) * dilation for kernel, dilation in layers)  # two have a deviation
        self.least_samples = field + (frames - 1) * hop
        self.requires_grad_(False)
        self.eval()

    def forward(self, waveform: Tensor) -> Tensor:
        """Embeddings (B, D) of waveforms (B, T), -1 to 1, 16 kHz.

        Raises:
            ValueError: when the clips are shorter than the model's reach.
        """
        if waveform.shape[1] < self.least_samples:
            raise ValueError(
                f"speaker: the model needs {self.least_samples / SAMPLE_RATE:.2f} s, the clips have "
                f"{waveform.shape[1] / SAMPLE_RATE:.2f} s: raise data.init_args.segment_frames"
            )
        return self.model(standardise(waveform, None) if self.normalize else waveform).embeddings
