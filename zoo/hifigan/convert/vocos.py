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
from zoo.convert.tensor_names import State, is_state_dict
from zoo.hifigan.convert.rules import (
    UNWRAPPED,
    check_finite,
    to_legacy_keys,
    to_our_keys,
    unwrap_content,
)
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.hifigan.nets.vocos import Vocos
from zoo.runs.load import build_component

CONFIG, WEIGHTS = "config.yaml", "pytorch_model.bin"
CODEBOOKS = "feature_extractor.codebook_weights"
SOURCES = {"encodec_24khz": "facebook/encodec_24khz"}
"""The original's codecs that the zoo takes, and their hub ids in transformers' layout."""
_BANDWIDTHS = (1.5, 3.0, 6.0, 12.0)
SECTIONS = ("feature_extractor", "backbone", "head")
# the last words of the class paths that a section may have
CLASSES = {
    "feature_extractor": ("MelSpectrogramFeatures", "EncodecFeatures"),
    "backbone": ("VocosBackbone",),
    "head": ("ISTFTHead",),
}
_DISCRIMINATORS = {"multiperioddisc.": "mpd.", "multiresddisc.": "mrd."}
_DERIVED = ("head.istft.", "feature_extractor.", "melspec_loss.")


class VocosConverter(Converter[OriginalFile]):
    """Vocoders of Vocos, of mels and of EnCodec's codes; these need the codec, which transformers has from the hub.

    A file's codec weights are not read: its codebooks must be those of the hub's codec.
    """

    system, task, inference = "hifigan", "zoo.hifigan.HiFiGANTask", "zoo.hifigan.Vocoder"
    part = "generator"
    formats = f"known are Vocos' {CONFIG} with {WEIGHTS}, and checkpoints of its training beside their {CONFIG}"

    def is_original(self, path: Path | str, content: Any = None) -> bool:
        """Whether a path is a file or folder of Vocos; weights are read only beside settings that are Vocos'."""
        return has_settings(Path(path)) and super().is_original(path, content)

    def read(self, path: Path, *args: Any, content: Any = None, **options: Any) -> OriginalFile:
        """Read weights and the settings beside them; see `Converter.read`."""
        return super().read(path / WEIGHTS if path.is_dir() else path, content=content)

    def parse_content(self, content: Mapping[str, Any], path: Path, *args: Any, **options: Any) -> OriginalFile:
        """Recognise the layout of a loaded file; see `Converter.parse_content`."""
        plain, wrapped = unwrap_content(content)
        trained = is_state_dict(plain.get("state_dict"))
        tensors = plain["state_dict"] if trained else plain
        if not is_state_dict(tensors) or not any(key.startswith("backbone.embed.") for key in tensors):
            raise self._unknown(path, content)
        settings = _settings(path)
        missing = [name for name in SECTIONS if name not in settings]
        if missing:
            raise ValueError(f"{path.with_name(CONFIG)} lacks {', '.join(missing)}; {self.formats}")
        state: State = {}
        for key, value in to_our_keys(tensors).items():
            known = next((prefix for prefix in _DISCRIMINATORS if key.startswith(prefix)), None)
            if known is not None:
                if ".spec_fn." not in key:
                    state[_DISCRIMINATORS[known] + key.removeprefix(known)] = value
            elif not key.startswith(_DERIVED):
                state[f"generator.{key}"] = value
        training = {"batches": content.get("global_step", 0), "epoch": content.get("epoch", 0)} if trained else {}
        training["wrapped"] = wrapped
        if CODEBOOKS in tensors:
            training["codebooks"] = tensors[CODEBOOKS]
        return OriginalFile("vocos training" if trained else "vocos", state, settings, training)

    def _task_state(self, original: OriginalFile, path: Path) -> State:
        check_finite(original.state, path)
        return original.state

    def to_zoo(
        self, original: OriginalFile, source: Path, is_checkpoint: bool, *args: Any, **options: Any
    ) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        check_finite(original.state, source)
        arguments = task_arguments(original, source)
        generator = build_with_weights(arguments["generator"], original.component("generator"), str(source))
        mel = build(arguments["mel"])
        if isinstance(mel, EncodecFeatures):
            _check_codebooks(original.training.get("codebooks"), mel, source)
        batches = original.training.get("batches", 0) // 2  # Lightning counted the steps of both optimizers
        converted = ConvertedModel(
            parts={name: arguments[name] for name in ("generator", "mel")},
            nets={"generator": generator.remove_weight_norm_(), "mel": mel},
            step=batches,
            epoch=original.training.get("epoch", 0),
            specs={"config": arguments},
            notes=[UNWRAPPED] if original.training["wrapped"] else [],
            name=source.name,
        )
        if is_checkpoint:
            converted.state = original.state
            for name, spec in arguments["discriminators"].items():
                if tensors := original.component(name):
                    build_with_weights(spec, tensors, str(source))
        return converted

    def extra_arguments(
        self, checkpoint: ZooCheckpoint, net: nn.Module, source: Path, notes: list[str]
    ) -> dict[str, Any]:
        """Return options of `to_original`; see `Converter.extra_arguments`."""
        if not isinstance(net, Vocos):
            raise ValueError(f"{source} is no Vocos")
        return {
            "mel": build_component(checkpoint.specs, "mel"),
            "arguments": checkpoint.specs["components"]["generator"]["init_args"],
        }

    def to_original(
        self,
        module: nn.Module,
        path: Path | str,
        *args: Any,
        mel: LogMel | EncodecFeatures | None = None,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a Vocos as a folder of the hub.

        Args:
            mel: its front end.
            arguments: with which the generator was made.

        Raises:
            ValueError: when the original's format cannot hold it.
        """
        folder = Path(path)
        if not isinstance(module, Vocos) or mel is None or arguments is None:
            raise ValueError(f"expected a run or checkpoint of a Vocos, found {type(module).__name__}")
        check_finite(module.state_dict(), type(module).__name__)
        if isinstance(mel, LogMel) and (
            mel.mel_scale != "htk" or mel.f_min or mel.f_max != mel.sample_rate / 2 or mel.win_length != mel.n_fft
        ):
            raise ValueError(
                f"the format holds Vocos' own mel alone (htk, all frequencies): {mel.mel_scale} {mel.f_max}"
            )
        if isinstance(mel, EncodecFeatures) and mel.source not in SOURCES.values():
            raise ValueError(f"the format knows {', '.join(SOURCES)} alone, not the codec {mel.source}")
        folder.mkdir(parents=True, exist_ok=True)
        config = yaml.safe_dump(original_config(arguments, mel), sort_keys=False)
        write_atomic(folder / CONFIG, lambda file: file.write(config.encode()))
        state = derived_buffers(module, mel) | to_legacy_keys(module.state_dict())
        write_atomic(folder / WEIGHTS, lambda file: torch.save(state, file))


def has_settings(path: Path) -> bool:
    """Whether settings of Vocos lie in a folder, or beside a file."""
    try:
        return _settings(path / WEIGHTS if path.is_dir() else path).keys() >= set(SECTIONS)
    except (ValueError, OSError):
        return False


def _settings(path: Path) -> dict[str, Any]:
    """What config.yaml beside the weights says of the model, of a hub's folder or of a training."""
    content = read_settings_file(path.with_name(CONFIG))
    model = content.get("model")
    trained = model.get("init_args") if isinstance(model, dict) else None
    return trained if isinstance(trained, dict) else content


def task_arguments(original: OriginalFile, source: Path) -> dict[str, Any]:
    """Describe what a recipe's task says for the settings of a Vocos.

    Raises:
        ValueError: for a class that is none of Vocos', or a front end of codes.
    """
    classes = {name: str(original.settings[name].get("class_path", "")).rpartition(".")[2] for name in SECTIONS}
    given = {name: original.settings[name].get("init_args", {}) for name in SECTIONS}
    for name in SECTIONS:
        if classes[name] not in CLASSES[name]:
            raise ValueError(
                f"{source}: {name} {classes[name]!r} is not supported; expected {' or '.join(CLASSES[name])}"
            )
    features, backbone, head = (given[name] for name in SECTIONS)
    of_codes, conditions = classes["feature_extractor"] == "EncodecFeatures", backbone.get("adanorm_num_embeddings")
    rate, padding = features.get("sample_rate", 24000), features.get("padding", "center")
    if of_codes:
        padding = head.get("padding", "same")
    if head.get("padding", "same") != padding:
        raise ValueError(f"{source}: the head pads as {head.get('padding', 'same')}, the features as {padding}")
    if of_codes != bool(conditions):
        raise ValueError(
            f"{source}: {conditions} conditions of the backbone do not go with {classes['feature_extractor']}"
        )
    n_fft, hop = features.get("n_fft", 1024), features.get("hop_length", 256)
    generator = component(
        "zoo.hifigan.Vocos",
        in_channels=backbone["input_channels"],
        dim=backbone["dim"],
        intermediate_dim=backbone["intermediate_dim"],
        layers=backbone["num_layers"],
        n_fft=head.get("n_fft", n_fft),
        hop_length=head.get("hop_length", hop),
        padding=padding,
        scale=backbone.get("layer_scale_init_value") or None,
        conditions=conditions,
    )
    loss_mel = mel = component(
        "zoo.audio.LogMel", sample_rate=rate, n_fft=n_fft, hop_length=hop, win_length=n_fft, f_min=0.0, f_max=None,
        n_mels=features.get("n_mels", 100), padding="center" if of_codes else padding, mel_scale="htk",
        magnitude_floor=0.0, floor=1e-7,
    )  # fmt: skip
    if of_codes:
        name = features.get("encodec_model", "encodec_24khz")
        if name not in SOURCES:
            raise ValueError(f"{source}: codec {name!r} is not known here; known: {', '.join(SOURCES)}")
        bandwidths = [float(each) for each in features.get("bandwidths", _BANDWIDTHS)]
        mel = component("zoo.hifigan.EncodecFeatures", source=SOURCES[name], bandwidths=bandwidths)
    settings = original.settings
    coefficient, mel_weight = settings.get("mrd_loss_coeff", 1.0), float(settings.get("mel_loss_coeff", 45))
    optimizer = component("torch.optim.AdamW", lr=settings.get("initial_learning_rate", 5e-4), betas=[0.8, 0.9])
    shares = {"mpd": 1 / 5, "mrd": coefficient / 3}  # the original takes means over sub-discriminators
    weights = {f"{term}{name}": share for name, share in shares.items() for term in ("d/", "g/adv_", "g/fm_")}
    return {
        "generator": generator,
        "mel": mel,
        "loss_mel": loss_mel,
        "sample_rate": rate,
        "adversarial": "hinge",
        "discriminators": {
            "mpd": component("zoo.hifigan.MultiPeriodDiscriminator", every_map=False),
            "mrd": component("zoo.hifigan.MultiBandDiscriminator"),
        },
        "loss_weights": weights | {"g/mel": mel_weight},
        "optimizer_g": optimizer,
        "optimizer_d": optimizer,
    }


def _check_codebooks(found: Tensor | None, codec: EncodecFeatures, source: Path) -> None:
    if found is not None and not torch.equal(found.float(), codec.codebooks):
        raise ValueError(f"{source}: its codebooks {tuple(found.shape)} are not those of {codec.source}: another codec")


def original_config(generator: Mapping[str, Any], mel: LogMel | EncodecFeatures) -> dict[str, Any]:
    """What config.yaml holds; the inverse of `task_arguments`."""
    layers = {"intermediate_dim": generator["intermediate_dim"], "num_layers": generator["layers"]}
    scale = {} if generator["scale"] is None else {"layer_scale_init_value": generator["scale"]}
    head = {"n_fft": generator["n_fft"], "hop_length": generator["hop_length"]}
    conditions = {"adanorm_num_embeddings": generator["conditions"]} if generator.get("conditions") else {}
    if isinstance(mel, EncodecFeatures):
        (name,) = (theirs for theirs, ours in SOURCES.items() if ours == mel.source)
        front_end = {"encodec_model": name, "bandwidths": list(mel.bandwidths)}
    else:
        names = ("sample_rate", "n_fft", "hop_length", "n_mels", "padding")
        front_end = {each: getattr(mel, each) for each in names}
    kind = "EncodecFeatures" if isinstance(mel, EncodecFeatures) else "MelSpectrogramFeatures"
    dim = {"dim": generator["dim"]}
    return {
        "feature_extractor": component(f"vocos.feature_extractors.{kind}", **front_end),
        "backbone": component(
            "vocos.models.VocosBackbone",
            **{"input_channels": generator["in_channels"], **dim, **layers, **scale, **conditions},
        ),
        "head": component("vocos.heads.ISTFTHead", **dim, **head, padding=generator["padding"]),
    }


def derived_buffers(net: Vocos, mel: LogMel | EncodecFeatures) -> dict[str, Tensor]:
    """What the original's files hold though the settings determine it."""
    buffers = (
        {CODEBOOKS: mel.codebooks}
        if isinstance(mel, EncodecFeatures)
        else {
            "feature_extractor.mel_spec.spectrogram.window": mel.window.clone(),
            "feature_extractor.mel_spec.mel_scale.fb": mel.mel_basis.T.contiguous(),
        }
    )
    return buffers | {"head.istft.window": torch.hann_window(net.head.istft.basis.shape[1])}
