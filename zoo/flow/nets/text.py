"""Frozen text encoders of transformers: a prompt as states of its tokens and one vector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.tensors import seeded_rng
from zoo.flow.process.conditions import TextEncoder
from zoo.runs.frozen import FrozenModule, suppress_loading_messages
from zoo.runs.pretrained_files import build_config, load_config, load_pretrained, load_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

USUAL_TOKENS = 77  # CLIP's
ENCODERS = {  # of models that hold more than an encoder of text, by their type
    "clip": "CLIPTextModel",
    "clip_text_model": "CLIPTextModel",
    "t5": "T5EncoderModel",
    "mt5": "MT5EncoderModel",
    "umt5": "UMT5EncoderModel",
}


class FrozenText(FrozenModule, TextEncoder):
    """A trained encoder of texts (CLIP's, T5's, BERT's and their like), which is not trained here.

    States are rounded to half precision, so that those of a cache equal those computed at once.

    Args:
        source: folder in transformers' layout with its tokenizer, or a hub id; null for random weights.
        revision: commit of the hub repository.
        config: of `config.json`, with `model_type`, where there is no source. Texts are then read as bytes: ids 3 to
            258, padding 0, end 1.
        max_tokens: of a prompt; what is longer is cut.
        chunk: prompts encoded together.
        seed: of random weights.

    Raises:
        FileNotFoundError: when there is nothing at the source.
        ValueError: the model has no encoder, or not exactly one of source and config is given.
    """

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        max_tokens: int = USUAL_TOKENS,
        chunk: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(source, revision)
        check_at_least(1, max_tokens=max_tokens, chunk=chunk)
        if (source is None) == (config is None):
            raise ValueError("FrozenText: give source (a folder or hub id) or config (of random weights)")
        from transformers import AutoModel, ByT5Tokenizer

        if source is not None:
            settings = load_config(source, revision)
            self.tokenizer: Any = load_tokenizer(source, revision)
            self.model = load_pretrained(_encoder(settings, source), source, revision, dtype=torch.float32)
        else:
            settings = build_config(config or {})
            kind = _encoder(settings, "config")
            with seeded_rng(seed):
                self.model = (
                    kind.from_config(settings, trust_remote_code=False) if kind is AutoModel else kind(settings)
                )
            self.tokenizer = ByT5Tokenizer()
        self.max_tokens = max_tokens
        self.chunk = chunk
        self.width = int(self.model.config.hidden_size)
        self._null: dict[str, Tensor] | None = None
        self.requires_grad_(False)
        self.eval()

    def save_source(self, folder: Path) -> None:
        """Write model and tokenizer as transformers reads them."""
        super().save_source(folder)
        with suppress_loading_messages():
            self.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Encode prompts, see `TextEncoder.encode`; `pooled` is the encoder's vector, else the mean of its tokens."""
        if not prompts:
            raise ValueError("FrozenText: no prompt was given")
        parts = [self._encode(prompts[first : first + self.chunk]) for first in range(0, len(prompts), self.chunk)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def null(self) -> dict[str, Tensor]:
        """Encode the empty prompt, once."""
        if self._null is None or self._null["tokens"].device != self.model.device:
            self._null = self.encode([""])
        return self._null

    def _encode(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        device = self.model.device
        read = self.tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=self.max_tokens, return_tensors="pt"
        )
        mask = read["attention_mask"].to(device).bool()
        mask[:, 0] |= ~mask.any(dim=1)  # of no token at all, attention would be undefined
        with torch.autocast(device.type, enabled=False):
            outputs = self.model(input_ids=read["input_ids"].to(device), attention_mask=mask.long())
        tokens = outputs.last_hidden_state * mask[..., None]  # (B, L, D)
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is None:
            pooled = tokens.sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return {"tokens": tokens.half().float(), "mask": mask, "pooled": pooled.half().float()}


def _encoder(settings: PretrainedConfig, where: str) -> Any:
    """The class of transformers that encodes texts for a config."""
    import transformers

    kind = settings.model_type
    if kind in ENCODERS:
        return getattr(transformers, ENCODERS[kind])
    if settings.is_encoder_decoder:
        raise ValueError(f"FrozenText: {where} is of type {kind}, whose encoder is not known by itself")
    mappings = transformers.models.auto.modeling_auto
    if kind not in {*mappings.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES, *mappings.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}:
        raise ValueError(f"FrozenText: {where} is of type {kind}, which is no model of text")
    return transformers.AutoModel
