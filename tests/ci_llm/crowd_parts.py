"""Tiny crowds for the tests: random backbones, agents that differ, a batch padded on both sides."""

from typing import Any

import torch

from zoo.ci_llm import Agents, Backbone, Crowd

_COMMON = {"num_hidden_layers": 2, "vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA_LIKE = {
    **_COMMON, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_LLAMA_LIKE},
    "gemma2": {"model_type": "gemma2", **_LLAMA_LIKE, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "gpt2": {"model_type": "gpt2", **_COMMON, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
HOW: dict[str, dict[str, Any]] = {
    name: {"config": config, "attention": "eager" if name == "gemma2" else "sdpa"} for name, config in CONFIGS.items()
}
GPT2_LAYERS = ("c_attn", "c_proj", "c_fc")


def crowd(
    name: str = "llama",
    count: int = 3,
    mode: Any = "batched",
    chunk: int | None = None,
    checkpointing: bool = False,
    backbone: dict[str, Any] | None = None,
    **agents: Any,
) -> Crowd:
    """A crowd whose agents differ (init "normal") and drop nothing by default."""
    base = Backbone(**{**HOW[name], "gradient_checkpointing": checkpointing, **(backbone or {})})
    if name == "gpt2":
        agents = {"targets": GPT2_LAYERS, **agents}
    settings = {"rank": 4, "alpha": 8, "init": "normal", "std": 0.1, "dropout": 0.0, **agents}
    return Crowd(base, Agents(count, **settings), mode, chunk)


def byte_crowd(count: int = 2, context: int = 64) -> Crowd:
    """A crowd on bytes, which can read and write texts of up to `context` tokens."""
    config = {**CONFIGS["llama"], "vocab_size": 259, "max_position_embeddings": context}
    return crowd(count=count, backbone={"config": config})


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and labels (3, 7): one text whole, one padded on the right, one on the left."""
    ids = torch.randint(3, 40, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [0] * 3 + [1] * 4])
    ids = ids * mask
    labels = torch.where((mask == 1) & (torch.arange(7) > 3), ids, -100)
    return ids, mask, labels
