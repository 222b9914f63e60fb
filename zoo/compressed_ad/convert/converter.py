"""Checkpoints of CompressedAD (AD, CAD, and the earlier encoder "v1") as policies, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.common.atomic_files import write_atomic
from zoo.compressed_ad.nets.compression import EncoderCompressor, QueryCompressor, ReconstructionDecoder
from zoo.compressed_ad.nets.embedding import LinearEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.convert.engine import ConvertedModel, Converter, OriginalFile, ZooCheckpoint, count_tensors
from zoo.convert.network_description import (
    Leaf,
    component,
    count_blocks,
    fill_description,
    has_tensor,
    setting,
    size_of_axis,
)
from zoo.convert.settings import read_settings_file, to_number, to_plain_value
from zoo.convert.tensor_names import NameTable, strip_state_wrappers
from zoo.runs.load import build_component

Kind = Literal["AD", "CAD", "v1"]

COMMON = (
    ("embed_context.{rest}", "embedding.context.{rest}"),
    ("embed_query_state.{rest}", "embedding.query_state.{rest}"),
)
HEAD = ("pred_action.{rest}", "head.{rest}")
# The earlier model's blocks are torch's encoder layers.
LAYER = NameTable(
    ("self_attn.in_proj_weight", "attn.qkv_proj.weight"),
    ("self_attn.in_proj_bias", "attn.qkv_proj.bias"),
    ("self_attn.out_proj.{rest}", "attn.out_proj.{rest}"),
    ("linear1.{rest}", "mlp.fc1.{rest}"),
    ("linear2.{rest}", "mlp.fc2.{rest}"),
    ("norm1.{rest}", "ln1.{rest}"),
    ("norm2.{rest}", "ln2.{rest}"),
)
BLOCKS = "transformer.blocks."
NAMES: dict[Kind, NameTable] = {
    "AD": NameTable(("transformer.{rest}", "transformer.{rest}"), *COMMON, HEAD),
    "CAD": NameTable(
        ("latent_type_embedding{rest}", "latent_type{rest}"),
        ("ad_transformer.{rest}", "transformer.{rest}"),
        *COMMON,
        HEAD,
        ("compression_transformer.{rest}", "compressor.{rest}"),
        ("reconstruction_decoder.{rest}", "decoder.{rest}"),
    ),
    "v1": NameTable(
        ("pos_embedding", "transformer.pos_embedding"),
        ("encoder.{rest}", "compressor.{rest}"),
        *COMMON,
        ("embed_ln.{rest}", "embedding.norm.{rest}"),
        ("input_ln.{rest}", "transformer.ln_in.{rest}"),
        ("transformer_decoder.layers.{n}.", f"{BLOCKS}{{n}}.", LAYER),
        HEAD,
    ),
}
# A tensor of each model, also of its pre-trained compressor; the first match counts.
MARKS: dict[Kind, str] = {
    "v1": "encoder.query_tokens",
    "CAD": "compression_transformer.compress_queries",
    "AD": "transformer.pos_embedding",
}
POLICY_MARK = "transformer.pos_embedding"  # of a policy: not in a pre-trained compressor
# Not determined by shapes: the original's key, and its default.
HEADS: dict[Kind, dict[str, int]] = {
    "AD": {"tf_n_head": 4},
    "CAD": {"tf_n_head": 4, "compress_n_heads": 4},
    "v1": {"tf_n_head": 8, "encoder_n_head": 8},
}
DROPOUT = 0.1
# the original's name: class, steps of an episode, other arguments (complete, since a resume compares them)
ENVIRONMENTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "darkroom": ("Darkroom", 20, {"start": None, "hard": False, "random_start": False}),
    "darkroom_permuted": ("DarkroomPermuted", 20, {}),
    "dark_key_to_door": ("DarkKeyToDoor", 50, {}),
}
TRAINING = ("step", "eval_reward")
# The original's key: attribute of a policy; of modules their number, of a tensor its second axis.
SIZES = {
    "num_actions": "embedding.num_actions",
    "grid_size": "embedding.grid_size",
    "n_transit": "window",
    "tf_n_embd": "transformer.dim",
    "tf_n_head": "transformer.blocks.0.attn.heads",
    "tf_n_layer": "transformer.blocks",
    "tf_dim_feedforward": "transformer.blocks.0.mlp.fc1.out_features",
    "tf_dropout": "transformer.dropout",
}
OWN_SIZES: dict[Kind, dict[str, str]] = {
    "AD": {},
    "CAD": {
        "n_compress_tokens": "compressor.num_latents",
        "compress_n_layers": "compressor.layers",
        "compress_n_heads": "compressor.layers.0.self_attn.num_heads",
    },
    "v1": {
        "n_latent": "compressor.num_latents",
        "encoder_n_layer": "compressor.transformer_encoder.layers",
        "encoder_n_head": "compressor.transformer_encoder.layers.0.self_attn.num_heads",
        "encoder_dim_feedforward": "compressor.transformer_encoder.layers.0.linear1.out_features",
        "max_encoder_length": "compressor.pos_embedding",
        "decoder_max_seq_length": "window",
    },
}
MODELS: dict[Kind, str] = {"AD": "AD", "CAD": "CompressedAD", "v1": "CompressedAD"}
KINDS: dict[type[nn.Module] | None, Kind] = {None: "AD", QueryCompressor: "CAD", EncoderCompressor: "v1"}


def checkpoint_kind(state: Mapping[str, object]) -> Kind | None:
    """Return which of the original's models has these tensors, or None."""
    return next((kind for kind, mark in MARKS.items() if mark in state and "embed_context.weight" in state), None)


def to_original_state(state: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the tensors (or other values by name) of an `InContextPolicy` under the original's names, in its order."""
    return NAMES[kind].write(state)


@dataclass
class PolicyCheckpoint(OriginalFile):
    """A checkpoint of the original; `layout` is the kind of its model, `settings` the merged configuration."""

    layout: Kind

    @property
    def is_policy(self) -> bool:
        """Whether it is a policy, and not only a pre-trained compressor."""
        return POLICY_MARK in self.state


def grid_size(source: PolicyCheckpoint) -> int:
    """Return the rows of the grid whose states have a token each; ValueError when it is not square."""
    states = len(source.state["embedding.query_state.weight"])
    if math.isqrt(states) ** 2 != states:
        raise ValueError(f"{states} query states are those of no square grid")
    return math.isqrt(states)


WIDTH = size_of_axis("embedding.context.weight")


def _head_count(key: str) -> Leaf:
    def read(source: PolicyCheckpoint) -> int:
        heads, dim = to_number(source.settings.get(key, HEADS[source.layout][key]), int, key), WIDTH(source)
        if dim % heads:
            raise ValueError(f"{key}: {heads} heads do not divide {dim} channels")
        return heads

    return read


def _layers(prefix: str, heads: str, hidden: str) -> dict[str, Any]:
    """Arguments of all nets of layers."""
    return {
        "dim": WIDTH,
        "depth": count_blocks(prefix),
        "heads": _head_count(heads),
        "feedforward": size_of_axis(f"{prefix}0.{hidden}.weight"),
        "dropout": DROPOUT,  # constant in the original
    }


QUERIES = component(
    "zoo.compressed_ad.QueryCompressor",
    **_layers("compressor.layers.", "compress_n_heads", "ffn.0"),
    num_latents=size_of_axis("compressor.compress_queries", 1),
    max_tokens=size_of_axis("compressor.context_pos_embedding", 1),
)
ENCODER = component(
    "zoo.compressed_ad.EncoderCompressor",
    **_layers("compressor.transformer_encoder.layers.", "encoder_n_head", "linear1"),
    num_latents=size_of_axis("compressor.query_tokens", 1),
    max_tokens=size_of_axis("compressor.pos_embedding", 1),
)
DECODER = component(
    "zoo.compressed_ad.ReconstructionDecoder",
    **_layers("decoder.layers.", "compress_n_heads", "ffn.0"),
    max_tokens=size_of_axis("decoder.position_queries", 1),
)
COMPRESSORS: dict[Kind, Any] = {"AD": None, "CAD": QUERIES, "v1": ENCODER}
POLICY = component(
    "zoo.compressed_ad.InContextPolicy",
    embedding=component(
        "zoo.compressed_ad.LinearEmbedding",
        dim=WIDTH,
        grid_size=grid_size,
        num_actions=size_of_axis("head.weight"),
        norm=has_tensor("embedding.norm.weight"),
    ),
    transformer=component(
        "zoo.compressed_ad.Transformer",
        dim=WIDTH,
        depth=count_blocks(BLOCKS),
        heads=_head_count("tf_n_head"),
        context=size_of_axis(POLICY_MARK, 1),
        feedforward=size_of_axis(f"{BLOCKS}0.mlp.fc1.weight"),
        dropout=setting("tf_dropout", DROPOUT, float),
        activation="gelu",
        input_norm=has_tensor("transformer.ln_in.weight"),
        final_norm=has_tensor("transformer.ln_f.weight"),
    ),
    compressor=lambda source: COMPRESSORS[source.layout],
    arrangement="separate",
    latent_mask="full",
    decoder=lambda source: DECODER if "decoder.position_queries" in source.state else None,
    type_embedding=has_tensor("latent_type"),
)


def env_spec(config: Mapping[str, Any], grid_size: int) -> dict[str, Any]:
    """Describe the environment that a configuration names; ValueError for an unknown one."""
    name = config.get("env", "darkroom")
    if name not in ENVIRONMENTS:
        raise ValueError(f"env is one of {', '.join(ENVIRONMENTS)}, found {name!r}")
    cls, horizon, others = ENVIRONMENTS[name]
    arguments = {"grid_size": grid_size, "horizon": to_number(config.get("horizon", horizon), int, "horizon"), **others}
    return component(f"zoo.compressed_ad.{cls}", **arguments)


def policy_spec(original: PolicyCheckpoint, path: Path) -> dict[str, Any]:
    """Describe the policy of a checkpoint: `class_path` and all `init_args`; ValueError when it has none."""
    if not original.is_policy:
        raise ValueError(
            f"{path} holds a pre-trained compressor without a policy; start a training from it with init_from"
        )
    return fill_description(POLICY, original, path)


class PolicyConverter(Converter[PolicyCheckpoint]):
    """Checkpoints of AD, CAD and the earlier encoder, and pre-trained compressors."""

    system, part = "compressed_ad", "policy"
    task, inference = "zoo.compressed_ad.DistillationTask", "zoo.compressed_ad.Agent"
    formats = (
        "known are ckpt-*.pt, best-model.pt and pretrain-*.pt of AD, CAD and the earlier encoder, and their state dicts"
    )

    def parse_content(self, content: Mapping[str, Any], path: Path) -> PolicyCheckpoint:
        """Recognise the layout of a loaded file; see `Converter.parse_content`."""
        tensors = content.get("model", content)
        is_state = isinstance(tensors, Mapping) and all(isinstance(value, Tensor) for value in tensors.values())
        state = strip_state_wrappers(tensors) if is_state and "zoo" not in content else {}
        kind = checkpoint_kind(state)
        if kind is None:
            raise self._unknown(path, content)
        zoo_state, unexpected_keys = NAMES[kind].read(state)
        if unexpected_keys:
            names = ", ".join(unexpected_keys[:4])
            raise ValueError(f"{path}: {len(unexpected_keys)} tensors belong to no {kind} model: {names}")
        config = content.get("config", {}) if tensors is not content else {}
        settings = to_plain_value(config) if isinstance(config, Mapping) else {}
        training = {key: content[key] for key in TRAINING if tensors is not content and key in content}
        return PolicyCheckpoint(kind, zoo_state, settings, training)

    def _spec(self, original: PolicyCheckpoint, path: Path, **options: Any) -> dict[str, Any]:
        return policy_spec(original, path)

    def describe_content(self, original: PolicyCheckpoint, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        facts: dict[str, Any] = count_tensors(original.state)
        if original.is_policy:
            for name, spec in policy_spec(original, path)["init_args"].items():
                if isinstance(spec, Mapping):
                    facts[name] = {"net": spec["class_path"].rpartition(".")[2], **spec["init_args"]}
        else:
            facts = {"format": f"pre-trained compressor of {original.layout}", **facts}
        training = original.training
        if "step" in training:
            facts["step"] = training["step"]
        if "eval_reward" in training:
            facts["eval_reward"] = float(training["eval_reward"])
        return {**facts, "settings in the file": original.settings}

    def from_original(self, path: Path | str, config: Mapping[str, Any] | Path | str | None = None) -> InContextPolicy:
        """Build the policy of a checkpoint of the original, in evaluation mode.

        Args:
            path: AD, CAD or the earlier encoder; the tensors determine which.
            config: the original's configuration (or its YAML file) with the numbers of heads, where the checkpoint has
                none.
        """
        path = Path(path)
        original = self.read(path)
        original.settings |= read_settings_file(Path(config)) if isinstance(config, Path | str) else dict(config or {})
        return self.build(original, path)

    def to_zoo(self, original: PolicyCheckpoint, source: Path, is_checkpoint: bool) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        policy = self.build(original, source)
        return ConvertedModel(
            parts={self.part: policy_spec(original, source), "env": env_spec(original.settings, grid_size(original))},
            nets={self.part: policy},
            step=int(original.training.get("step") or 0),
            specs={"original_config": original.settings},
            notes=original.notes_on_defaults({**HEADS[original.layout], "env": "darkroom"}),
        )

    def extra_arguments(
        self, checkpoint: ZooCheckpoint, net: nn.Module, source: Path, notes: list[str]
    ) -> dict[str, Any]:
        """Return options of `to_original`; see `Converter.extra_arguments`."""
        env = build_component(checkpoint.specs, "env")
        arguments = checkpoint.specs["components"]["env"].get("init_args") or {}
        if lost := [name for name in ("hard", "start", "random_start") if arguments.get(name)]:
            notes.append(f"the format does not hold the environment's {', '.join(lost)}, which the original lacks")
        settings = {"env": env.name, "horizon": env.schema.limit, **(checkpoint.specs.get("original_config") or {})}
        return {"settings": settings, "step": int(checkpoint.checkpoint.get("global_step", 0))}

    def to_original(
        self, module: nn.Module, path: Path | str, settings: Mapping[str, Any] | None = None, step: int = 0
    ) -> None:
        """Write a policy as a checkpoint of the original; ValueError when its models would compute something else.

        Args:
            settings: of the original's configuration (environment, split, training), besides the model's sizes.
            step: optimizer steps.
        """
        policy, kind = identify(module)
        state = {key: value.detach().cpu().contiguous() for key, value in policy.state_dict().items()}
        content = {
            "step": step,
            "config": {**(settings or {}), **settings_of(policy, kind), "device": torch.device("cpu")},
            "model": to_original_state(state, kind),
        }
        write_atomic(Path(path), lambda file: torch.save(content, file))


def identify(module: nn.Module) -> tuple[InContextPolicy, Kind]:
    """Return a policy and which of the original's models it is; ValueError for a policy that they do not have."""
    if not isinstance(module, InContextPolicy):
        raise ValueError(f"expected an InContextPolicy, found {type(module).__name__}")
    compressor = None if module.compressor is None else type(module.compressor)
    kind = KINDS.get(compressor)
    earlier = kind == "v1"
    block: Any = module.transformer.blocks[0]
    nets: list[Any] = [module.compressor, module.decoder] if kind == "CAD" and module.decoder is not None else []
    sizes = [f"{len(net.layers)} of {net.layers[0].self_attn.num_heads} heads" for net in nets] or [""]
    differing = [
        f"{name} {value}, the original's {expected}"
        for name, value, expected in (
            ("embedding", type(module.embedding).__name__, LinearEmbedding.__name__),
            ("arrangement", module.arrangement, "separate"),
            ("latent_mask", module.latent_mask if compressor else "full", "full"),
            ("embedding.norm", _is_norm(getattr(module.embedding, "norm", None)), earlier),
            ("transformer.input_norm", _is_norm(module.transformer.ln_in), earlier),
            ("transformer.final_norm", _is_norm(module.transformer.ln_f), not earlier),
            ("transformer.activation", block.mlp.activation, "gelu"),
            ("type_embedding", module.latent_type is not None, kind == "CAD"),
            ("decoder", type(module.decoder), ReconstructionDecoder if module.decoder is not None else type(None)),
            ("decoder's layers", sizes[-1], sizes[0]),
        )
        if value != expected
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
    """Return the sizes of a policy under the original's names."""

    def size(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.shape[1]
        return len(value) if isinstance(value, nn.ModuleList) else value

    sizes = {key: size(attrgetter(attribute)(policy)) for key, attribute in {**SIZES, **OWN_SIZES[kind]}.items()}
    return {"model": MODELS[kind], "dim_states": 2, "dim_actions": 1, **sizes}


def _is_norm(module: nn.Module | None) -> bool:
    return isinstance(module, nn.LayerNorm)
