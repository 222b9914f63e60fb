"""Our checkpoints and exports from files of the Miipher-2 reproductions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import zoo
from zoo.convert.checkpoints import loop_state, write_converted
from zoo.hifigan.convert.read import discriminator_specs, trainable_state
from zoo.hifigan.convert.write import renumber
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.convert.cleaner import Built, build_cleaner, spec_of
from zoo.miipher.convert.read import Original, read
from zoo.miipher.convert.vocoder import SAMPLE_RATE, Vocoder, build_vocoder, front_arguments, listed, settings_of
from zoo.miipher.nets.cleaner import check_fit
from zoo.runs import frozen
from zoo.runs.export import AUDIO_USAGE, FEATURES_USAGE, write_export

# the original's optimizer numbers the extractor's trained norms first, ours the adapters
THEIR_ORDER, OUR_ORDER = ("norms", "blocks"), ("blocks", "norms")
WARMUP = "constant_with_warmup"


def our_training(training: Mapping[str, Any], count: int) -> tuple[dict[str, Any], list[str]]:
    """Entries of a Lightning checkpoint for an original's training state.

    Args:
        training: `optimizer_state_dict`, `scheduler_state_dict`, `step`, `config` as far as present.
        count: blocks with adapters.

    Returns:
        (`optimizer_states`, `lr_schedulers`, `loops`, what could not be taken over).
    """
    entries: dict[str, Any] = {"optimizer_states": [], "lr_schedulers": []}
    notes = []
    step = int(training.get("step") or 0)
    optimizer = training.get("optimizer_state_dict")
    if optimizer and optimizer.get("param_groups"):
        entries["optimizer_states"] = [renumber(optimizer, _counts(count), THEIR_ORDER, OUR_ORDER)]
    else:
        notes.append("no optimizer: start from it with init_from")
    schedule = dict(training.get("scheduler_state_dict") or {})
    if schedule and entries["optimizer_states"]:
        functions = schedule.pop("lr_lambdas", None)
        settings = ((training.get("config") or {}).get("optim") or {}).get("scheduler") or {}
        if functions is None or settings.get("name") == WARMUP:
            entries["lr_schedulers"] = [schedule if functions is None else {**_warmup(settings), **schedule}]
        else:
            notes.append("schedule left out: its configuration does not name a warm-up")
    entries["loops"] = loop_state(step, 0, automatic=True)
    return entries, notes


def their_training(checkpoint: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Optimizer and schedule of a checkpoint of ours in the original's order; empty where there are none."""
    optimizers, schedules = checkpoint.get("optimizer_states") or [], checkpoint.get("lr_schedulers") or []
    result: dict[str, Any] = {"optimizer_state_dict": {}, "scheduler_state_dict": {}}
    if len(optimizers) == 1:
        result["optimizer_state_dict"] = renumber(optimizers[0], _counts(count), OUR_ORDER, THEIR_ORDER)
    if len(schedules) == 1:
        schedule = dict(schedules[0])
        if schedule.pop("warmup_steps", None) is not None:
            schedule["lr_lambdas"] = [{}]
        result["scheduler_state_dict"] = schedule
    return result


def _counts(count: int) -> dict[str, int]:
    return {"norms": 2 * count, "blocks": 6 * count}


def _warmup(settings: Mapping[str, Any]) -> dict[str, int]:
    return {"warmup_steps": int(settings.get("warmup_steps", 0))}


TASKS = {"adapter": "zoo.miipher.AdapterTask", "vocoder": "zoo.miipher.VocoderTask"}
LONE_VOCODER = "zoo.hifigan.Vocoder"  # of features, without an encoder
INFERENCES = {"adapter": "zoo.miipher.FeatureExtractor", "vocoder": "zoo.miipher.Restorer"}


def to_ours(source: Path, target: Path, backbone: Path | str | None) -> dict[str, Any]:
    """Turn an original into a checkpoint (`.ckpt`) or an export folder; see `zoo.miipher.convert.convert`."""
    original = read(source)
    built = None
    if original.vocoder is None or original.cleaner is not None or original.open_miipher:
        built = build_cleaner(original, backbone or folder_beside(source), pad=True)
    parts = _parts(original, built, ema=target.suffix != ".ckpt")
    if built is not None and "generator" in parts:
        check_fit(built.cleaner, parts["generator"], parts["sample_rate"])
    notes = list(built.notes) if built else []
    facts = {"system": "miipher", "source": str(source), "target": [str(target)], "step": original.step or 0}
    if target.suffix == ".ckpt":
        count = _write_checkpoint(original, built, parts, target, notes)
    else:
        nets = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
        count = sum(len(part.state_dict()) for part in nets.values())
        specs = _specs(original, built, parts)
        if built is None:
            specs["inference"] = LONE_VOCODER
            notes.append("a vocoder alone: the export turns features (.npy, .pt) into audio and restores nothing")
        write_export(target, specs, nets, source.name, original.step, AUDIO_USAGE if built else FEATURES_USAGE)
    return {**facts, "tensors": count, "notes": notes}


def folder_beside(source: Path) -> Path | None:
    """The only transformers folder `backbone*` beside (or in) an original."""
    places = {source, source.parent} if source.is_dir() else {source.parent}
    found = [folder for place in places for folder in place.glob("backbone*") if (folder / "config.json").is_file()]
    return found[0] if len(found) == 1 else None


def describe_generator(generator: Generator) -> dict[str, Any]:
    """`class_path` and `init_args` of a generator with one of the originals' front ends or none."""
    names = (
        "in_channels", "initial_channels", "upsample_rates", "upsample_kernel_sizes", "resblock",
        "resblock_kernel_sizes", "resblock_dilation_sizes", "padding_mode",
    )  # fmt: skip
    arguments = {name: listed(getattr(generator, name)) for name in names}
    front = generator.conditioner
    described = None
    if front is not None:
        sizes = {"in_channels": front.in_channels, "out_channels": front.out_channels, **front_arguments(front)}
        described = spec_of(type(front), sizes)
    return spec_of(Generator, {**arguments, "conditioner": described})


def _parts(original: Original, built: Built | None, ema: bool) -> dict[str, Any]:
    """The inference parts that an original fills."""
    parts: dict[str, Any] = {}
    if built is not None:
        parts["encoder"] = built.cleaner
    if original.vocoder is not None:
        source = original.files[-1]
        parts["generator"] = build_vocoder(original.vocoder, source, None, ema)
        parts["sample_rate"] = int(settings_of(original.vocoder, source).get("sampling_rate", SAMPLE_RATE))
    return parts


def _specs(original: Original, built: Built | None, parts: dict[str, Any]) -> dict[str, Any]:
    kind = "vocoder" if original.vocoder is not None else "adapter"
    described = dict(parts)
    if built is not None:
        described["encoder"] = built.spec
    if "generator" in parts:
        described["generator"] = describe_generator(parts["generator"])
    specs = {
        "version": zoo.__version__,
        "system": "miipher",
        "task": TASKS[kind],
        "inference": INFERENCES[kind],
        "parts": described,
    }
    if "config" in original.training:
        # a checkpoint holds plain values only; what else OmegaConf let through becomes text
        specs["original_config"] = json.loads(json.dumps(original.training["config"], default=str))
    return specs


def _write_checkpoint(
    original: Original, built: Built | None, parts: dict[str, Any], target: Path, notes: list[str]
) -> int:
    state: dict[str, Tensor] = {}
    training: dict[str, Any] = {}
    step = original.step or 0
    if built is not None:
        modules = frozen.frozen_modules({"encoder": built.cleaner})
        left_out = frozen.frozen_keys(modules)
        whole = {f"encoder.{key}": value for key, value in built.cleaner.state_dict().items()}
        state |= {key: value for key, value in whole.items() if key not in left_out}
        training["frozen"] = frozen.records(modules)
    if original.vocoder is not None:
        nets = trainable_state(original.vocoder.nets.state)
        discriminator_specs(nets, original.files[-1])
        state |= nets
        training |= {"loops": loop_state(step, 0), **_average(original.vocoder, nets, step)}
        notes.append("optimizers left out: start from it with init_from")
    elif original.cleaner is not None:
        entries, more = our_training(original.training, original.cleaner.count)
        training |= entries
        notes += more
    else:
        training["loops"] = loop_state(step, 0)
    if built is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        frozen.save_copies(modules, training["frozen"], target.parent)
    write_converted(target, _specs(original, built, parts), state, step, training=training)
    return len(state)


def _average(vocoder: Vocoder, state: dict[str, Tensor], step: int) -> dict[str, Any]:
    """The averaged generator as our EMA callback keeps it: its parameters, and the running statistics as they are."""
    if not vocoder.ema:
        return {}
    live = {key: value for key, value in state.items() if key.startswith("generator.") and value.is_floating_point()}
    return {"ema": {"shadow": live | trainable_state(vocoder.ema), "updates": step}}
