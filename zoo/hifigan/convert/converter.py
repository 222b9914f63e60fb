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
from zoo.convert import engine
from zoo.convert.engine import EMA_NOTE, ConvertedModel, Converter, ZooCheckpoint
from zoo.convert.settings import read_settings_file
from zoo.convert.tensor_names import State, group_by_component
from zoo.hifigan.convert import bigvgan, layouts
from zoo.hifigan.convert.config import CONFIG_NAME, DEFAULTS, MEL_KEYS, generator_spec, original_config, to_recipe
from zoo.hifigan.convert.layouts import FILE_NAME, NETS, Config, HifiganFile
from zoo.hifigan.convert.vocos import VocosConverter
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.vocos import Vocos
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.export import AUDIO_USAGE, FEATURES_USAGE


class HifiganConverter(Converter[HifiganFile]):
    """The original's `g_*` with the `do_*` of the same number, and its descendants' and BigVGAN's files."""

    system, task, inference = "hifigan", "zoo.hifigan.HiFiGANTask", "zoo.hifigan.Vocoder"
    formats = (
        "known are the original's and BigVGAN's g_* and do_*, BigVGAN's files of the hub, Coqui's, SpeechBrain's "
        "and the SSL vocoder's checkpoints"
    )

    def is_original(self, path: Path | str, content: Any = None) -> bool:
        """Return whether a path is a HiFi-GAN file of another project, or a folder with a `g_*` file, by its name."""
        try:
            file = layouts.checkpoint_files(Path(path))[0]
        except FileNotFoundError:
            return False
        return bool(FILE_NAME.fullmatch(file.name)) or super().is_original(file, content)

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> HifiganFile:
        """Read a file of another project, together with its pair; see `Converter.read`."""
        originals = [
            super(HifiganConverter, self).read(file, content=content if file == path else None)
            for file in layouts.checkpoint_files(path)
        ]
        first, last = originals[0], originals[-1]
        return replace(first, state={**first.state, **last.state}, training=last.training)

    def parse_content(self, content: Mapping[str, Any], path: Path) -> HifiganFile:
        """Recognise the layout of a loaded file; see `Converter.parse_content`."""
        if "prenet" in content or "generator_modules" in content:
            raise ValueError(f"{path} is a vocoder of Miipher-2 with a prenet: convert it with `zoo convert miipher`")
        original = layouts.detect_layout(layouts.strip_all_wrappers(content))
        if original is None:
            model = content.get("model")
            raise self._unknown(path, [f"model/{key}" for key in model] if isinstance(model, Mapping) else content)
        return original

    def describe_content(self, original: HifiganFile, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        files = layouts.checkpoint_files(path)
        facts: dict[str, Any] = {
            "files": [file.name for file in files],
            "fused": "generator.conv_pre.weight" in original.state,
            "parts": {name: engine.count_tensors(net) for name, net in group_by_component(original.state).items()},
            **original.training,
        }
        config = files[0].with_name(CONFIG_NAME)
        return facts | ({"config": read_settings_file(config)} if config.is_file() else {})

    def from_original(self, path: Path | str, config: Config = None) -> Generator | BigVGAN:
        """Build the generator of an original file, in training mode; without weight norm where the file has none.

        Args:
            path: a `g_*` file (or another project's checkpoint with a generator).
            config: the original's settings, or the path of its config.json; by default the one next to the file.
        """
        path = Path(path)
        return layouts.build_generator(self.read(path), layouts.read_settings(path, config), path)

    def _task_state(self, original: HifiganFile, path: Path) -> State:
        layouts.check_finite(original.state, path)
        return layouts.with_weight_norm_state(original.state)

    def to_zoo(self, original: HifiganFile, source: Path, is_checkpoint: bool) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        layouts.check_finite(original.state, source)
        settings = layouts.read_settings(source)
        generator = layouts.build_generator(original, settings, source)
        recipe, unmapped = to_recipe({"num_mels": generator.in_channels, **settings})
        arguments = recipe["model"]["init_args"]
        front_end = "sample_rate" if arguments["mel"] is None else "mel"
        if front_end != "mel" and is_checkpoint:
            raise ValueError(f"{source}: its config has no mel (n_fft, ...) to train with: convert it to a folder")
        if generator.conditioner is not None:
            raise ValueError(f"{source} has a conditioner: convert it with `zoo convert miipher`")
        arguments["generator"] = layouts.describe_generator(original, settings, source)
        file = layouts.checkpoint_files(source)[0]
        match = FILE_NAME.fullmatch(file.name)
        # the original counts from zero and saves after the step in the name
        batches = 1 + int(original.training.get("steps", int(match[2]) if match else -1))
        model = ConvertedModel(
            parts={part: arguments[part] for part in ("generator", front_end)},
            nets={},
            step=batches,
            specs={"config": arguments, "original_config": settings},
            facts={"batches": batches},
            name=file.name,
            usage=AUDIO_USAGE if front_end == "mel" else FEATURES_USAGE,
        )
        if is_checkpoint:
            model.state = layouts.with_weight_norm_state(original.state)
            arguments["discriminators"].update(layouts.discriminator_specs(model.state, source, settings))
            model.notes = [f"config: {key} has no counterpart" for key in unmapped]
            model.epoch = original.training.get("epoch", 0)
        else:
            mel = {} if arguments["mel"] is None else {"mel": build(arguments["mel"])}
            model.nets = {"generator": generator.remove_weight_norm_(), **mel}
        return model

    def from_zoo(self, source: Path, target: Path) -> dict[str, Any]:
        """Write a checkpoint of ours as `g_%08d`, `do_%08d` and config.json into a folder, or as its own project's."""
        source = find_checkpoint(source)
        zoo_checkpoint = engine.read_zoo_checkpoint(source, self.inference)
        components = zoo_checkpoint.specs["components"]
        spec = components["generator"]
        if spec["class_path"] == public_name(Vocos):
            return VocosConverter().from_zoo(source, target)
        classes = {public_name(each): each for each in (Generator, BigVGAN)}
        if spec["class_path"] not in classes or spec["init_args"].get("conditioner") or not components["mel"]:
            raise ValueError(f"{source}: the original's format cannot hold the generator {spec}; use `zoo export`")
        generator = classes[spec["class_path"]](**spec["init_args"])
        _check_generator(generator)  # before anything is written
        layouts.check_finite(zoo_checkpoint.state, source)
        nets = group_by_component(zoo_checkpoint.state)
        generator.load_state_dict(nets["generator"])
        steps = max(int(zoo_checkpoint.checkpoint.get("global_step", 0)) - 1, 0)
        notes = [EMA_NOTE] if zoo_checkpoint.averaged else []
        config = _settings(zoo_checkpoint)
        target.mkdir(parents=True, exist_ok=True)
        _write_config(target / CONFIG_NAME, config)
        written = [target / f"g_{steps:08d}"]
        is_bigvgan = isinstance(generator, BigVGAN)
        discriminators = [name for name in nets if name in NETS[1:]]
        required = ["mpd", "mrd" if is_bigvgan else "msd"]
        try:
            if sorted(discriminators) != required:
                raise ValueError(f"the checkpoint lacks {' or '.join(required)}")
            layouts.discriminator_specs(zoo_checkpoint.state, source, config)
        except ValueError as error:
            notes.append(f"no do_ file: {error}")
        else:
            epoch = int(zoo_checkpoint.checkpoint.get("epoch", 0))
            decays = steps if is_bigvgan else epoch  # BigVGAN's schedule counts steps
            content = {
                **{name: layouts.to_original_names(nets[name]) for name in discriminators},
                "optim_g": _new_optimizer([nets["generator"]], config, decays),
                "optim_d": _new_optimizer(
                    [nets[name] for name in discriminators], {**config, **_rates(zoo_checkpoint, 1)}, decays
                ),
                "steps": steps,
                "epoch": epoch,
            }
            notes.append("optimizers start fresh: the do_ file holds new ones of AdamW")
            if "original_config" not in zoo_checkpoint.specs:
                notes.append(
                    "a checkpoint does not say the mpd's periods, batch_size, segment_size and fmax_for_loss: the "
                    "original's defaults are written"
                )
            written.append(target / f"do_{steps:08d}")
            write_atomic(written[-1], lambda file: torch.save(content, file))
        self.to_original(generator, written[0])
        return {"target": written, "tensors": len(zoo_checkpoint.state), "steps": steps, "notes": notes}

    def to_original(self, module: nn.Module, path: Path | str) -> None:
        """Write a generator as an original `g_*` file, and its settings as config.json if none is there.

        ValueError when the format cannot hold it, or a config.json there describes another.
        """
        path = Path(path)
        if not isinstance(module, Generator | BigVGAN):
            raise ValueError(f"expected a generator of HiFi-GAN or BigVGAN, found {type(module).__name__}")
        _check_generator(module)
        layouts.check_finite(module.state_dict(), type(module).__name__)
        _write_config(path.with_name(CONFIG_NAME), original_config(vars(module)))
        state = layouts.to_original_names(module.state_dict())
        content = {"generator": bigvgan.to_original_names(state, module) if isinstance(module, BigVGAN) else state}
        write_atomic(path, lambda file: torch.save(content, file))


def _check_generator(generator: Generator | BigVGAN) -> None:
    """Refuse a generator that files of HiFi-GAN and BigVGAN cannot hold (ValueError)."""
    if isinstance(generator, Generator) and (generator.conditioner is not None or generator.padding_mode != "zeros"):
        raise ValueError(
            "the original's format holds no conditioner and pads with zeros only; use `zoo export`. This generator "
            f"has conditioner {type(generator.conditioner).__name__} and padding_mode {generator.padding_mode!r}"
        )
    layouts.check_convertible(generator)


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write config.json where there is none; refuse one that describes another generator or mel."""
    if not path.is_file():
        write_atomic(path, lambda file: file.write(json.dumps(config, indent=2).encode()))
        return
    content = read_settings_file(path)
    existing, expected = (json.loads(json.dumps(generator_spec(each)["init_args"])) for each in (content, config))
    differing = [key for key in expected if existing.get(key) != expected[key]]
    differing += [key for key in MEL_KEYS if key in config and content.get(key) != config[key]]
    if differing:
        raise ValueError(f"{path} describes another vocoder ({', '.join(differing)} differ); choose another folder")


def _settings(source: ZooCheckpoint) -> dict[str, Any]:
    """Return the original's settings of a checkpoint, with the rates of its optimizer and schedule."""
    if "original_config" in source.specs:
        return source.specs["original_config"]
    components = source.specs["components"]
    config = original_config(components["generator"]["init_args"], components["mel"]["init_args"])
    for schedule in (source.checkpoint.get("lr_schedulers") or [])[:1]:
        config["lr_decay"] = schedule.get("gamma", config["lr_decay"])
    return {**config, **_rates(source, 0)}


def _rates(source: ZooCheckpoint, index: int) -> dict[str, Any]:
    """Rate and betas of a checkpoint's optimizer, in the original's words; empty where it has none of the number."""
    states = source.checkpoint.get("optimizer_states") or []
    if index >= len(states):
        return {}
    group = states[index]["param_groups"][0]
    betas = dict(zip(("adam_b1", "adam_b2"), group["betas"], strict=True)) if "betas" in group else {}
    return {"learning_rate": group.get("initial_lr", group["lr"]), **betas}


def _new_optimizer(states: Iterable[Mapping[str, Tensor]], config: Mapping[str, Any], decays: int) -> dict[str, Any]:
    """Make the state dict of an AdamW without moments, as the original's training expects it in a `do_*` file.

    It trains the nets with these states; its exponential schedule has lowered the rate `decays` times.
    """
    config = {**DEFAULTS, **config}
    parameters = [
        nn.Parameter(value) for state in states for key, value in state.items() if not key.endswith(("_u", "_v"))
    ]
    optimizer = torch.optim.AdamW(parameters, config["learning_rate"], (config["adam_b1"], config["adam_b2"]))
    content = optimizer.state_dict()
    rate = config["learning_rate"] * config["lr_decay"] ** decays
    content["param_groups"][0] |= {"lr": rate, "initial_lr": config["learning_rate"]}
    return content
