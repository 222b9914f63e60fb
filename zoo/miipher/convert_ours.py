"""Our checkpoints and exports from files of the Miipher-2 reproductions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import zoo
from zoo.hifigan.convert_files import discriminator_specs, trainable_state
from zoo.hifigan.generator import Generator
from zoo.miipher.chunks import check_fit
from zoo.miipher.convert_cleaner import Built, build_cleaner, spec_of
from zoo.miipher.convert_files import Original, read
from zoo.miipher.convert_training import our_training
from zoo.miipher.convert_vocoder import SAMPLE_RATE, Vocoder, build_vocoder, front_arguments, listed, settings_of
from zoo.training import frozen
from zoo.training.converted import write_converted
from zoo.training.export import AUDIO_USAGE, FEATURES_USAGE, write_export
from zoo.training.loop_state import loop_state

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
