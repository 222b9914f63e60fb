"""Frozen speech encoders from transformers, cut after block N: the features that are cleaned and vocoded."""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from zoo.blocks.attention_masks import keep_masks_on_the_device
from zoo.common.checks import check_one_of, check_within
from zoo.common.tensors import seeded_rng
from zoo.miipher.nets.families import FAMILIES, SAMPLE_RATE, Family, MelFamily, WaveformFamily, valid_mask
from zoo.runs.frozen import FrozenModule
from zoo.runs.pretrained_files import build_config, find_backbone, load_config, load_pretrained

log = logging.getLogger(__name__)

FamilyName = Literal[
    "auto",
    "hubert",
    "wavlm",
    "wav2vec2",
    "wav2vec2-bert",
    "gemma3n_audio",
    "whisper",
    "wavlm_as_hubert",
    "mel_hubert",
]

_FAMILY_KEY = "zoo_family"  # in a configuration: how to read a model that is not of its type's own family


class Backbone(FrozenModule):
    """The first blocks of a speech encoder, always in evaluation mode; the feature is the output of block `layer`.

    Block layout (post-LN or pre-LN), sizes and norms are read from the model's configuration. With a mask (`lengths`) a
    padded clip gives the features that it gives alone: padding stays out of the group norm's statistics, of the
    attention and of the convolutions.

    Args:
        layer: block whose output is the feature, counted from 1; later ones are not built.
        source: hub id, a folder in transformers' layout, or a folder of runs that holds `backbone/` folders (the newest
            is taken); null for random weights of `config`.
        revision: commit of the hub repository.
        config: for random weights: `model_type` and other arguments of the family's configuration.
        family: how to read the model; auto asks its configuration. `wavlm_as_hubert` reproduces Miipher-2 checkpoints
            whose WavLM was loaded with the HuBERT class, without its relative positions. `mel_hubert` feeds log-mels
            to a HuBERT; its configuration's `model_type` is hubert, and its saved copy remembers the family.
        normalize: scale each clip to zero mean and unit variance. Encoders whose first norms are layer norms (the
            large ones) were trained so; the same setting must serve every stage.
        pad: pad audio so that n samples give ceil(n / hop) frames, frame k centred in samples [k, k + 1) * hop.
            Without, as the original: floor((n - 400) / 320) + 1 frames, 2.5 ms late.
        final_norm: where `layer` is the last block of a pre-LN model, apply the encoder's closing norm.
        seed: of random weights.
        gradient_checkpointing: recompute the blocks' activations in the backward pass.

    Raises:
        FileNotFoundError: when a folder of runs holds no backbone.
        ValueError: when layer, family or configuration contradict each other.

    Source: Miipher-2 (arXiv 2505.04457), section 3.1.
    """

    def __init__(
        self,
        layer: int,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        family: FamilyName = "auto",
        normalize: bool = False,
        pad: bool = True,
        final_norm: bool = False,
        seed: int = 0,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__(source=None if source is None else find_backbone(source), revision=revision)
        if source is None and config is None:
            raise ValueError("backbone: give source (pretrained) or config (random weights)")
        settings = _configuration(self.source, revision, config)
        stated = getattr(settings, _FAMILY_KEY, settings.model_type)
        self.family: str = stated if family in ("auto", "wavlm_as_hubert") else family
        check_one_of(FAMILIES, model_type=self.family)
        kind, model_name = FAMILIES[self.family]
        count = getattr(settings, kind.depth)
        check_within(1, count, layer=layer)
        if final_norm and layer != count:
            raise ValueError(f"backbone: final_norm belongs to the last block {count}, layer is {layer}")
        if not pad and kind is not WaveformFamily:
            raise ValueError(f"backbone: pad: false is for encoders of waveforms, not {self.family}")
        kind.truncate(settings, layer)
        if self.family != settings.model_type:
            setattr(settings, _FAMILY_KEY, self.family)  # which `save_source` writes
        if family == "wavlm_as_hubert":
            values = {key: value for key, value in settings.to_dict().items() if key != "model_type"}
            settings = build_config({**values, "model_type": "hubert"})
            self.family, model_name = "hubert", "HubertModel"
        self.layer, self.pad, self.final_norm = layer, pad, final_norm
        self.front: Family = kind(settings, pad, normalize)
        self.sample_rate, self.hop_samples = SAMPLE_RATE, self.front.hop_samples
        self.dim: int = settings.hidden_size
        self.model = _build(model_name, settings, self.source, revision, seed, kind.key_mapping)
        if isinstance(self.front, MelFamily):
            self.mel = self.front.mel  # goes where the model goes
        norm = self.front.closing_norm()
        if norm is not None and not final_norm:
            self.model.set_submodule(norm, nn.Identity())  # the feature is its input
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.requires_grad_(False)
        self.eval()

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformers blocks 1 to `layer`."""
        return self.model.get_submodule(self.front.stack)

    def frames(self, samples: Any) -> Any:
        """Frames of a clip of so many samples (an int or an integer tensor)."""
        return self.front.frames(samples)

    def forward(self, waveform: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute features (B, frames(T), dim) of waveforms (B, T), -1 to 1, 16 kHz, of valid `lengths` (B,) int64.

        Features beyond a clip's end are zero. ValueError when a clip is too short for one frame without padding.
        """
        prepared, ends = self.front.prepare(waveform, lengths)
        x, frames = self.front.encode(self.model, prepared, ends), self.frames(waveform.shape[1])
        if x.shape[1] != frames:  # a slice of all would make the number of frames unknown to torch.export
            x = x[:, :frames]
        if lengths is None:
            return x
        return x * valid_mask(self.frames(lengths), x.shape[1])[..., None]

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode (no dropout, layer drop or masking) while frozen.

        The blocks alone, not what they contain, take the mode when gradients are checkpointed: transformers asks them.
        """
        super().train(mode)
        if self.gradient_checkpointing:
            for block in self.blocks:
                block.training = mode
        return self

    def unfreeze(self) -> None:
        """Let the backbone itself be trained: its tensors then go into checkpoints, its modes change."""
        self.requires_grad_(True)

    @property
    def is_frozen(self) -> bool:
        """Whether its own weights are not trained."""
        return not any(p.requires_grad for p in self.parameters())

    def frozen_state(self) -> dict[str, Tensor]:
        """The tensors that come from the source, none while they train themselves."""
        return dict(self.state_dict()) if self.is_frozen else {}


def _configuration(source: str | None, revision: str | None, config: dict[str, Any] | None) -> Any:
    if source is not None:
        if config is not None:
            log.warning("backbone: config has no effect beside source %s", source)
        settings = load_config(source, revision)
        return getattr(settings, "audio_config", settings)  # a Gemma 3n folder holds the whole model
    if "model_type" not in (config or {}):
        raise ValueError(f"backbone: config needs model_type, one of {', '.join(FAMILIES)}")
    return build_config(config or {})


def _build(
    model_name: str,
    settings: Any,
    source: str | None,
    revision: str | None,
    seed: int,
    key_mapping: dict[str, str] | None,
) -> Any:
    import transformers

    cls = attrgetter(model_name)(transformers)
    if source is not None:
        model = load_pretrained(cls, source, revision, config=settings, dtype=torch.float32, key_mapping=key_mapping)
    else:
        with seeded_rng(seed):
            model = cls(settings)
    keep_masks_on_the_device(model)
    return model
