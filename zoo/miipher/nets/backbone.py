"""Frozen speech encoders from transformers, cut after block N: the features that are cleaned and vocoded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from zoo.blocks.attention_masks import keep_masks_on_the_device
from zoo.common.checks import check_one_of, check_within
from zoo.common.tensors import seeded_rng
from zoo.miipher.nets.families import FAMILIES, SAMPLE_RATE, Family, MelFamily, WaveformFamily, valid
from zoo.runs.frozen import FrozenModule, suppress_loading_messages
from zoo.runs.pretrained_files import build_config, find_backbone, load_config, load_pretrained

FamilyName = Literal[
    "auto", "hubert", "wavlm", "wav2vec2", "wav2vec2-bert", "gemma3n_audio", "wavlm_as_hubert", "mel_hubert"
]

_FAMILY_KEY = "zoo_family"  # in a configuration: how to read a model that is not of its type's own family


class Backbone(FrozenModule):
    """The first blocks of a speech encoder, always in evaluation mode.

    Block layout (post-LN or pre-LN), sizes and norms are read from the model's configuration. The feature is the output
    of block `layer`; later blocks are not built.

    With a mask (`lengths`) a padded clip gives the features that it gives alone: padding stays out of the group norm's
    statistics, of the attention and of the convolutions.

    Args:
        layer: block whose output is the feature, counted from 1.
        source: hub id, a folder in transformers' layout, or a folder of runs that holds `backbone/` folders (the newest
            is taken); null for random weights of `config`. Loading from the hub was not run here.
        revision: commit of the hub repository.
        config: for random weights, where there is no source: `model_type` and what else the family's configuration
            takes.
        family: how to read the model; auto asks its configuration. `wavlm_as_hubert` reproduces Miipher-2 checkpoints
            whose WavLM was loaded with the HuBERT class, without its relative positions. `mel_hubert` feeds log-mels
            to a HuBERT; its configuration's `model_type` is hubert, and what is saved of it remembers the family.
        normalize: scale each clip to zero mean and unit variance. Encoders whose first norms are layer norms (the
            large ones) were trained so; the same setting must serve every stage.
        pad: pad audio so that n samples give ceil(n / hop) frames, frame k centred in samples [k, k + 1) * hop.
            Without, as the original: floor((n - 400) / 320) + 1 frames, 2.5 ms late.
        final_norm: where `layer` is the last block of a pre-LN model, apply the encoder's closing norm.
        seed: of random weights.
        gradient_checkpointing: recompute the blocks' activations in the backward pass.
        layers: the feature is the sum of these blocks' outputs, weighted by the softmax of `layer_weights`, which
            start equal; `layer` must be the last of them. Stage 1 trains the weights, checkpoints and exports hold
            them, and later stages take them over by `init_from`. None: the output of `layer` alone.

    Raises:
        FileNotFoundError: when a folder of runs holds no backbone.
        ValueError: when layer, layers, family or configuration contradict each other.

    Source: Miipher-2 (arXiv 2505.04457), section 3.1; the weighted sum is SUPERB's (Yang et al., 2021, section 2).
    """

    layer_weights: nn.Parameter  # logits (layers,); with `layers` only

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
        layers: list[int] | None = None,
    ) -> None:
        import transformers

        super().__init__(source=None if source is None else find_backbone(source), revision=revision)
        if source is None and config is None:
            raise ValueError("backbone: give source (pretrained) or config (random weights)")
        settings = _configuration(self.source, revision, config)
        own = getattr(settings, _FAMILY_KEY, settings.model_type)
        self.family: str = own if family in ("auto", "wavlm_as_hubert") else family
        check_one_of(FAMILIES, model_type=self.family)
        kind, model_name = FAMILIES[self.family]
        count = getattr(settings, kind.depth)
        check_within(1, count, layer=layer)
        if final_norm and layer != count:
            raise ValueError(f"backbone: final_norm belongs to the last block {count}, layer is {layer}")
        if not pad and kind is not WaveformFamily:
            raise ValueError(f"backbone: pad: false is for encoders of waveforms, not {self.family}")
        if layers is not None and not (layers and sorted(set(layers)) == sorted(layers) and 1 <= min(layers)):
            raise ValueError(f"backbone: layers must be different blocks from 1 on, found {layers}")
        if layers is not None and max(layers) != layer:
            raise ValueError(f"backbone: layer {layer} must be the last of layers {layers}: later blocks are not built")
        kind.truncate(settings, layer)
        if self.family != settings.model_type:
            setattr(settings, _FAMILY_KEY, self.family)  # which `save_source` writes
        if family == "wavlm_as_hubert":
            values = settings.to_dict().items()
            settings = transformers.HubertConfig(**{key: value for key, value in values if key != "model_type"})
            self.family, model_name = "hubert", "HubertModel"
        self.layer = layer
        self.layers = None if layers is None else tuple(sorted(layers))
        self.pad = pad
        self.front: Family = kind(settings, pad, normalize)
        self.sample_rate, self.hop_samples = SAMPLE_RATE, self.front.hop_samples
        self.model = _build(getattr(transformers, model_name), settings, self.source, revision, seed)
        keep_masks_on_the_device(self.model)
        if isinstance(self.front, MelFamily):
            self.mel = self.front.mel  # goes where the model goes
        if kind in (WaveformFamily, MelFamily) and settings.do_stable_layer_norm and not final_norm:
            self.model.encoder.layer_norm = nn.Identity()  # the feature is what enters it
        self.dim: int = settings.hidden_size
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.requires_grad_(False)
        if self.layers is not None:
            self.layer_weights = nn.Parameter(torch.zeros(len(self.layers)))
            self._kept: dict[int, Tensor] | None = None  # what enters a block is the former one's whole output
            for number in self.layers[:-1]:
                self.blocks[number].register_forward_pre_hook(partial(self._keep, number))
        self.eval()

    def _keep(self, number: int, block: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._kept is not None:  # not while a checkpointed block is recomputed
            self._kept[number] = inputs[0]

    def _encode(self, prepared: Tensor, ends: Tensor | None) -> Tensor:
        """The last block's output, or the weighted sum."""
        if self.layers is None:
            return self.front.encode(self.model, prepared, ends)
        self._kept = {}
        last = self.front.encode(self.model, prepared, ends)
        kept, self._kept = {**self._kept, self.layer: last}, None
        return torch.stack([w * kept[n] for w, n in zip(self.mixture(), self.layers, strict=True)]).sum(0)

    def mixture(self) -> Tensor:
        """The weights (layers,) of the blocks' outputs; they add up to 1."""
        return self.layer_weights.softmax(0)

    def same_sum(self, other: Backbone) -> bool:
        """Whether both give the same sum of the same blocks."""
        if self.layers is None or other.layers is None or self.layers != other.layers:
            return self.layers == other.layers
        return torch.equal(self.layer_weights.cpu(), other.layer_weights.cpu())

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformers blocks 1 to `layer`."""
        return self.model.get_submodule(self.front.stack)

    def frames(self, samples: Any) -> Any:
        """Frames of a clip of so many samples (an int or an integer tensor)."""
        return self.front.frames(samples)

    def forward(self, waveform: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features (B, frames(T), dim) of waveforms (B, T), -1 to 1, 16 kHz; those beyond a clip's end are zero.

        Args:
            waveform: (B, T) float.
            lengths: valid samples of each (B,) int64; None when all are as long.

        Raises:
            ValueError: when a clip is too short for one frame without padding.
        """
        prepared, ends = self.front.prepare(waveform, lengths)
        x, frames = self._encode(prepared, ends), self.frames(waveform.shape[1])
        if x.shape[1] != frames:  # a slice of all would make the number of frames unknown to torch.export
            x = x[:, :frames]
        if lengths is None:
            return x
        return x * valid(self.frames(lengths), x.shape[1])[..., None]

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
        return not any(p.requires_grad for name, p in self.named_parameters() if _from_source(name))

    def frozen_state(self) -> dict[str, Tensor]:
        """The tensors that come from the source, none while they train themselves."""
        if not self.is_frozen:
            return {}
        return {name: tensor for name, tensor in self.state_dict().items() if _from_source(name)}

    def save_source(self, folder: Path) -> None:
        """Write configuration and weights in transformers' layout."""
        state = {
            name.removeprefix("model.").replace(".base_layer.", "."): tensor
            for name, tensor in self.state_dict().items()
            if _from_source(name)
        }
        with suppress_loading_messages():
            self.model.save_pretrained(folder, state_dict=state)


def _from_source(name: str) -> bool:
    """Whether a tensor comes from the source; the others train on it."""
    return "lora_" not in name and name != "layer_weights"


def _configuration(source: str | None, revision: str | None, config: dict[str, Any] | None) -> Any:
    if source is not None:
        settings = load_config(source, revision)
        return getattr(settings, "audio_config", settings)  # a Gemma 3n folder holds the whole model
    if "model_type" not in (config or {}):
        raise ValueError(f"backbone: config needs model_type, one of {', '.join(FAMILIES)}")
    return build_config(config or {})


def _build(model: Any, settings: Any, source: str | None, revision: str | None, seed: int) -> Any:
    if source is not None:
        return load_pretrained(model, source, revision, config=settings, dtype=torch.float32)
    with seeded_rng(seed):
        return model(settings)
