"""Our HiFi-GAN checkpoints and exports from original files, and original files from our checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.common.atomic_files import write_atomic
from zoo.common.build import build
from zoo.common.registry import public_name
from zoo.convert.engine import ConvertedModel, Converter, count_tensors, read_zoo_checkpoint
from zoo.convert.settings import read_settings_file
from zoo.convert.tensor_names import State, group_by_component
from zoo.hifigan.convert import bigvgan
from zoo.hifigan.convert.recipe import CONFIG_NAME, DEFAULTS, generator_spec, original_config, recipe_of
from zoo.hifigan.convert.rules import (
    NAME,
    PARTS,
    UNWRAPPED,
    Config,
    HifiganFile,
    build_generator,
    check_convertible,
    check_finite,
    discriminator_specs,
    layout_of,
    pair,
    settings_of,
    to_legacy_keys,
    trainable_state,
    unwrap_content,
)
from zoo.hifigan.convert.vocos import VocosConverter
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.vocos import Vocos
from zoo.runs.checkpoints import find_checkpoint

DISCRIMINATORS = ("mpd", "msd", "mrd")  # order of the task's `discriminators`
BUFFER_LEAVES = ("_u", "_v", "running_mean", "running_var", "num_batches_tracked")


class HifiganConverter(Converter[HifiganFile]):
    """The original's `g_*` with the `do_*` of the same number beside it, and its descendants' and BigVGAN's files."""

    system, task, inference = "hifigan", "zoo.hifigan.HiFiGANTask", "zoo.hifigan.Vocoder"
    formats = (
        "known are the original's and BigVGAN's g_* and do_*, BigVGAN's files of the hub, Coqui's, SpeechBrain's "
        "and the SSL vocoder's checkpoints"
    )

    def is_original(self, path: Path | str, content: Any = None) -> bool:
        """Whether a path is a HiFi-GAN file of another project, or a folder with a `g_*` file, by its name."""
        try:
            file = pair(Path(path))[0]
        except FileNotFoundError:
            return False
        return bool(NAME.fullmatch(file.name)) or super().is_original(file, content)

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> HifiganFile:
        """Read a file of another project, together with its pair; see `Converter.read`."""
        first, *rest = [
            super(HifiganConverter, self).read(file, content=content if file == path else None) for file in pair(path)
        ]
        for other in rest:
            state = {**first.state, **other.state}
            first = replace(first, state=state, training=other.training, wrapped=first.wrapped or other.wrapped)
        return first

    def parse_content(self, content: Mapping[str, Any], path: Path) -> HifiganFile:
        """Recognise the layout of a loaded file; see `Converter.parse_content`."""
        if "prenet" in content or "generator_modules" in content:
            raise ValueError(f"{path} is a vocoder of Miipher-2 with a prenet: convert it with `zoo convert miipher`")
        plain, wrapped = unwrap_content(content)
        found = layout_of(plain)
        if found is None:
            model = content.get("model")
            raise self._unknown(path, [f"model/{key}" for key in model] if isinstance(model, Mapping) else content)
        return replace(found, wrapped=wrapped)

    def describe_content(self, original: HifiganFile, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        files = pair(path)
        facts: dict[str, Any] = {
            "files": [file.name for file in files],
            "fused": original.is_fused,
            "parts": {name: count_tensors(original.component(name)) for name in PARTS if original.component(name)},
            **{key: original.training[key] for key in ("steps", "epoch") if key in original.training},
        }
        config = files[0].with_name(CONFIG_NAME)
        return facts | ({"config": read_settings_file(config)} if config.is_file() else {})

    def from_original(self, path: Path | str, config: Config = None) -> Generator | BigVGAN:
        """Build the generator of an original file.

        Args:
            path: a `g_*` file (or another project's checkpoint with a generator).
            config: the original's settings, or the path of its config.json; by default the one beside the file.

        Returns:
            The generator in training mode; fused when the file's weight norm was removed.

        Raises:
            FileNotFoundError: when the file or its config is missing.
            ValueError: when settings and weights do not fit or the layout is not known.
        """
        path = Path(path)
        return build_generator(self.read(path), settings_of(path, config), path)

    def _task_state(self, original: HifiganFile, path: Path) -> State:
        check_finite(original.state, path)
        return trainable_state(original.state)

    def to_zoo(self, original: HifiganFile, source: Path, is_checkpoint: bool) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        check_finite(original.state, source)
        settings = settings_of(source)
        generator = build_generator(original, settings, source)
        recipe, unmapped = recipe_of({"num_mels": generator.in_channels, **settings})
        arguments = recipe["model"]["init_args"]
        if isinstance(generator, Generator):
            if generator.conditioner is not None:
                raise ValueError(f"{source} has a conditioner: convert it with `zoo convert miipher`")
            arguments["generator"]["init_args"]["padding_mode"] = generator.padding_mode
        file = pair(source)[0]
        match = NAME.fullmatch(file.name)
        # the original counts from zero and saves after the step that it names
        batches = 1 + int(original.training.get("steps", int(match[2]) if match else -1))
        converted = ConvertedModel(
            parts={part: arguments[part] for part in ("generator", "mel")},
            nets={},
            step=batches,
            specs={"config": arguments, "original_config": settings},
            facts={"batches": batches},
            notes=[UNWRAPPED] if original.wrapped else [],
            name=file.name,
        )
        if not is_checkpoint:
            converted.nets = {"generator": generator.remove_weight_norm_(), "mel": build(arguments["mel"])}
            return converted
        state = converted.state = trainable_state(original.state)
        arguments["discriminators"].update(discriminator_specs(state, source, settings))
        converted.notes += [f"config: {key} has no counterpart" for key in unmapped]
        converted.epoch = original.training.get("epoch", 0)
        return converted

    def from_zoo(self, source: Path, target: Path) -> dict[str, Any]:
        """Write a checkpoint of ours as `g_%08d`, `do_%08d` and config.json into a folder, or as its own project's."""
        source = find_checkpoint(source)
        checkpoint, specs, *_ = read_zoo_checkpoint(source, self.inference)
        state = checkpoint["state_dict"]
        spec = specs["components"]["generator"]
        if spec["class_path"] == public_name(Vocos):
            return VocosConverter().from_zoo(source, target)
        classes = {public_name(each): each for each in (Generator, BigVGAN)}
        if spec["class_path"] not in classes or spec["init_args"].get("conditioner"):
            raise ValueError(f"{source}: the original's format cannot hold the generator {spec}; use `zoo export`")
        generator = classes[spec["class_path"]](**spec["init_args"])
        check_convertible(generator)  # before anything is written
        check_finite(state, source)
        parts = group_by_component(state)
        generator.load_state_dict(parts["generator"])
        steps = max(int(checkpoint.get("global_step", 0)) - 1, 0)
        target.mkdir(parents=True, exist_ok=True)
        written = [target / f"g_{steps:08d}"]
        mel = specs["components"]["mel"]["init_args"]
        config = specs.get("original_config") or original_config(spec["init_args"], mel, _known_settings(checkpoint))
        _write_config(target / CONFIG_NAME, config)
        notes = []
        # a run's task may have its discriminators in another order than the recipe's
        order = [part for part in parts if part in DISCRIMINATORS]
        required = ["mpd", "mrd" if isinstance(generator, BigVGAN) else "msd"]
        if sorted(order) == required:
            epoch = int(checkpoint.get("epoch", 0))
            decays = steps if isinstance(generator, BigVGAN) else epoch  # BigVGAN's schedule counts steps
            content = {
                **{name: to_legacy_keys(parts[name]) for name in order},
                "optim_g": _new_optimizer([parts["generator"]], config, decays),
                "optim_d": _new_optimizer([parts[name] for name in order], config, decays),
                "steps": steps,
                "epoch": epoch,
            }
            notes.append("optimizers start fresh: the do_ file holds new ones of AdamW")
            written.append(target / f"do_{steps:08d}")
            write_atomic(written[-1], lambda file: torch.save(content, file))
        else:
            notes.append(f"no do_ file: the checkpoint lacks {' or '.join(required)}")
        self.to_original(generator, written[0])
        return {"target": written, "tensors": len(state), "steps": steps, "notes": notes}

    def to_original(self, module: nn.Module, path: Path | str) -> None:
        """Write a generator as an original `g_*` file, and its settings as config.json if none is beside it.

        Args:
            module: a `Generator` without conditioner; a fused one is written with plain weights.
            path: the file, by convention `g_%08d`.

        Raises:
            ValueError: when the original's format cannot hold it, or a config.json beside it says something else.
        """
        path = Path(path)
        if not isinstance(module, Generator | BigVGAN):
            raise ValueError(f"expected a generator of HiFi-GAN or BigVGAN, found {type(module).__name__}")
        if isinstance(module, Generator) and (module.conditioner is not None or module.padding_mode != "zeros"):
            raise ValueError(
                "the original's format holds no conditioner and pads with zeros only; use `zoo export`. This generator "
                f"has conditioner {type(module.conditioner).__name__} and padding_mode {module.padding_mode!r}"
            )
        check_convertible(module)
        check_finite(module.state_dict(), type(module).__name__)
        _write_config(path.with_name(CONFIG_NAME), original_config(vars(module), None, {}))
        state = to_legacy_keys(module.state_dict())
        content = {"generator": bigvgan.their_names(state, module) if isinstance(module, BigVGAN) else state}
        write_atomic(path, lambda file: torch.save(content, file))

    def _from_module(self, module: nn.Module, target: Path) -> dict[str, Any]:
        return super()._from_module(module, target if NAME.fullmatch(target.name) else target / "g_00000000")


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write config.json where there is none; refuse one that describes another generator."""
    if not path.is_file():
        write_atomic(path, lambda file: file.write(json.dumps(config, indent=2).encode()))
        return
    found, wanted = (
        json.loads(json.dumps(generator_spec(each)["init_args"])) for each in (read_settings_file(path), config)
    )
    differing = [key for key in wanted if found.get(key) != wanted[key]]
    if differing:
        raise ValueError(f"{path} describes another generator ({', '.join(differing)} differ); choose another folder")


def _new_optimizer(states: Iterable[Mapping[str, Tensor]], config: Mapping[str, Any], decays: int) -> dict[str, Any]:
    """State dict of an AdamW without moments, for which the original's training opens a `do_*` file.

    Args:
        states: tensors of the nets that it trains.
        config: the original's settings.
        decays: how often its exponential schedule has lowered the rate.
    """
    config = {**DEFAULTS, **config}
    parameters = [
        nn.Parameter(value) for state in states for key, value in state.items() if not key.endswith(BUFFER_LEAVES)
    ]
    optimizer = torch.optim.AdamW(parameters, config["learning_rate"], (config["adam_b1"], config["adam_b2"]))
    rate = {"lr": config["learning_rate"] * config["lr_decay"] ** decays, "initial_lr": config["learning_rate"]}
    content = optimizer.state_dict()
    content["param_groups"][0] |= rate
    return content


def _known_settings(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a checkpoint's optimizer and schedule, in the original's words."""
    known: dict[str, Any] = {}
    gammas = [schedule["gamma"] for schedule in checkpoint.get("lr_schedulers") or [] if "gamma" in schedule]
    if gammas:
        known["lr_decay"] = gammas[0]
    for optimizer in (checkpoint.get("optimizer_states") or [])[:1]:
        group = optimizer["param_groups"][0]
        known["learning_rate"] = group.get("initial_lr", group["lr"])
        if "betas" in group:
            known["adam_b1"], known["adam_b2"] = group["betas"]
    return known
