"""Our cleaners and vocoders from files of the Miipher-2 reproductions, and such files from ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.common.atomic_files import replace_atomically, write_atomic
from zoo.convert.engine import EMA_NOTE, ConvertedModel, Converter
from zoo.convert.tensor_names import State, add_prefix
from zoo.hifigan.convert import layouts
from zoo.hifigan.convert.config import CONFIG_NAME
from zoo.hifigan.convert.layouts import NETS, Config, HifiganFile
from zoo.hifigan.nets.conditioners import PrenetConditioner
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.convert import vocoder_files
from zoo.miipher.convert.cleaner import Attachment, build_cleaner
from zoo.miipher.convert.layouts import ADAPTERS, UNIFIED_TYPE, MiipherFile, is_unified, read_original
from zoo.miipher.convert.vocoder_files import SAMPLE_RATE, VocoderFile
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner
from zoo.miipher.nets.families import WaveformFamily
from zoo.miipher.options import check_fit
from zoo.runs.components import is_export, read_components
from zoo.runs.export import AUDIO_USAGE, FEATURES_USAGE
from zoo.runs.load import build_components
from zoo.runs.pretrained_files import load_config

Nets = dict[str, Cleaner | Generator]  # `adapter` and `vocoder`, as far as there are


class MiipherConverter(Converter[MiipherFile]):
    """Adapters, vocoders and folders of both."""

    system, task, inference = "miipher", "zoo.miipher.AdapterTask", "zoo.miipher.FeatureExtractor"

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> MiipherFile:
        """Read a file or folder, see `read_original`."""
        return read_original(path, content)

    def describe_content(self, original: MiipherFile, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        facts: dict[str, Any] = {"files": [file.name for file in original.files]}
        if original.step is not None:
            facts["step"] = original.step
        facts |= {key: value for key, value in original.settings.items() if isinstance(value, str | int)}
        if (state := original.cleaner) is not None:
            facts["adapters"] = f"{state.count} of {state.hidden_dim}"
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
        """Build the feature cleaner of an original (checkpoint or folder), in evaluation mode and without padding.

        Frozen backbone tensors are the file's; where they differ from the folder's a warning names them.

        Args:
            path: an adapter checkpoint, Accelerate folder, or unified folder.
            backbone: the backbone's transformers folder or hub id; by default that of the configuration.
            layer: block, from 1, whose output is the feature, where configuration and adapters disagree.
            attachment: "parallel" for adapters beside the feed-forward where the file cannot show it.
        """
        return build_cleaner(read_original(Path(path)), backbone, False, layer, attachment).cleaner.eval()

    def vocoder_from_original(self, path: Path | str, config: Config = None, ema: bool = True) -> Generator:
        """Build the generator of an original, in evaluation mode: features (B, C, F) to audio (B, 1, samples).

        `config` are HiFi-GAN's settings or their file, where neither the file nor its folder has them; `ema` takes
        averages where there are any, as the original's samples did.
        """
        path = Path(path)
        original = read_original(path)
        if original.vocoder is None:
            raise ValueError(f"{path} holds no generator (it is an adapter: from_original reads it)")
        return _build_vocoder(original.vocoder, original.files[-1], config, ema).eval()

    def _task_state(self, original: MiipherFile, path: Path) -> State:
        """`encoder.adapters.*`, `generator.*`, `mpd.*`, `msd.*`; `encoder.backbone.*` for `init_from` to compare."""
        state: State = {}
        if (cleaner := original.cleaner) is not None:
            state |= add_prefix({**cleaner.adapters, **cleaner.norms()}, "encoder.adapters.")
            state |= add_prefix(cleaner.frozen(), "encoder.backbone.model.")
        return state | (layouts.with_weight_norm_state(original.vocoder.state) if original.vocoder is not None else {})

    def convert(self, source: Path | str, target: Path | str, backbone: Path | str | None = None) -> dict[str, Any]:
        """Convert an original to ours, or ours to an original; see `Converter.convert`.

        An original becomes a `.ckpt` file or else an export folder; ours a `.pt` (adapter, or vocoder with a prenet) or
        `.ckpt` (vocoder) file, or else a unified folder. `backbone` is its transformers folder or hub id; by default a
        folder `backbone*` next to an original, then that of its configuration (or of our checkpoint).
        """
        return super().convert(source, target, backbone=backbone)

    def to_zoo(
        self, original: MiipherFile, source: Path, is_checkpoint: bool, backbone: Path | str | None = None
    ) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        step = original.step or 0
        model = ConvertedModel({}, {}, step=step, facts={"step": step})
        if "config" in original.training:
            # a checkpoint holds plain values only; OmegaConf's others become text
            model.specs["original_config"] = json.loads(json.dumps(original.training["config"], default=str))
        if original.vocoder is None or original.cleaner is not None:
            built = build_cleaner(original, backbone or _find_backbone(source), pad=True)
            model.notes = list(built.notes)
            model.parts["encoder"], model.nets["encoder"] = built.spec, built.cleaner
        if original.vocoder is not None:
            self._add_vocoder(model, original.vocoder, original.files[-1], is_checkpoint)
        return model

    def _add_vocoder(self, model: ConvertedModel, vocoder: VocoderFile, file: Path, is_checkpoint: bool) -> None:
        encoder = cast(Cleaner | None, model.nets.get("encoder"))
        settings = layouts.read_settings(file, settings=vocoder.settings)
        rate = int(settings.get("sampling_rate", SAMPLE_RATE))
        generator = _build_vocoder(vocoder, file, None, ema=not is_checkpoint)
        if encoder is not None:
            check_fit(encoder, generator, rate)
        model.parts |= {"generator": layouts.describe_generator(vocoder, settings, file), "sample_rate": rate}
        model.specs |= {"task": "zoo.miipher.VocoderTask", "inference": "zoo.miipher.Restorer"}
        if is_checkpoint:
            if encoder is None:
                model.notes.append(
                    "a vocoder alone: start a training from it with --init_from; for use convert it to a folder"
                )
            nets = layouts.with_weight_norm_state(vocoder.state)
            layouts.discriminator_specs(nets, file)
            model.state = {**model.tensors(), **nets}
            if vocoder.ema:  # our EMA callback keeps running statistics, too
                floats = {key: value for key, value in nets.items() if value.is_floating_point()}
                averaged = {key: value for key, value in floats.items() if key.startswith("generator.")}
                model.averaged = averaged | layouts.with_weight_norm_state(vocoder.ema)
            return
        model.nets["generator"] = generator
        model.usage = AUDIO_USAGE if encoder is not None else FEATURES_USAGE
        if encoder is None:
            model.specs["inference"] = "zoo.hifigan.Vocoder"
            model.notes.append("a vocoder alone: the export turns features (.npy, .pt) into audio and restores nothing")

    def to_original(self, module: nn.Module, path: Path | str, backbone: Path | str | None = None) -> None:
        """Write a `Cleaner` (`.pt`), or a `Generator` on features (`.ckpt`, with a prenet `.pt`).

        `backbone` is the full backbone's folder or hub id, whose later blocks an adapter's file holds too; by default
        that of the cleaner. ValueError when no file of the originals can hold the module, or the name does not fit.
        """
        _write(module, Path(path), backbone)

    def from_zoo(self, source: Path, target: Path, backbone: Path | str | None = None) -> dict[str, Any]:
        """Write a checkpoint, run or export of ours in the originals' layouts, with its averaged weights if any."""
        saved = read_components(source, ema=True)
        specs = saved.description
        if not str(specs["inference"]).startswith("zoo.miipher."):
            raise ValueError(f"{source} is no Miipher-2 checkpoint of the zoo: its inference is {specs['inference']}")
        components = build_components(specs, source if source.is_dir() else source.parent)
        saved.load_weights(components)
        encoder, generator = components.get("encoder"), components.get("generator")
        step, rate = int(specs.get("step") or 0), int(components.get("sample_rate", SAMPLE_RATE))
        nets: Nets = {"adapter": encoder} if isinstance(encoder, Cleaner) else {}
        nets |= {"vocoder": generator} if generator is not None else {}
        files = _target_files(nets, target, step)
        discriminators = {key: value for key, value in saved.state.items() if key.startswith(("mpd.", "msd."))}
        notes = ["the generator had no weight norm: it was added again, its function is the same"]
        notes = (notes if "generator" in saved.fused else []) + ([EMA_NOTE] if specs.get("averaged") else [])
        try:
            layouts.discriminator_specs(discriminators, source)
        except ValueError as error:
            notes.append(f"no discriminators: {error}")
            discriminators = {}
        config = None if is_export(source) else specs.get("original_config")

        def write(folder: Path) -> list[Path]:
            written = []
            for name, file in files.items():
                written += _write(nets[name], folder / file, backbone, step, discriminators, rate, config)
            return written

        if target.suffix:
            written = write(target.parent)
        else:
            if target.exists() and not is_unified(target):
                raise ValueError(f"{target} exists and is no Miipher-2 folder; choose another")
            with replace_atomically(target) as folder:
                folder.mkdir()
                names = [file.name for file in write(folder)]
                unified = _unified_config(nets, files, backbone, rate, step)
                (folder / CONFIG_NAME).write_text(json.dumps(unified, indent=2), encoding="utf-8")
            written = [target / name for name in [*names, CONFIG_NAME]]
        return {"target": written, "step": step, "notes": notes}


def _build_vocoder(vocoder: VocoderFile, source: Path, config: Config, ema: bool) -> Generator:
    """Build the generator of a vocoder file, with the averaged parameters where there are any and `ema` is set."""
    state = vocoder.state | (vocoder.ema if ema else {})
    nets = HifiganFile(vocoder.layout, state, reflect=vocoder.reflect)
    settings = layouts.read_settings(source, config, vocoder.settings)
    return cast(Generator, layouts.build_generator(nets, settings, source))


def _find_backbone(source: Path) -> Path | None:
    """Find the only transformers folder `backbone*` in or next to an original."""
    parents = {source, source.parent} if source.is_dir() else {source.parent}
    folders = [path for parent in parents for path in parent.glob("backbone*") if (path / "config.json").is_file()]
    return folders[0] if len(folders) == 1 else None


def _write(
    module: nn.Module,
    path: Path,
    backbone: Path | str | None,
    step: int = 0,
    discriminators: Mapping[str, Tensor] | None = None,
    sample_rate: int = SAMPLE_RATE,
    config: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a net, see `to_original`, with a generator's discriminators or an adapter's settings; return the files."""
    if isinstance(module, Cleaner):
        content, suffix = _cleaner_content(module, backbone, step, config), ".pt"
    elif isinstance(module, Generator):
        content = vocoder_files.write_vocoder(module, discriminators or {}, sample_rate, step)
        suffix = ".pt" if isinstance(module.conditioner, PrenetConditioner) else ".ckpt"
    else:
        raise _unrepresentable(module)
    if path.suffix != suffix:
        raise ValueError(f"{path}: the originals keep a {type(module).__name__} of this kind in a {suffix} file")
    write_atomic(path, lambda file: torch.save(content, file))
    if not (isinstance(module, Generator) and suffix == ".pt"):
        return [path]
    settings = path.with_name(CONFIG_NAME)
    text = json.dumps(vocoder_files.hifigan_config(module, sample_rate), indent=2)
    write_atomic(settings, lambda file: file.write(text.encode()))
    return [path, settings]


def _unrepresentable(module: nn.Module) -> ValueError:
    return ValueError(
        f"expected a Cleaner or a Generator (HiFi-GAN), found {type(module).__name__}: Miipher-2's files hold no "
        "other nets; use `zoo export`"
    )


def _full_backbone_state(cleaner: Cleaner, source: Path | str | None) -> tuple[State, str]:
    """Return all blocks of a cleaner's backbone, its own before those of the source; and the source's name."""
    backbone = cleaner.backbone
    path = source if source is not None else backbone.source
    if source is None and backbone.copy_path is not None and not (backbone.source and Path(backbone.source).is_dir()):
        path = backbone.copy_path
    if path is None:
        return backbone.model.state_dict(), backbone.family
    settings = load_config(str(path))
    legacy = settings.model_type == "wavlm" and backbone.family == "hubert"
    full = Backbone(
        layer=settings.num_hidden_layers,
        source=str(path),
        family="wavlm_as_hubert" if legacy else "auto",
        final_norm=True,
    )
    return {**full.model.state_dict(), **backbone.model.state_dict()}, str(path)


def _cleaner_content(
    cleaner: Cleaner, backbone: Path | str | None, step: int, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    front = cleaner.backbone.front
    if not isinstance(front, WaveformFamily):
        raise ValueError(f"the originals have no encoder like {cleaner.backbone.family}; use `zoo export`")
    if front.normalize or cleaner.backbone.final_norm:
        raise ValueError("the originals have neither normalize nor final_norm of a backbone; use `zoo export`")
    state, name = _full_backbone_state(cleaner, backbone)
    model = {
        "hubert_model_name": name,
        "hubert_layer": cleaner.backbone.layer,
        "adapter_hidden_dim": cleaner.adapters.hidden_dim,
        "model_type": cleaner.backbone.family,
    }
    return {
        "step": step,
        "model_state_dict": add_prefix(state, "extractor.model.") | ADAPTERS.write(cleaner.adapters.state_dict()),
        "optimizer_state_dict": {},
        "scheduler_state_dict": {},
        "config": {"model": model} if config is None else config,
    }


def _target_files(nets: Nets, target: Path, step: int) -> dict[str, str]:
    """Name the file of each net that goes into the target's folder."""
    for net in nets.values():
        if not isinstance(net, Cleaner | Generator):
            raise _unrepresentable(net)
    if not nets:
        raise ValueError("neither adapters nor a generator: nothing that an original's file could hold")
    if not target.suffix:
        names = {"adapter": f"checkpoint_{step // 1000}k.pt", "vocoder": f"epoch=0-step={step}.ckpt"}
        if isinstance(getattr(nets.get("vocoder"), "conditioner", None), PrenetConditioner):
            raise ValueError(f"{target}: a vocoder with the older prenet does not go into a folder; name a .pt file")
        return {name: names[name] for name in nets}
    kinds = {".ckpt": ("vocoder",), ".pt": ("adapter", "vocoder")}.get(target.suffix, ())
    matches = [name for name in kinds if name in nets]
    if not matches:
        raise ValueError(
            f"{target}: adapters go into a .pt file, a vocoder into a .ckpt (with a prenet: "
            f".pt) file, both into a folder; there is {' and '.join(nets)} to write"
        )
    return {matches[0]: target.name}


def _unified_config(
    nets: Nets, files: Mapping[str, str], backbone: Path | str | None, sample_rate: int, step: int
) -> dict[str, Any]:
    components: dict[str, Any] = {}
    if "adapter" in files:
        cleaner = cast(Cleaner, nets["adapter"])
        base = backbone or cleaner.backbone.source
        components["adapter"] = {
            "architecture": "parallel_adapter",
            "base_model": None if base is None else str(base),
            "hubert_layer": cleaner.backbone.layer,
            "adapter_hidden_dim": cleaner.adapters.hidden_dim,
            "checkpoint_file": files["adapter"],
        }
    if "vocoder" in files:
        vocoder = {"base_architecture": "hifigan", "checkpoint_file": files["vocoder"], "training_step": step}
        components["vocoder"] = vocoder
    return {"model_type": UNIFIED_TYPE, "components": components, "output_sampling_rate": sample_rate}
