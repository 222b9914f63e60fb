"""Our cleaners and vocoders from files of the Miipher-2 reproductions, and such files from ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.common.atomic_files import replace_atomically, write_atomic
from zoo.convert.engine import ConvertedModel, Converter
from zoo.convert.tensor_names import State, add_prefix
from zoo.hifigan.convert.config import CONFIG_NAME, GENERATOR_KEYS
from zoo.hifigan.convert.layouts import (
    NETS,
    Config,
    HifiganFile,
    build_generator,
    discriminator_specs,
    read_settings,
    with_weight_norm_state,
)
from zoo.hifigan.nets.conditioners import PrenetConditioner
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.convert.cleaner import Attachment, build_cleaner, spec_of
from zoo.miipher.convert.rules import ADAPTERS, UNIFIED_TYPE, MiipherFile, is_unified, read
from zoo.miipher.convert.vocoder import SAMPLE_RATE, Vocoder, front_arguments, hifigan_config, listed, vocoder_file
from zoo.miipher.nets.adapters import ParallelAdapters
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner, check_fit
from zoo.miipher.nets.families import MelFamily
from zoo.runs.components import component_state, is_export, read_components
from zoo.runs.export import AUDIO_USAGE, FEATURES_USAGE
from zoo.runs.load import build_components
from zoo.runs.pretrained_files import load_config

README = """# Miipher-2

Adapter and vocoder in the layout of the Miipher-2 reproduction, written by the zoo.
The licence of the weights is that of the data and checkpoints they come from.
"""


class MiipherConverter(Converter[MiipherFile]):
    """Adapters, vocoders and folders of both."""

    system, task, inference = "miipher", "zoo.miipher.AdapterTask", "zoo.miipher.FeatureExtractor"

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> MiipherFile:
        """Read a file or folder, see `zoo.miipher.convert.rules.read`."""
        return read(path, content)

    def describe_content(self, original: MiipherFile, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        facts: dict[str, Any] = {"files": [file.name for file in original.files]}
        if original.step is not None:
            facts["step"] = original.step
        facts |= {key: value for key, value in original.settings.items() if isinstance(value, str | int)}
        if (state := original.cleaner) is not None:
            facts["adapters"] = f"{state.count} of {state.hidden_dim}"
            if state.inside:
                facts["era"] = "before 2025-06: adapters follow the whole block (not convertible)"
            facts["backbone tensors"] = len(state.backbone)
        if (vocoder := original.vocoder) is not None:
            facts["vocoder"] = vocoder.layout
            facts["parts"] = [part for part in NETS if vocoder.component(part)]
            facts["averaged weights"] = "yes" if vocoder.ema else "no"
        return facts

    def from_original(
        self,
        path: Path | str,
        backbone: Path | str | None = None,
        layer: int | None = None,
        attachment: Attachment = "auto",
    ) -> Cleaner:
        """Build the feature cleaner of an original.

        Frozen backbone tensors are the file's; where they differ from the folder's a warning says so.

        Args:
            path: an adapter checkpoint, Accelerate folder, or unified folder.
            backbone: the backbone's transformers folder or hub id; by default the one that the configuration names.
            layer: block, from 1, whose output is the feature, where configuration and adapters disagree.
            attachment: "parallel" says that adapters run beside the feed-forward where the file cannot show it.

        Returns:
            The `Cleaner` in evaluation mode, without padding: (B, T) at 16 kHz to (B, floor((T - 400) / 320) + 1, C).

        Raises:
            FileNotFoundError: when there is no such file.
            ValueError: when the layout is not known, the era cannot be represented or is ambiguous, or tensors do not
                fit.
        """
        return build_cleaner(read(Path(path)), backbone, False, layer, attachment).cleaner.eval()

    def vocoder_from_original(self, path: Path | str, config: Config = None, ema: bool = True) -> Generator:
        """Build the generator of an original.

        Args:
            path: an SSL vocoder's `.ckpt`, an older `.pt`, an Accelerate folder or a unified folder.
            config: HiFi-GAN's settings or the path of its config.json, where neither the file nor one beside it says
                them.
            ema: take averaged weights where the file has them, as the original's samples did.

        Returns:
            The generator in evaluation mode: features (B, C, F) to audio (B, 1, samples).

        Raises:
            FileNotFoundError: when the file or its settings are missing.
            ValueError: when there is no generator, or settings and weights do not fit.
        """
        path = Path(path)
        original = read(path)
        if original.vocoder is None:
            raise ValueError(f"{path} holds no generator (it is an adapter: from_original reads it)")
        return _generator(original.vocoder, original.files[-1], config, ema).eval()

    def _task_state(self, original: MiipherFile, path: Path) -> State:
        """`encoder.adapters.*`, `generator.*`, `mpd.*`, `msd.*`; `encoder.backbone.*` for `init_from` to compare."""
        state: State = {}
        if (cleaner := original.cleaner) is not None:
            if cleaner.inside:
                raise ValueError(f"{path}: adapters that follow the whole block fit none of ours")
            state |= add_prefix({**cleaner.adapters, **cleaner.norms()}, "encoder.adapters.")
            state |= add_prefix(cleaner.frozen(), "encoder.backbone.model.")
        return state | (with_weight_norm_state(original.vocoder.state) if original.vocoder is not None else {})

    def convert(
        self,
        source: Path | str | nn.Module,
        target: Path | str,
        backbone: Path | str | None = None,
    ) -> dict[str, Any]:
        """Convert an original to ours, or ours to an original.

        Args:
            source: an original's file or folder; or our checkpoint, run folder, export, cleaner or generator.
            target: for an original, a `.ckpt` file or else an export folder; for ours, a `.pt` (adapter, or vocoder
                with a prenet), or `.ckpt` (vocoder) file, or else a unified folder.
            backbone: the transformers folder or hub id of the backbone; by default a folder `backbone*` beside an
                original, then the one that its configuration (or our checkpoint) names.

        Returns:
            What was written: source, target(s), step, and notes on what was decided or left out.

        Raises:
            FileNotFoundError: when the source or a config is missing.
            ValueError: when the layout is not known, or the target format cannot hold the source.
        """
        return super().convert(source, target, backbone=backbone)

    def to_zoo(
        self,
        original: MiipherFile,
        source: Path,
        is_checkpoint: bool,
        backbone: Path | str | None = None,
    ) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        vocoder, built, step = original.vocoder, None, original.step or 0
        if vocoder is None or original.cleaner is not None:
            built = build_cleaner(original, backbone or _folder_beside(source), pad=True)
        result = ConvertedModel({}, {}, step=step, facts={"step": step}, notes=list(built.notes) if built else [])
        if "config" in original.training:
            # a checkpoint holds plain values only; what else OmegaConf let through becomes text
            result.specs["original_config"] = json.loads(json.dumps(original.training["config"], default=str))
        if built is not None:
            result.parts["encoder"], result.nets["encoder"] = built.spec, built.cleaner
        if vocoder is not None:
            file = original.files[-1]
            rate = int(read_settings(file, settings=vocoder.settings).get("sampling_rate", SAMPLE_RATE))
            generator = _generator(vocoder, file, None, ema=not is_checkpoint)
            if built is not None:
                check_fit(built.cleaner, generator, rate)
            result.parts |= {"generator": _described(generator), "sample_rate": rate}
            result.specs |= {"task": "zoo.miipher.VocoderTask", "inference": "zoo.miipher.Restorer"}
        if is_checkpoint:
            if vocoder is not None:
                nets = with_weight_norm_state(vocoder.state)
                discriminator_specs(nets, original.files[-1])
                result.state = {**result.tensors(), **nets}
                result.averaged = _average(vocoder, nets)
        elif vocoder is not None:
            result.nets["generator"] = generator
            if built is None:
                result.specs["inference"] = "zoo.hifigan.Vocoder"  # of features, without an encoder
                result.notes.append(
                    "a vocoder alone: the export turns features (.npy, .pt) into audio and restores nothing"
                )
            result.usage = AUDIO_USAGE if built else FEATURES_USAGE
        return result

    def to_original(self, module: nn.Module, path: Path | str, backbone: Path | str | None = None) -> None:
        """Write a cleaner or a generator as an original's file.

        Args:
            module: a `Cleaner` with parallel adapters (`.pt`), or a `Generator` on
                features (`.ckpt`; with the older prenet `.pt`, beside which a config.json is written).
            backbone: the whole backbone's folder or hub id, whose later blocks an adapter's file holds too; by default
                where the cleaner's came from.

        Raises:
            ValueError: when no file of the originals can hold the module, or the name does not fit.
        """
        _write(module, Path(path), backbone)

    def _from_module(self, module: nn.Module, target: Path, backbone: Path | str | None = None) -> dict[str, Any]:
        return {"target": [str(file) for file in _write(module, target, backbone)]}

    def from_zoo(self, source: Path, target: Path, backbone: Path | str | None = None) -> dict[str, Any]:
        """Write a checkpoint, run or export of ours in the originals' layouts."""
        specs, state, fused = read_components(source, ema=False)
        if not str(specs["inference"]).startswith("zoo.miipher."):
            raise ValueError(f"{source} is no Miipher-2 checkpoint of the zoo: its inference is {specs['inference']}")
        parts = build_components(specs, source if source.is_dir() else source.parent)
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                if name in fused:
                    part.remove_weight_norm_()  # type: ignore[operator]
                part.load_state_dict(component_state(state, name))
        encoder, generator = parts.get("encoder"), parts.get("generator")
        step = int(specs.get("step") or 0)
        rate = int(parts.get("sample_rate", SAMPLE_RATE))
        nets = {"adapter": encoder if isinstance(encoder, Cleaner) else None, "vocoder": generator}
        jobs = _jobs({name: net for name, net in nets.items() if net is not None}, target, step)
        config = None
        if isinstance(encoder, Cleaner) and isinstance(encoder.adapters, ParallelAdapters) and not is_export(source):
            config = specs.get("original_config")
        others = {key: value for key, value in state.items() if key.startswith(("mpd.", "msd."))}

        def write(folder: Path) -> list[Path]:
            files = (_write(net, folder / file, backbone, step, others, rate, config) for net, file in jobs.values())
            return [written for each in files for written in each]

        if target.suffix:
            written = write(target.parent)
        else:
            if target.exists() and not is_unified(target):
                raise ValueError(f"{target} exists and is no Miipher-2 folder; choose another")
            with replace_atomically(target) as aside:
                aside.mkdir()
                names = [file.name for file in write(aside)]
                config = _unified_config(jobs, backbone, rate, step)
                (aside / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")
                (aside / "README.md").write_text(README, encoding="utf-8")
            written = [target / name for name in [*names, CONFIG_NAME, "README.md"]]
        note = "the generator was fused: its weight norm was put back, its function is the same"
        return {"target": written, "step": step, "notes": [note] if "generator" in fused else []}


def _average(vocoder: Vocoder, state: State) -> State:
    """The averaged generator as our EMA callback keeps it: its parameters, and the running statistics as they are."""
    if not vocoder.ema:
        return {}
    live = {key: value for key, value in state.items() if key.startswith("generator.") and value.is_floating_point()}
    return live | with_weight_norm_state(vocoder.ema)


def _generator(vocoder: Vocoder, source: Path, config: Config, ema: bool) -> Generator:
    """The generator of a vocoder file, with the averaged parameters where wanted and there."""
    state = vocoder.state | (vocoder.ema if ema else {})
    nets = HifiganFile(vocoder.layout, state, reflect=vocoder.reflect)
    return cast(Generator, build_generator(nets, read_settings(source, config, vocoder.settings), source))


def _described(generator: Generator) -> dict[str, Any]:
    """`class_path` and `init_args` of a generator with one of the originals' front ends or none."""
    names = [*GENERATOR_KEYS.values(), "padding_mode"]
    front = generator.conditioner
    conditioner = None
    if front is not None:
        sizes = {"in_channels": front.in_channels, "out_channels": front.out_channels, **front_arguments(front)}
        conditioner = spec_of(type(front), **sizes)
    arguments = {name: listed(getattr(generator, name)) for name in names}
    return spec_of(Generator, **arguments, conditioner=conditioner)


def _folder_beside(source: Path) -> Path | None:
    """The only transformers folder `backbone*` beside (or in) an original."""
    places = {source, source.parent} if source.is_dir() else {source.parent}
    found = [folder for place in places for folder in place.glob("backbone*") if (folder / "config.json").is_file()]
    return found[0] if len(found) == 1 else None


def _check_representable(module: nn.Module) -> None:
    """Refuse nets that no file of the originals can hold."""
    if not isinstance(module, Cleaner | Generator):
        raise ValueError(
            f"expected a Cleaner or a Generator (HiFi-GAN), found {type(module).__name__}: Miipher-2's files hold no "
            "other nets; use `zoo export`"
        )
    if isinstance(module, Cleaner) and module.backbone.layers is not None:
        summed = list(module.backbone.layers)
        raise ValueError(f"Miipher-2's files know features of one layer, not a sum of {summed}; use `zoo export`")


def _write(
    module: nn.Module,
    path: Path,
    backbone: Path | str | None,
    step: int = 0,
    others: Mapping[str, Tensor] | None = None,
    sample_rate: int = SAMPLE_RATE,
    config: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a net, see `to_original`, with a generator's discriminators or an adapter's settings; returns the files."""
    _check_representable(module)
    if isinstance(module, Cleaner):
        content, suffix = _cleaner_content(module, backbone, step, config)
    else:
        module = cast(Generator, module)
        content = vocoder_file(module, others or {}, sample_rate, step)
        suffix = ".pt" if isinstance(module.conditioner, PrenetConditioner) else ".ckpt"
    if path.suffix != suffix:
        raise ValueError(f"{path}: the originals keep a {type(module).__name__} of this kind in a {suffix} file")
    write_atomic(path, lambda file: torch.save(content, file))
    if not (isinstance(module, Generator) and suffix == ".pt"):
        return [path]
    settings = path.with_name(CONFIG_NAME)
    write_atomic(settings, lambda file: file.write(json.dumps(hifigan_config(module, sample_rate), indent=2).encode()))
    return [path, settings]


def _whole_backbone(cleaner: Cleaner, source: Path | str | None) -> tuple[State, str]:
    """All blocks of a cleaner's backbone, its own before those of the source; and the source's name."""
    own = cleaner.backbone
    place = source if source is not None else own.source
    if source is None and own.copy_path is not None and not (own.source and Path(own.source).is_dir()):
        place = own.copy_path
    if place is None:
        return own.model.state_dict(), own.family
    settings = load_config(str(place))
    legacy = settings.model_type == "wavlm" and own.family == "hubert"
    whole = Backbone(
        layer=settings.num_hidden_layers,
        source=str(place),
        family="wavlm_as_hubert" if legacy else "auto",
        final_norm=True,
    )
    return {**whole.model.state_dict(), **own.model.state_dict()}, str(place)


def _cleaner_content(
    cleaner: Cleaner, backbone: Path | str | None, step: int, config: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str]:
    style = cleaner.adapters
    if not isinstance(style, ParallelAdapters):
        raise ValueError(f"the originals have no {type(style).__name__}; use `zoo export`")
    if isinstance(cleaner.backbone.front, MelFamily):
        raise ValueError("the originals have no encoder of log-mels (mel_hubert); use `zoo export`")
    state, name = _whole_backbone(cleaner, backbone)
    default = {
        "model": {
            "hubert_model_name": name,
            "hubert_layer": cleaner.backbone.layer,
            "adapter_hidden_dim": style.hidden_dim,
            "model_type": cleaner.backbone.family,
        }
    }
    content = {
        "step": step,
        "model_state_dict": add_prefix(state, "extractor.model.") | ADAPTERS.write(style.state_dict()),
        "optimizer_state_dict": {},
        "scheduler_state_dict": {},
        "config": default if config is None else config,
    }
    return content, ".pt"


def _jobs(nets: Mapping[str, Any], target: Path, step: int) -> dict[str, tuple[Any, str]]:
    """Which net goes into which file of the target's folder."""
    for net in nets.values():
        _check_representable(net)
    if not nets:
        raise ValueError("neither adapters nor a generator: nothing that an original's file could hold")
    if not target.suffix:
        names = {"adapter": f"checkpoint_{step // 1000}k.pt", "vocoder": f"epoch=0-step={step}.ckpt"}
        if isinstance(getattr(nets.get("vocoder"), "conditioner", None), PrenetConditioner):
            raise ValueError(f"{target}: a vocoder with the older prenet does not go into a folder; name a .pt file")
        return {name: (net, names[name]) for name, net in nets.items()}
    wanted = {".ckpt": ("vocoder",), ".pt": ("adapter", "vocoder")}.get(target.suffix, ())
    found = [name for name in wanted if name in nets]
    if not found:
        raise ValueError(
            f"{target}: adapters go into a .pt file, a vocoder into a .ckpt (with a prenet: "
            f".pt) file, both into a folder; there is {' and '.join(nets)} to write"
        )
    return {found[0]: (nets[found[0]], target.name)}


def _unified_config(
    jobs: Mapping[str, tuple[Any, str]], backbone: Path | str | None, sample_rate: int, step: int
) -> dict[str, Any]:
    components: dict[str, Any] = {}
    if "adapter" in jobs:
        cleaner, file = jobs["adapter"]
        components["adapter"] = {
            "architecture": "parallel_adapter",
            "base_model": str(base) if (base := backbone or cleaner.backbone.source) else None,
            "hubert_layer": cleaner.backbone.layer,
            "adapter_hidden_dim": cleaner.adapters.hidden_dim,
            "checkpoint_file": file,
        }
    if "vocoder" in jobs:
        file = jobs["vocoder"][1]
        components["vocoder"] = {"base_architecture": "hifigan", "checkpoint_file": file, "training_step": step}
    return {"model_type": UNIFIED_TYPE, "components": components, "output_sampling_rate": sample_rate}
