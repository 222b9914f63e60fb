"""Attention of transformers' models on an accelerator: masks are made without asking the device what is in them."""

from __future__ import annotations

from typing import Any

NAME = "zoo_sdpa"


def keep_masks_on_the_device(model: Any) -> None:
    """Let a transformers model that uses `sdpa` take every padding mask as it is.

    By itself it reads each mask back, to leave it out where nothing is padded. Without a mask nothing changes.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(NAME, _mask)
    model.set_attn_implementation(NAME)


def _mask(attention_mask: Any = None, **kwargs: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    if attention_mask is not None:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(attention_mask=attention_mask, **kwargs)
