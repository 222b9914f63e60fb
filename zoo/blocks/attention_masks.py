"""Padding masks of transformers models that stay on the device."""

from __future__ import annotations

from typing import Any

ATTENTION_NAME = "zoo_sdpa"


def keep_masks_on_the_device(model: Any) -> None:
    """Let a transformers model that uses `sdpa` apply every padding mask without reading it back to the host.

    transformers reads each mask to drop it where nothing is padded. Calls without a mask do not change.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(ATTENTION_NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, _mask)
    model.set_attn_implementation(ATTENTION_NAME)


def _mask(attention_mask: Any = None, **kwargs: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    if attention_mask is not None:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(attention_mask=attention_mask, **kwargs)
