"""Vocos' files: config.yaml with pytorch_model.bin as on the hub, and the checkpoints of its training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from zoo.audio.analysis.mel import LogMel
from zoo.common.atomic_files import write_atomic
from zoo.common.build import build, build_with_weights
from zoo.convert.engine import ConvertedModel, Converter, OriginalFile, ZooCheckpoint
from zoo.convert.network_description import component
from zoo.convert.settings import read_settings_file
from zoo.convert.tensor_names import NameTable, State, is_state_dict
from zoo.hifigan.convert.layouts import check_finite, strip_all_wrappers, to_original_names, to_zoo_names
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.hifigan.nets.vocos import Vocos
from zoo.runs.load import build_component

CONFIG, WEIGHTS = "config.yaml", "pytorch_model.bin"
CODEBOOKS = "feature_extractor.codebook_weights"
SOURCES = {"encodec_24khz": "facebook/encodec_24khz"}
"""The original's codecs that the zoo takes, and their hub ids in transformers' layout."""
_BANDWIDTHS = [1.5, 3.0, 6.0, 12.0]
# the sections of a configuration, and the last words of the class paths that each may have
CLASSES = {
    "feature_extractor": ("MelSpectrogramFeatures", "EncodecFeatures"),
    "backbone": ("VocosBackbone",),
    "head": ("ISTFTHead",),
}
# the original's key of the backbone, our argument
BACKBONE = {
    "input_channels": "in_channels",
    "dim": "dim",
    "intermediate_dim": "intermediate_dim",
    "num_layers": "layers",
    "layer_scale_init_value": "scale",
    "adanorm_num_embeddings": "conditions",
}
# the original's mel: keys as ours with their defaults, and what it has no keys for
MEL: dict[str, Any] = {"sample_rate": 24000, "n_fft": 1024, "hop_length": 256, "n_mels": 100, "padding": "center"}
MEL_CONSTANTS: dict[str, Any] = {"f_min": 0.0, "f_max": None, "mel_scale": "htk", "magnitude_floor": 0.0, "floor": 1e-7}
TENSORS = NameTable(
    ("multiperioddisc.{rest}", "mpd.{rest}"),
    ("multiresddisc.{rest}", "mrd.{rest}"),
    ("backbone.{rest}", "generator.backbone.{rest}"),
    ("head.out.{rest}", "generator.head.out.{rest}"),
)


class VocosConverter(Converter[OriginalFile]):
    """Vocoders of Vocos, of mels and of EnCodec's codes; these need the codec, which transformers has from the hub.

    A file's codec weights are not read: its codebooks must be those of the hub's codec.
    """

    system, task, inference = "hifigan", "zoo.hifigan.HiFiGANTask", "zoo.hifigan.Vocoder"
    part = "generator"
    formats = f"known are Vocos' {CONFIG} with {WEIGHTS}, and checkpoints of its training beside their {CONFIG}"

    def is_original(self, path: Path | str, content: Any = None) -> bool:
        """Return whether a path is a file or folder of Vocos; weights are read only next to Vocos' settings."""
        return has_settings(Path(path)) and super().is_original(path, content)

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> OriginalFile:
        """Read weights and the settings next to them; see `Converter.read`."""
        return super().read(path / WEIGHTS if path.is_dir() else path, content=content)

    def parse_content(self, content: Mapping[str, Any], path: Path) -> OriginalFile:
        """Recognise the layout of a loaded file; see `Converter.parse_content`."""
        content = strip_all_wrappers(content)
        is_training = is_state_dict(content.get("state_dict"))
        tensors = content["state_dict"] if is_training else content
        if not is_state_dict(tensors) or not any(key.startswith("backbone.embed.") for key in tensors):
            raise self._unknown(path, content)
        settings = _settings(path)
        missing = [name for name in CLASSES if not isinstance(settings.get(name), dict)]
        if missing:
            raise ValueError(f"{path.with_name(CONFIG)} lacks {', '.join(missing)}; {self.formats}")
        # windows and mel filters follow from the settings
        state = to_zoo_names({key: value for key, value in tensors.items() if ".spec_fn." not in key})
        training: dict[str, Any] = {key: content[key] for key in ("global_step", "epoch") if key in content}
        training |= {CODEBOOKS: tensors[CODEBOOKS]} if CODEBOOKS in tensors else {}
        layout = "vocos training" if is_training else "vocos"
        return OriginalFile(layout, TENSORS.read(state)[0], settings, training)

    def _task_state(self, original: OriginalFile, path: Path) -> State:
        check_finite(original.state, path)
        return original.state

    def to_zoo(self, original: OriginalFile, source: Path, is_checkpoint: bool) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        check_finite(original.state, source)
        arguments = task_arguments(original.settings, source)
        generator = build_with_weights(arguments["generator"], original.component("generator"), str(source))
        mel = build(arguments["mel"])
        codebooks = original.training.get(CODEBOOKS)
        if isinstance(mel, EncodecFeatures) and codebooks is not None and not torch.equal(codebooks, mel.codebooks):
            raise ValueError(f"{source}: its codebooks are not those of {mel.source}: another codec")
        model = ConvertedModel(
            parts={name: arguments[name] for name in ("generator", "mel")},
            nets={"generator": generator.remove_weight_norm_(), "mel": mel},
            step=original.training.get("global_step", 0) // 2,  # Lightning counted the steps of both optimizers
            epoch=original.training.get("epoch", 0),
            specs={"config": arguments},
            name=source.name,
        )
        if is_checkpoint:
            model.state = original.state
            for name, spec in arguments["discriminators"].items():
                if tensors := original.component(name):
                    build_with_weights(spec, tensors, str(source))
        return model

    def extra_arguments(
        self, checkpoint: ZooCheckpoint, net: nn.Module, source: Path, notes: list[str]
    ) -> dict[str, Any]:
        """Return options of `to_original`; see `Converter.extra_arguments`."""
        return {
            "mel": build_component(checkpoint.specs, "mel"),
            "arguments": checkpoint.specs["components"]["generator"]["init_args"],
        }

    def to_original(
        self,
        module: nn.Module,
        path: Path | str,
        mel: LogMel | EncodecFeatures | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a Vocos, its front end, and the arguments that it was made with, as a folder of the hub.

        ValueError when the original's format cannot hold it.
        """
        folder = Path(path)
        if not isinstance(module, Vocos) or mel is None or arguments is None:
            raise ValueError(f"expected a run or checkpoint of a Vocos, found {type(module).__name__}")
        check_finite(module.state_dict(), type(module).__name__)
        if isinstance(mel, LogMel):
            expected = MEL_CONSTANTS | {"f_max": mel.sample_rate / 2, "win_length": mel.n_fft}
            if others := {name: getattr(mel, name) for name in expected if getattr(mel, name) != expected[name]}:
                raise ValueError(f"the format holds Vocos' own mel alone ({expected}), this one has {others}")
        if isinstance(mel, EncodecFeatures) and mel.source not in SOURCES.values():
            raise ValueError(f"the format knows {', '.join(SOURCES)} alone, not the codec {mel.source}")
        folder.mkdir(parents=True, exist_ok=True)
        config = yaml.safe_dump(original_config(arguments, mel), sort_keys=False)
        write_atomic(folder / CONFIG, lambda file: file.write(config.encode()))
        state = derived_buffers(module, mel) | to_original_names(module.state_dict())
        write_atomic(folder / WEIGHTS, lambda file: torch.save(state, file))


def has_settings(path: Path) -> bool:
    """Return whether settings of Vocos lie in a folder, or next to a file."""
    try:
        return _settings(path / WEIGHTS if path.is_dir() else path).keys() >= set(CLASSES)
    except (ValueError, OSError):
        return False


def _settings(path: Path) -> dict[str, Any]:
    """Read the model's section of config.yaml next to the weights, of a hub's folder or of a training."""
    content = read_settings_file(path.with_name(CONFIG))
    model = content.get("model")
    arguments = model.get("init_args") if isinstance(model, dict) else None
    return arguments if isinstance(arguments, dict) else content


def task_arguments(settings: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Return the task's arguments in a recipe for the settings of a Vocos.

    ValueError for a class that is none of Vocos', or for sections that contradict each other.
    """
    classes = {name: str(settings[name].get("class_path", "")).rpartition(".")[2] for name in CLASSES}
    for name, kind in classes.items():
        if kind not in CLASSES[name]:
            raise ValueError(f"{source}: {name} {kind!r} is not supported; expected {' or '.join(CLASSES[name])}")
    features, backbone, head = (settings[name].get("init_args") or {} for name in CLASSES)
    has_codes = classes["feature_extractor"] == "EncodecFeatures"
    padding, head_padding = features.get("padding", "center"), head.get("padding", "same")
    if not has_codes and head_padding != padding:
        raise ValueError(f"{source}: the head pads as {head_padding}, the features as {padding}")
    if has_codes != bool(backbone.get("adanorm_num_embeddings")):
        raise ValueError(f"{source}: {classes['feature_extractor']} and the backbone's conditions do not fit")
    sizes = MEL | {key: features[key] for key in MEL if key in features}
    loss_mel = component("zoo.audio.LogMel", **sizes, win_length=sizes["n_fft"], **MEL_CONSTANTS)
    generator = {zoo: backbone.get(key) or None for key, zoo in BACKBONE.items()}
    generator |= {key: head.get(key, sizes[key]) for key in ("n_fft", "hop_length")} | {"padding": head_padding}
    mel_weight, coefficient = float(settings.get("mel_loss_coeff", 45)), settings.get("mrd_loss_coeff", 1.0)
    optimizer = component("torch.optim.AdamW", lr=settings.get("initial_learning_rate", 5e-4), betas=[0.8, 0.9])
    shares = {"mpd": 1 / 5, "mrd": coefficient / 3}  # the original takes means over sub-discriminators
    weights = {f"{term}{name}": share for name, share in shares.items() for term in ("d/", "g/adv_", "g/fm_")}
    return {
        "generator": component("zoo.hifigan.Vocos", **generator),
        "mel": _codec(features, source) if has_codes else loss_mel,
        "loss_mel": loss_mel,
        "sample_rate": sizes["sample_rate"],
        "step": {"adversarial": "hinge"},
        "discriminators": {
            "mpd": component("zoo.hifigan.MultiPeriodDiscriminator", every_map=False),
            "mrd": component("zoo.hifigan.MultiBandDiscriminator"),
        },
        "loss_weights": weights | {"g/mel": mel_weight},
        "optimizer_g": optimizer,
        "optimizer_d": optimizer,
    }


def _codec(features: Mapping[str, Any], source: Path) -> dict[str, Any]:
    name = features.get("encodec_model", "encodec_24khz")
    if name not in SOURCES:
        raise ValueError(f"{source}: codec {name!r} is not known here; known: {', '.join(SOURCES)}")
    bandwidths = [float(each) for each in features.get("bandwidths", _BANDWIDTHS)]
    return component("zoo.hifigan.EncodecFeatures", source=SOURCES[name], bandwidths=bandwidths)


def original_config(generator: Mapping[str, Any], mel: LogMel | EncodecFeatures) -> dict[str, Any]:
    """Return the contents of config.yaml; the inverse of `task_arguments`."""
    if isinstance(mel, EncodecFeatures):
        (name,) = (original for original, source in SOURCES.items() if source == mel.source)
        kind, features = "EncodecFeatures", {"encodec_model": name, "bandwidths": list(mel.bandwidths)}
    else:
        kind, features = "MelSpectrogramFeatures", {name: getattr(mel, name) for name in MEL}
    backbone = {key: generator[zoo] for key, zoo in BACKBONE.items() if generator.get(zoo) is not None}
    head = {key: generator[key] for key in ("dim", "n_fft", "hop_length", "padding")}
    return {
        "feature_extractor": component(f"vocos.feature_extractors.{kind}", **features),
        "backbone": component("vocos.models.VocosBackbone", **backbone),
        "head": component("vocos.heads.ISTFTHead", **head),
    }


def derived_buffers(net: Vocos, mel: LogMel | EncodecFeatures) -> dict[str, Tensor]:
    """Return the tensors of the original's files that follow from the settings."""
    window = {"head.istft.window": torch.hann_window(net.head.istft.basis.shape[1])}
    if isinstance(mel, EncodecFeatures):
        return {CODEBOOKS: mel.codebooks} | window
    return {
        "feature_extractor.mel_spec.spectrogram.window": mel.window.clone(),
        "feature_extractor.mel_spec.mel_scale.fb": mel.mel_basis.T.contiguous(),
    } | window
