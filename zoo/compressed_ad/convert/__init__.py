"""Converters between our policies and the checkpoints of CompressedAD: AD, CAD, and the earlier encoder ("v1")."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zoo
from zoo.common.atomic import write_atomic
from zoo.compressed_ad.convert.read import Original, build_policy, env_spec, grid_size, policy_spec, read, to_theirs
from zoo.compressed_ad.convert.recipe import INFERENCE, TASK, convert_config
from zoo.compressed_ad.convert.training import our_training, their_training
from zoo.compressed_ad.convert.write import identify, settings_of
from zoo.compressed_ad.envs.grids import Env
from zoo.convert.checkpoints import read_ours, write_converted
from zoo.runs.export import parts_state, write_export
from zoo.runs.folder import find_checkpoint
from zoo.runs.load import build_part

__all__ = ["convert", "convert_config", "describe", "from_original", "is_original", "original_state", "to_original"]

PART = "policy"  # name of the net in the task, and so prefix of its tensors


def is_original(path: Path | str) -> bool:
    """Whether a path is a checkpoint of AD, CAD, the earlier encoder, or a pre-trained compressor."""
    try:
        read(Path(path))
    except (ValueError, OSError):
        return False
    return True


def describe(path: Path | str) -> dict[str, Any]:
    """Say what a checkpoint of the original holds.

    Returns:
        Model, parts with their arguments, counts, and what the file says of its training.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    path = Path(path)
    original = read(path)
    facts: dict[str, Any] = {
        "system": "compressed_ad",
        "format": original.kind if original.is_whole else f"pre-trained compressor of {original.kind}",
        "tensors": len(original.state),
        "values": sum(tensor.numel() for tensor in original.state.values()),
    }
    if original.is_whole:
        for name, part in policy_spec(original, path)["init_args"].items():
            if isinstance(part, Mapping):
                facts[name] = {"net": part["class_path"].rpartition(".")[2], **part["init_args"]}
    for key in ("step", "eval_reward"):
        if key in original.training:
            facts[key] = float(original.training[key]) if key == "eval_reward" else original.training[key]
    facts["optimizer"] = bool(original.training.get("optimizer"))
    facts["settings in the file"] = original.config
    return facts


def from_original(path: Path | str, config: Mapping[str, Any] | Path | str | None = None) -> nn.Module:
    """Build the policy of a checkpoint of the original.

    Args:
        path: AD, CAD or the earlier encoder; what it is, follows from its tensors.
        config: the original's configuration (or its YAML file), where the checkpoint has none: numbers of heads cannot
            be told from tensors.

    Returns:
        An `InContextPolicy` in evaluation mode. `policy.logits(...)` computes as the original does while it trains,
        `zoo.compressed_ad.convert.legacy` as it does while it acts.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known, or its tensors do not make up a whole policy.
    """
    path = Path(path)
    return build_policy(read(path, config), path).eval()


def original_state(path: Path | str) -> dict[str, Tensor]:
    """Tensors of a checkpoint of the original under our task's names (`policy.*`); of a pre-trained compressor, too.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    return {f"{PART}.{key}": value for key, value in read(Path(path)).state.items()}


def to_original(
    module: nn.Module,
    path: Path | str,
    settings: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a policy as a checkpoint of the original.

    Args:
        module: an `InContextPolicy` that computes as one of the original's models.
        path: file to write.
        settings: of the original's configuration (environment, split, training), beside the model's sizes.
        training: `step`, `optimizer` and `lr_sched`, as the original keeps them; step 0 by default.

    Raises:
        ValueError: when the original's models would compute something else with these weights.
    """
    policy, kind = identify(module)
    state = {key: value.detach().cpu().contiguous() for key, value in policy.state_dict().items()}
    content = {
        "step": 0,
        "config": {**(settings or {}), **settings_of(policy, kind), "device": torch.device("cpu")},
        "model": to_theirs(state, kind),
        **(training or {}),
    }
    write_atomic(Path(path), lambda file: torch.save(content, file))


def convert(source: Path | str | nn.Module, target: Path | str) -> dict[str, Any]:
    """Convert an original to ours, or ours to an original.

    Args:
        source: a checkpoint of the original; or our checkpoint, our run folder, or a policy.
        target: for an original, a `.ckpt` file, or else an export folder; for ours, the file to write.

    Returns:
        What was written: source, target, tensors, and notes on what was left out or assumed.

    Raises:
        FileNotFoundError: when there is no source.
        ValueError: when the layout is not known or the target format cannot hold the source.
    """
    target = Path(target)
    if isinstance(source, nn.Module):
        to_original(source, target)
        return {"system": "compressed_ad", "target": [str(target)], "tensors": len(source.state_dict())}
    source = Path(source)
    if is_original(source):
        return _to_ours(read(source), source, target)
    return _from_checkpoint(find_checkpoint(source), target)


def _to_ours(original: Original, source: Path, target: Path) -> dict[str, Any]:
    policy = build_policy(original, source)
    notes = original.assumed()
    step = int(original.training.get("step") or 0)
    specs = {
        "version": zoo.__version__,
        "system": "compressed_ad",
        "task": TASK,
        "inference": INFERENCE,
        "parts": {
            PART: policy_spec(original, source),
            "env": env_spec(original.config, grid_size(original.state)),
        },
        "original_config": original.config,
    }
    if target.suffix == ".ckpt":
        ours = [name for name, _ in policy.named_parameters()]
        training, left_out = our_training(original.training, original.config, list(original.state), ours)
        state = {f"{PART}.{key}": value for key, value in policy.state_dict().items()}
        write_converted(target, specs, state, step, training=training)
        notes += left_out
    else:
        write_export(target, specs, {PART: policy}, source.name, step or None)
    return {
        "system": "compressed_ad",
        "source": str(source),
        "target": [str(target)],
        "tensors": len(original.state),
        "notes": notes,
    }


def _from_checkpoint(source: Path, target: Path) -> dict[str, Any]:
    """Write the policy of a checkpoint of ours as an original; its averaged weights, where it has them."""
    checkpoint, specs, state, averaged = read_ours(source, INFERENCE)
    policy, kind = identify(build_part(specs, PART))
    policy.load_state_dict(parts_state(state, PART))
    ours = [name for name, _ in policy.named_parameters()]
    theirs = list(to_theirs({name: name for name in ours}, kind).values())
    training = {"step": int(checkpoint.get("global_step", 0)), **their_training(checkpoint, ours, theirs)}
    settings = {**_env_settings(build_part(specs, "env")), **(specs.get("original_config") or {})}
    to_original(policy, target, settings, training)
    notes = ["averaged (EMA) weights"] if averaged else []
    return {
        "system": "compressed_ad",
        "source": str(source),
        "target": [str(target)],
        "tensors": len(policy.state_dict()),
        "notes": notes + ([] if "optimizer" in training else ["no optimizer of all parameters: none written"]),
    }


def _env_settings(env: Env) -> dict[str, Any]:
    return {"env": env.name, "horizon": env.horizon}
