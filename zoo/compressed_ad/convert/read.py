"""Reading the original's checkpoints: which of its models, of what size, and what is known of its training."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import yaml
from torch import Tensor

from zoo.common.build import build_whole
from zoo.common.reading.foreign import load_foreign
from zoo.common.reading.text import safe_load
from zoo.compressed_ad.nets.policy import InContextPolicy

State = dict[str, Tensor]
Kind = Literal["AD", "CAD", "v1"]
Value = TypeVar("Value")

# Prefixes (theirs, ours), in the order in which the original registers its parameters, which its optimizer counts.
COMMON = [
    ("embed_context.", "embedding.context."),
    ("embed_query_state.", "embedding.query_state."),
]
HEAD = ("pred_action.", "head.")
BLOCKS = "transformer.blocks."
PREFIXES: dict[Kind, list[tuple[str, str]]] = {
    "AD": [("transformer.", "transformer."), *COMMON, HEAD],
    "CAD": [
        ("latent_type_embedding", "latent_type"),
        ("ad_transformer.", "transformer."),
        *COMMON,
        HEAD,
        ("compression_transformer.", "compressor."),
        ("reconstruction_decoder.", "decoder."),
    ],
    "v1": [
        ("pos_embedding", "transformer.pos_embedding"),
        ("encoder.", "compressor."),
        *COMMON,
        ("embed_ln.", "embedding.norm."),
        ("input_ln.", "transformer.ln_in."),
        ("transformer_decoder.layers.", BLOCKS),
        HEAD,
    ],
}
# The earlier model's blocks are torch's encoder layers; again in their order.
LAYER = [
    ("self_attn.in_proj_weight", "attn.qkv_proj.weight"),
    ("self_attn.in_proj_bias", "attn.qkv_proj.bias"),
    ("self_attn.out_proj.", "attn.out_proj."),
    ("linear1.", "mlp.fc1."),
    ("linear2.", "mlp.fc2."),
    ("norm1.", "ln1."),
    ("norm2.", "ln2."),
]
WRAPPERS = re.compile(r"^(module\.)+")  # of a model that was saved as data parallelism wraps it


def unwrapped(state: Mapping[str, Tensor]) -> State:
    """Strip the prefixes that data parallelism and compilation put before names."""
    return {WRAPPERS.sub("", str(key).replace("_orig_mod.", "")): value for key, value in state.items()}


def kind_of(state: Mapping[str, object]) -> Kind | None:
    """Which of the original's models has these tensors; None for none of them.

    A pre-trained compressor is told as the model that it belongs to.
    """
    if "embed_context.weight" not in state:
        return None
    marks: dict[Kind, str] = {
        "v1": "encoder.query_tokens",
        "CAD": "compression_transformer.compress_queries",
        "AD": "transformer.pos_embedding",
    }
    return next((kind for kind, mark in marks.items() if mark in state), None)


def to_ours(state: Mapping[str, Tensor], kind: Kind) -> tuple[State, list[str]]:
    """Rename an original's tensors, in their order.

    Returns:
        Tensors under `InContextPolicy`'s names, and the names that belong to none.
    """
    renamed, strangers = {}, []
    for key, value in state.items():
        name = _renamed(key, PREFIXES[kind])
        if name is not None and kind == "v1" and name.startswith(BLOCKS):
            number, _, leaf = name.removeprefix(BLOCKS).partition(".")
            inner = _renamed(leaf, LAYER)
            name = None if inner is None else f"{BLOCKS}{number}.{inner}"
        if name is None:
            strangers.append(key)
        else:
            renamed[name] = value
    return renamed, strangers


def to_theirs(state: Mapping[str, Value], kind: Kind) -> dict[str, Value]:
    """Rename an `InContextPolicy`'s tensors, in the order of the original's parameters.

    Args:
        state: of a policy that the original can hold; or other values by the same names.
        kind: which of its models.
    """
    result: dict[str, Value] = {}
    for theirs, ours in PREFIXES[kind]:
        found = [key for key in state if key.startswith(ours)]
        if kind == "v1" and ours == BLOCKS:
            for number in dict.fromkeys(key.removeprefix(BLOCKS).partition(".")[0] for key in found):
                for outer, inner in LAYER:
                    start = f"{ours}{number}.{inner}"
                    result |= {
                        f"{theirs}{number}.{outer}{key.removeprefix(start)}": state[key]
                        for key in found
                        if key.startswith(start)
                    }
        else:
            result |= {theirs + key.removeprefix(ours): state[key] for key in found}
    return result


def _renamed(key: str, prefixes: list[tuple[str, str]]) -> str | None:
    return next((ours + key.removeprefix(theirs) for theirs, ours in prefixes if key.startswith(theirs)), None)


# What shapes cannot tell: the original's key, and its value where a file does not say.
HEADS: dict[Kind, dict[str, int]] = {
    "AD": {"tf_n_head": 4},
    "CAD": {"tf_n_head": 4, "compress_n_heads": 4},
    "v1": {"tf_n_head": 8, "encoder_n_head": 8},
}
DROPOUT = 0.1
# the original's name: our class, steps of an episode, other arguments (written out, for a resume compares them)
ENVIRONMENTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "darkroom": ("Darkroom", 20, {"start": None, "hard": False, "random_start": False}),
    "darkroom_permuted": ("DarkroomPermuted", 20, {}),
    "dark_key_to_door": ("DarkKeyToDoor", 50, {}),
}
TRAINING = ("step", "optimizer", "lr_sched", "eval_reward")
FORMATS = (
    "known are ckpt-*.pt, best-model.pt and pretrain-*.pt of AD, CAD and the earlier encoder, and their state dicts"
)


@dataclass
class Original:
    """What a file of the original holds.

    Attributes:
        kind: which of its models.
        state: tensors under `InContextPolicy`'s names, in the file's order.
        config: the merged configuration, as plain values; empty where there is none.
        training: `TRAINING` as far as present.
    """

    kind: Kind
    state: State
    config: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it is a policy, not a pre-trained compressor alone."""
        return "transformer.pos_embedding" in self.state

    def assumed(self) -> list[str]:
        """What the file does not say and is taken to be as in the original's own recipes."""
        wanted = {**HEADS[self.kind], "env": "darkroom"}
        return [f"{key} is not in the file: {value} assumed" for key, value in wanted.items() if key not in self.config]


def read(path: Path, config: Mapping[str, Any] | Path | str | None = None) -> Original:
    """Read a file without executing anything in it.

    Args:
        path: a checkpoint of the original.
        config: its configuration, or the YAML file of it, where the checkpoint has none or another one is meant.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known; the message lists a few keys.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    content = load_foreign(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors; {FORMATS}")
    tensors = content.get("model", content)
    is_state = isinstance(tensors, Mapping) and all(isinstance(value, Tensor) for value in tensors.values())
    kind = kind_of(state := unwrapped(tensors)) if is_state and "zoo" not in content else None
    if kind is None:
        raise ValueError(f"{path}: unknown layout with keys {', '.join(map(str, list(content)[:5]))}; {FORMATS}")
    renamed, strangers = to_ours(state, kind)
    if strangers:
        raise ValueError(f"{path}: {len(strangers)} tensors belong to no {kind} model: {', '.join(strangers[:4])}")
    found = content.get("config", {}) if tensors is not content else {}
    given = read_config(Path(config)) if isinstance(config, Path | str) else dict(config or {})
    known = {**(plain(found) if isinstance(found, Mapping) else {}), **given}
    training = {key: content[key] for key in TRAINING if tensors is not content and key in content}
    return Original(kind, renamed, known, training)


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration, YAML of one level, as the original writes it beside its checkpoints.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it holds something else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {path}")
    try:
        config = safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no plain YAML: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a table of settings, found {type(config).__name__}")
    return config


def plain(value: Any) -> Any:
    """Turn numpy values, devices and tuples of a configuration into what JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def env_spec(config: Mapping[str, Any], grid_size: int) -> dict[str, Any]:
    """Describe the environment that a configuration names.

    Raises:
        ValueError: when there is no such environment.
    """
    name = config.get("env", "darkroom")
    if name not in ENVIRONMENTS:
        raise ValueError(f"env is one of {', '.join(ENVIRONMENTS)}, found {name!r}")
    cls, horizon, others = ENVIRONMENTS[name]
    arguments = {"grid_size": grid_size, "horizon": int(config.get("horizon", horizon)), **others}
    return _spec(cls, arguments)


def policy_spec(original: Original, path: Path) -> dict[str, Any]:
    """Describe the policy of a file; sizes come from the shapes of its tensors.

    Returns:
        `class_path` and `init_args`, with every size written out.

    Raises:
        ValueError: when it holds a pre-trained compressor alone, or its tensors are not those of a whole model.
    """
    if not original.is_whole:
        raise ValueError(
            f"{path} holds a pre-trained compressor without a policy; start a training from it with init_from"
        )
    try:
        return _spec("InContextPolicy", _policy_arguments(original))
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path}: the sizes of its model cannot be told from its tensors ({error})") from error


def grid_size(state: Mapping[str, Tensor]) -> int:
    """Rows of the grid whose states have a token each.

    Raises:
        ValueError: when the grid is not square.
    """
    states = len(state["embedding.query_state.weight"])
    if math.isqrt(states) ** 2 != states:
        raise ValueError(f"{states} query states are those of no square grid")
    return math.isqrt(states)


def _policy_arguments(original: Original) -> dict[str, Any]:
    state, kind = original.state, original.kind
    dim = len(state["embedding.context.weight"])
    heads = {key: int(original.config.get(key, usual)) for key, usual in HEADS[kind].items()}
    for key, count in heads.items():
        if dim % count:
            raise ValueError(f"{key}: {count} heads do not divide {dim} channels")
    embedding = {
        "dim": dim,
        "grid_size": grid_size(state),
        "num_actions": len(state["head.weight"]),
        "norm": "embedding.norm.weight" in state,
    }
    transformer = {
        "dim": dim,
        "depth": _count(state, BLOCKS),
        "heads": heads["tf_n_head"],
        "context": state["transformer.pos_embedding"].shape[1],
        "feedforward": len(state[f"{BLOCKS}0.mlp.fc1.weight"]),
        "dropout": float(original.config.get("tf_dropout", DROPOUT)),
        "activation": "gelu",
        "input_norm": "transformer.ln_in.weight" in state,
        "final_norm": "transformer.ln_f.weight" in state,
    }
    compressor = decoder = None
    if kind == "v1":
        compressor = _encoder_spec(state, dim, heads["encoder_n_head"])
    elif kind == "CAD":
        compressor = _query_spec(state, dim, heads["compress_n_heads"])
        if "decoder.position_queries" in state:
            arguments = _layers(state, "decoder.layers.", dim, heads["compress_n_heads"], "ffn.0")
            positions = state["decoder.position_queries"].shape[1]
            decoder = _spec("ReconstructionDecoder", {**arguments, "max_tokens": positions})
    return {
        "embedding": _spec("LinearEmbedding", embedding),
        "transformer": _spec("Transformer", transformer),
        "compressor": compressor,
        "arrangement": "separate",
        "latent_mask": "full",
        "decoder": decoder,
        "type_embedding": "latent_type" in state,
    }


def _query_spec(state: State, dim: int, heads: int) -> dict[str, Any]:
    sizes = {
        "num_latents": state["compressor.compress_queries"].shape[1],
        "max_tokens": state["compressor.context_pos_embedding"].shape[1],
    }
    arguments = _layers(state, "compressor.layers.", dim, heads, "ffn.0")
    return _spec("QueryCompressor", {**arguments, **sizes})


def _encoder_spec(state: State, dim: int, heads: int) -> dict[str, Any]:
    sizes = {
        "num_latents": state["compressor.query_tokens"].shape[1],
        "max_tokens": state["compressor.pos_embedding"].shape[1],
    }
    arguments = _layers(state, "compressor.transformer_encoder.layers.", dim, heads, "linear1")
    return _spec("EncoderCompressor", {**arguments, **sizes})


def _layers(state: State, prefix: str, dim: int, heads: int, hidden: str) -> dict[str, Any]:
    """Arguments that all nets of layers have."""
    return {
        "dim": dim,
        "depth": _count(state, prefix),
        "heads": heads,
        "feedforward": len(state[f"{prefix}0.{hidden}.weight"]),
        "dropout": DROPOUT,  # fixed in the original
    }


def _count(state: State, prefix: str) -> int:
    return len({key.removeprefix(prefix).partition(".")[0] for key in state if key.startswith(prefix)})


def _spec(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": f"zoo.compressed_ad.{name}", "init_args": arguments}


def build_policy(original: Original, path: Path) -> InContextPolicy:
    """Build the policy of a file and load its weights.

    Raises:
        ValueError: when its tensors are not a whole model; the message names missing, unexpected and differing ones.
    """
    policy: InContextPolicy = build_whole(policy_spec(original, path), original.state, str(path))
    return policy
