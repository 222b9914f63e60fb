"""Tiny random nets of Miipher."""

from __future__ import annotations

from typing import Any

from zoo.hifigan.nets.generator import Generator
from zoo.miipher.nets.adapters import ParallelAdapters
from zoo.miipher.nets.backbone import Backbone, FamilyName
from zoo.miipher.nets.cleaner import Cleaner

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "conv_dim": [8] * 7,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "hubert": {"model_type": "hubert", **SMALL},
    "hubert_preln": {
        "model_type": "hubert", **SMALL, "do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True,
    },
    "mel_hubert": {
        "model_type": "hubert", **SMALL, "conv_dim": [24], "conv_kernel": [1], "conv_stride": [1],
        "do_stable_layer_norm": True, "feat_proj_layer_norm": False, "feat_extract_norm": "layer",
    },
    "wavlm": {"model_type": "wavlm", **SMALL},
    "wav2vec2": {"model_type": "wav2vec2", **SMALL},
    "wav2vec2-bert": {
        "model_type": "wav2vec2-bert", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 40, "feature_projection_input_dim": 160,
    },
    "gemma3n_audio": {
        "model_type": "gemma3n_audio", "hidden_size": 32, "conf_num_hidden_layers": 3, "conf_num_attention_heads": 4,
        "sscp_conv_channel_size": [8, 4],
    },
    "whisper": {
        "model_type": "whisper", "d_model": 32, "encoder_layers": 3, "encoder_attention_heads": 4,
        "encoder_ffn_dim": 40, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 40,
        "vocab_size": 60, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    },
}  # fmt: skip


def backbone(name: str = "hubert", layer: int = 2, **arguments: Any) -> Backbone:
    family: FamilyName = "mel_hubert" if name == "mel_hubert" else "auto"  # whose configuration is HuBERT's
    return Backbone(**{"layer": layer, "config": dict(CONFIGS[name]), "family": family, **arguments})


def cleaner(name: str = "hubert", layer: int = 2, **arguments: Any) -> Cleaner:
    return Cleaner(backbone(name, layer, **arguments), ParallelAdapters(hidden_dim=24, gain=1.0))


def generator(last_rate: int = 3, **arguments: Any) -> Generator:
    """A vocoder of an encoder's features: 441 samples per frame where the last rate is 3."""
    rates = (7, 7, 3, last_rate)
    kernels = [2 * rate + rate % 2 for rate in rates]
    return Generator(32, 16, rates, kernels, "2", (3,), ((1, 2),), **arguments)
