"""Our HiFi-GAN checkpoints and exports from original files, and original files from our checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import zoo
from zoo.common.atomic import write_atomic
from zoo.common.build import build
from zoo.common.registry import public_name
from zoo.convert.checkpoints import loop_state, read_ours, write_converted
from zoo.hifigan.convert.read import (
    NAME,
    PARTS,
    Original,
    build_generator,
    discriminator_specs,
    pair,
    read,
    to_legacy_keys,
    trainable_state,
)
from zoo.hifigan.convert.recipe import (
    CONFIG_NAME,
    GENERATOR_KEYS,
    generator_spec,
    original_config,
    read_config,
    recipe_of,
)
from zoo.hifigan.nets.generator import LAST_SLOPE, Generator
from zoo.runs.export import write_export

ORIGINAL_ORDER = ("msd", "mpd")  # the original's discriminator optimizer numbers MSD's parameters first
OUR_ORDER = ("mpd", "msd")  # order of the task's `discriminators`
BUFFER_LEAVES = ("_u", "_v", "running_mean", "running_var", "num_batches_tracked")


def parameter_names(state: Mapping[str, Tensor], part: str) -> list[str]:
    """Names of a part's parameters in the order in which an optimizer numbers them (that of the state dict)."""
    return [key for key in state if key.startswith(f"{part}.") and not key.endswith(BUFFER_LEAVES)]


def discriminator_order(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The order of the discriminators in a state dict of ours, which is the one their optimizer numbers them in."""
    return tuple(dict.fromkeys(part for part in (key.partition(".")[0] for key in state) if part in OUR_ORDER))


def renumber(
    optimizer: Mapping[str, Any], counts: Mapping[str, int], before: Sequence[str], after: Sequence[str]
) -> dict[str, Any]:
    """Renumber an optimizer's positional state for another order of the nets.

    Args:
        optimizer: its state dict, with one parameter group.
        counts: parameters of each net.
        before: order of the nets in `optimizer`.
        after: order of the nets wanted.

    Returns:
        The state dict in the new order; tensors are shared.

    Raises:
        ValueError: when the optimizer's parameters are not those of the nets.
    """
    groups = optimizer["param_groups"]
    total = sum(counts[net] for net in before)
    if len(groups) != 1 or list(groups[0]["params"]) != list(range(total)):
        found = [len(group["params"]) for group in groups]
        raise ValueError(f"expected one optimizer group of {total} parameters, found groups of {found}")
    numbers: dict[str, range] = {}
    start = 0
    for net in before:
        numbers[net] = range(start, start + counts[net])
        start += counts[net]
    order = [number for net in after for number in numbers[net]]
    state = {new: optimizer["state"][old] for new, old in enumerate(order) if old in optimizer["state"]}
    return {"state": state, "param_groups": [dict(groups[0])]}


def scheduler_state(optimizer: Mapping[str, Any], gamma: float, epoch: int) -> dict[str, Any]:
    """State of an ExponentialLR stepped once after each of `epoch` epochs.

    The original keeps none, and on resume derives it from the epoch.
    """
    groups = optimizer["param_groups"]
    return {
        "gamma": gamma,
        "base_lrs": [initial_rate(group, gamma, epoch) for group in groups],
        "last_epoch": epoch,
        "_step_count": epoch + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": [group["lr"] for group in groups],
    }


def initial_rate(group: Mapping[str, Any], gamma: float, epoch: int) -> float:
    """The learning rate that training began with."""
    return group["initial_lr"] if "initial_lr" in group else group["lr"] / gamma**epoch


Config = Mapping[str, Any] | Path | str | None
TASK = "zoo.hifigan.HiFiGANTask"
INFERENCE = "zoo.hifigan.Vocoder"


def to_original(module: nn.Module, path: Path | str) -> None:
    """Write a generator as an original `g_*` file, and the generator's settings as config.json if none is beside it.

    Args:
        module: a `Generator` without conditioner; a fused one is written with plain weights.
        path: the file, by convention `g_%08d`.

    Raises:
        ValueError: when the original's format cannot hold it, or a config.json beside it says something else.
    """
    path = Path(path)
    if not isinstance(module, Generator):
        raise ValueError(f"expected a HiFi-GAN generator, found {type(module).__name__}")
    if module.conditioner is not None or module.padding_mode != "zeros":
        raise ValueError(
            "the original's format holds no conditioner and pads with zeros only; use `zoo export`. This generator has "
            f"conditioner {type(module.conditioner).__name__} and padding_mode {module.padding_mode!r}"
        )
    refuse_variants(module)
    _write_config(path.with_name(CONFIG_NAME), original_config(vars(module), None, {}))
    _save({"generator": to_legacy_keys(module.state_dict())}, path)


def refuse_variants(generator: Generator) -> None:
    """Refuse a generator whose weights the original's code, and every descendant of it, would run otherwise.

    Raises:
        ValueError: for another slope of the last activation, or a stage whose kernel minus rate is odd.
    """
    stages = zip(generator.upsample_kernel_sizes, generator.upsample_rates, strict=True)
    odd = [f"{kernel} with rate {rate}" for kernel, rate in stages if (kernel - rate) % 2]
    if generator.last_slope != LAST_SLOPE or odd:
        raise ValueError(
            f"the format holds generators with last_slope {LAST_SLOPE} and even kernel - rate only; this one has "
            f"last_slope {generator.last_slope} and "
            f"{'odd kernel - rate: kernel ' + ', '.join(odd) if odd else 'even kernel - rate'}; use `zoo export`"
        )


def settings_of(path: Path, config: Config = None) -> dict[str, Any]:
    """The original's settings: those given, or config.json beside the file.

    Raises:
        FileNotFoundError: when there are none.
    """
    if isinstance(config, Mapping):
        return dict(config)
    if config is not None:
        return read_config(Path(config))
    beside = pair(path)[0].with_name(CONFIG_NAME)
    if not beside.is_file():
        raise FileNotFoundError(
            f"{path} does not say its sizes: put the original's {CONFIG_NAME} beside it or pass config="
        )
    return read_config(beside)


def _save(content: dict[str, Any], path: Path) -> None:
    write_atomic(path, lambda file: torch.save(content, file))


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write config.json where there is none; refuse one that describes another generator."""
    if not path.is_file():
        write_atomic(path, lambda file: file.write(json.dumps(config, indent=2).encode()))
        return
    found = generator_spec(read_config(path))["init_args"]
    wanted = generator_spec(config)["init_args"]
    differing = [key for key, ours in GENERATOR_KEYS.items() if _plain(found[ours]) != _plain(wanted[ours])]
    if differing:
        raise ValueError(f"{path} describes another generator ({', '.join(differing)} differ); choose another folder")


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def to_ours(source: Path, target: Path) -> dict[str, Any]:
    """Turn an original file and its pair into a checkpoint (`.ckpt`) or an export folder; see `convert`."""
    original = read(source)
    settings = settings_of(source)
    generator = build_generator(original, settings, source)
    recipe, unmapped = recipe_of({"num_mels": generator.in_channels, **settings})
    arguments = recipe["model"]["init_args"]
    if generator.conditioner is not None:
        raise ValueError(f"{source} has a conditioner: convert it with `zoo convert miipher`")
    arguments["generator"]["init_args"]["padding_mode"] = generator.padding_mode
    specs = {
        "version": zoo.__version__,
        "system": "hifigan",
        "task": TASK,
        "inference": INFERENCE,
        "parts": {part: arguments[part] for part in ("generator", "mel")},
        "config": arguments,
        "original_config": settings,
    }
    batches = _batches(original, source)
    facts = {"system": "hifigan", "source": str(source), "target": [str(target)], "batches": batches}
    if target.suffix != ".ckpt":
        parts = {"generator": cast(nn.Module, generator), "mel": build(arguments["mel"])}
        write_export(target, specs, parts, pair(source)[0].name, batches or None)
        return {**facts, "tensors": len(generator.state_dict()), "notes": []}
    state = trainable_state(original.state)
    arguments["discriminators"].update(discriminator_specs(state, source))
    notes = [f"config: {key} has no counterpart" for key in unmapped]
    training, note = _training_state(original, state, arguments["scheduler_g"]["init_args"]["gamma"])
    epoch = original.training.get("epoch", 0)
    training = {"loops": loop_state(batches, max(epoch, 0)), **training}
    write_converted(target, specs, state, batches, epoch, training)
    return {**facts, "tensors": len(state), "notes": notes + ([note] if note else [])}


def _batches(original: Original, source: Path) -> int:
    """Batches trained: the original counts from zero and saves after the step it names."""
    match = NAME.fullmatch(pair(source)[0].name)
    steps = original.training.get("steps", int(match[2]) if match else -1)
    return int(steps) + 1


def _training_state(original: Original, state: dict[str, Tensor], gamma: float) -> tuple[dict[str, Any], str]:
    """Optimizers and schedules, or the reason why there are none."""
    if "optim_g" not in original.training or "optim_d" not in original.training:
        return {}, "no training state: start from it with init_from"
    counts = {part: len(parameter_names(state, part)) for part in PARTS}
    epoch = original.training["epoch"]
    if original.is_fused:
        return {}, "training state left out: the generator's weight norm was removed, its optimizer does not fit"
    optimizers = [
        renumber(original.training["optim_g"], counts, ["generator"], ["generator"]),
        renumber(original.training["optim_d"], counts, ORIGINAL_ORDER, OUR_ORDER),
    ]
    schedules = [scheduler_state(optimizer, gamma, max(epoch, 0)) for optimizer in optimizers]
    return {"optimizer_states": optimizers, "lr_schedulers": schedules}, ""


def from_checkpoint(source: Path, folder: Path) -> dict[str, Any]:
    """Write a checkpoint of ours as original files into a folder; see `convert`."""
    checkpoint, specs, *_ = read_ours(source, INFERENCE)
    state = checkpoint["state_dict"]
    generator = Generator(**_generator_arguments(specs, source))
    refuse_variants(generator)  # before anything is written
    parts = {
        name: {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
        for name in PARTS
    }
    generator.load_state_dict(parts["generator"])
    steps = max(int(checkpoint.get("global_step", 0)) - 1, 0)
    optimizers = checkpoint.get("optimizer_states") or []
    config = specs.get("original_config") or original_config(
        specs["parts"]["generator"]["init_args"], specs["parts"]["mel"]["init_args"], _known_settings(checkpoint)
    )
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"g_{steps:08d}"]
    _write_config(folder / CONFIG_NAME, config)
    notes = []
    if len(optimizers) == 2 and parts["mpd"] and parts["msd"]:
        counts = {part: len(parameter_names(state, part)) for part in PARTS}
        training = {
            "mpd": to_legacy_keys(parts["mpd"]),
            "msd": to_legacy_keys(parts["msd"]),
            "optim_g": renumber(optimizers[0], counts, ["generator"], ["generator"]),
            "optim_d": renumber(optimizers[1], counts, discriminator_order(state), ORIGINAL_ORDER),
            "steps": steps,
            "epoch": int(checkpoint.get("epoch", 0)),
        }
        written.append(folder / f"do_{steps:08d}")
        _save(training, written[-1])
    else:
        notes.append("no do_ file: the checkpoint lacks mpd, msd or their optimizer")
    to_original(generator, written[0])
    names = [str(path) for path in written]
    return {
        "system": "hifigan",
        "source": str(source),
        "target": names,
        "tensors": len(state),
        "steps": steps,
        "notes": notes,
    }


def _generator_arguments(specs: Mapping[str, Any], source: Path) -> dict[str, Any]:
    spec = specs["parts"]["generator"]
    arguments = spec["init_args"]
    if spec["class_path"] != public_name(Generator) or arguments.get("conditioner"):
        raise ValueError(f"{source}: the original's format cannot hold the generator {spec}; use `zoo export`")
    return dict(arguments)


def _known_settings(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What optimizer and schedule of a checkpoint say, in the original's words."""
    known: dict[str, Any] = {}
    gammas = [schedule["gamma"] for schedule in checkpoint.get("lr_schedulers") or [] if "gamma" in schedule]
    if gammas:
        known["lr_decay"] = gammas[0]
    for optimizer in (checkpoint.get("optimizer_states") or [])[:1]:
        group = optimizer["param_groups"][0]
        known["learning_rate"] = initial_rate(group, 1.0, 0)
        if "betas" in group:
            known["adam_b1"], known["adam_b2"] = group["betas"]
    return known
