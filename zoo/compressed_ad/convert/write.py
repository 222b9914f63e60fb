"""A policy of ours in the words of the original's configuration, and whether the original has such a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from zoo.compressed_ad.convert.read import Kind
from zoo.compressed_ad.nets.compression import EncoderCompressor, QueryCompressor, ReconstructionDecoder
from zoo.compressed_ad.nets.embedding import LinearEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy

KINDS: dict[type[nn.Module] | None, Kind] = {None: "AD", QueryCompressor: "CAD", EncoderCompressor: "v1"}
MODELS: dict[Kind, str] = {"AD": "AD", "CAD": "CompressedAD", "v1": "CompressedAD"}


def identify(module: nn.Module) -> tuple[InContextPolicy, Kind]:
    """Tell which of the original's models a policy is.

    Returns:
        The policy itself, and the model.

    Raises:
        ValueError: when it is none of them: they would compute something else with its weights.
    """
    if not isinstance(module, InContextPolicy):
        raise ValueError(f"expected an InContextPolicy, found {type(module).__name__}")
    compressor = None if module.compressor is None else type(module.compressor)
    kind = KINDS.get(compressor)
    earlier = kind == "v1"
    block: Any = module.transformer.blocks[0]
    differing = [
        f"{what} {found}, theirs {theirs}"
        for what, found, theirs in (
            ("embedding", type(module.embedding).__name__, LinearEmbedding.__name__),
            ("arrangement", module.arrangement, "separate"),
            ("latent_mask", module.latent_mask if compressor else "full", "full"),
            ("embedding.norm", _is_norm(getattr(module.embedding, "norm", None)), earlier),
            ("transformer.input_norm", _is_norm(module.transformer.ln_in), earlier),
            ("transformer.final_norm", _is_norm(module.transformer.ln_f), not earlier),
            ("transformer.activation", block.mlp.activation, "gelu"),
            ("type_embedding", module.latent_type is not None, kind == "CAD"),
            ("decoder", type(module.decoder), ReconstructionDecoder if module.decoder is not None else type(None)),
        )
        if found != theirs
    ]
    if kind is None:
        raise ValueError(f"the original has no compressor like {compressor and compressor.__name__}; use `zoo export`")
    if differing:
        raise ValueError(
            f"the original's {kind} would compute something else with these weights ({'; '.join(differing)}); "
            "use `zoo export`"
        )
    return module, kind


def settings_of(policy: InContextPolicy, kind: Kind) -> dict[str, Any]:
    """The sizes of a policy under the original's names.

    Args:
        policy: that the original can hold.
        kind: what `identify` said.
    """
    transformer = policy.transformer
    block: Any = transformer.blocks[0]
    settings: dict[str, Any] = {
        "model": MODELS[kind],
        "dim_states": 2,
        "dim_actions": 1,
        "num_actions": policy.embedding.num_actions,
        "grid_size": policy.embedding.grid_size,
        "n_transit": policy.window,
        "tf_n_embd": transformer.dim,
        "tf_n_head": block.attn.heads,
        "tf_n_layer": len(transformer.blocks),
        "tf_dim_feedforward": block.mlp.fc1.out_features,
        "tf_dropout": transformer.dropout,
    }
    compressor = policy.compressor
    if isinstance(compressor, QueryCompressor):
        layer: Any = compressor.layers[0]
        settings |= {
            "n_compress_tokens": compressor.num_latents,
            "compress_n_layers": len(compressor.layers),
            "compress_n_heads": layer.self_attn.num_heads,
        }
    elif isinstance(compressor, EncoderCompressor):
        layers = compressor.transformer_encoder.layers
        settings |= {
            "n_latent": compressor.num_latents,
            "encoder_n_layer": len(layers),
            "encoder_n_head": layers[0].self_attn.num_heads,
            "encoder_dim_feedforward": layers[0].linear1.out_features,
            "max_encoder_length": compressor.pos_embedding.shape[1],
            "decoder_max_seq_length": policy.window,
        }
    return settings


def _is_norm(module: nn.Module | None) -> bool:
    return isinstance(module, nn.LayerNorm)
