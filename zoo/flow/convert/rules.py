"""The assignment lineage's flow matching files (`fm.save`, Accelerate): their names, their nets, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.common.atomic_files import write_atomic
from zoo.common.safe_load import Record
from zoo.convert.engine import ConvertedModel, Converter, OriginalFile, ZooCheckpoint, count_tensors
from zoo.convert.network_description import component, count_blocks, fill_description, setting, size_of_axis
from zoo.convert.tensor_names import State, add_prefix, select_prefix, strip_state_wrappers
from zoo.flow.convert import sit
from zoo.flow.nets.mlp import ToyNet
from zoo.flow.nets.unet import GROUPS, UNet
from zoo.flow.nets.velocity import VelocityNet

# Below these prefixes names are ours; InstaFlow students carry their perceptual loss along.
PREFIX, DROPPED = "network.", "lpips_fn."
# Attributes of the pickled modules (and plain entries of the files that we write) that say what shapes cannot.
NETWORK_SETTINGS = ("image_resolution", "use_cfg", "cfg_dropout")
SCHEDULER_SETTINGS = ("sigma_min", "num_train_timesteps")
SETTINGS = (*NETWORK_SETTINGS, "dropout", *SCHEDULER_SETTINGS)
DEFAULTS: dict[str, Any] = {"image_resolution": 64, "sigma_min": 0.001, "dropout": 0.1, "cfg_dropout": 0.1}


@dataclass
class FlowFile(OriginalFile):
    """What a file of the lineage holds: "fm.save" (with pickled modules), "accelerate" or "state dict"."""

    dropped: int = 0  # count of tensors that belong to no net


def _levels(file: FlowFile) -> list[list[int]]:
    """Numbers of the residual blocks of each level; a block without a `block1` ends it."""
    levels: list[list[int]] = [[]]
    for index in range(count_blocks("downblocks.")(file)):
        if f"downblocks.{index}.main.weight" in file.state:
            levels.append([])
        else:
            levels[-1].append(index)
    if len({len(level) for level in levels}) != 1 or not levels[0]:
        raise ValueError(f"its levels have {[len(level) for level in levels]} residual blocks, expected equal numbers")
    return levels


def _channel_mult(file: FlowFile) -> list[int]:
    channels = len(file.state["head.weight"])
    return [len(file.state[f"downblocks.{level[0]}.block1.2.weight"]) // channels for level in _levels(file)]


def _attention_levels(file: FlowFile) -> list[int]:
    return [i for i, level in enumerate(_levels(file)) if f"downblocks.{level[0]}.attn.proj.weight" in file.state]


def _classes(file: FlowFile) -> int:
    return len(file.state["class_embedding.weight"]) - 1 if "class_embedding.weight" in file.state else 0


def _widths(file: FlowFile) -> list[int]:
    layers = sorted(int(key.split(".")[1]) for key in file.state if key.endswith(".fc.weight"))
    return [size_of_axis(f"net.{layer}.fc.weight")(file) for layer in layers[:-1]]


UNET = component(
    "zoo.flow.UNet",
    in_channels=size_of_axis("head.weight", 1),
    channels=size_of_axis("head.weight"),
    channel_mult=_channel_mult,
    attention_levels=_attention_levels,
    res_blocks=lambda file: len(_levels(file)[0]),
    num_classes=_classes,
    time_scale=1.0,
    norm_groups=GROUPS,
    attention_gain=1.0,
    checkpointing=False,
    channels_last=False,
    image_resolution=setting("image_resolution", DEFAULTS["image_resolution"]),
    dropout=setting("dropout", DEFAULTS["dropout"]),
)
TOY = component("zoo.flow.ToyNet", dim=size_of_axis("net.0.fc.weight", 1), widths=_widths, time_scale=1.0)
PATH = component(
    "zoo.flow.ConditionalOT",
    sigma_min=lambda file: 0.0 if file.layout == "SiT" else file.settings.get("sigma_min", DEFAULTS["sigma_min"]),
)
# The net of a file by a tensor that it has.
NETS = {"head.weight": UNET, "net.0.fc.weight": TOY, "patches.weight": sit.NET}


class FlowConverter(Converter[FlowFile]):
    """Files of the lineage and of SiT; their labels count from 1 (here), 0 is the null class."""

    system, task, inference, part = "flow", "zoo.flow.FlowTask", "zoo.flow.Sampler", "net"
    formats = (
        "known are fm.save files and the flat last.ckpt of the Accelerate fork, whose tensors are named network.*, and "
        "state dicts of SiT"
    )

    def parse_content(self, content: Mapping[str, Any], path: Path) -> FlowFile:
        """Recognise the layout of a loaded file; see `Converter.parse_content`."""
        averaged = content.get("ema")  # of a checkpoint; published files hold its tensors alone
        published = averaged if isinstance(averaged, Mapping) else content
        if sit.MARK in published:
            return FlowFile("SiT", sit.renamed(published, path), {"image_resolution": sit.resolution(published)})
        flat = content.get("state_dict", content)
        tensors = isinstance(flat, Mapping) and all(isinstance(value, Tensor) for value in flat.values())
        if "zoo" in content or not tensors:
            raise self._unknown(path, content)
        named = strip_state_wrappers(flat)
        unexpected = [name for name in named if not name.startswith((PREFIX, DROPPED))]
        state = select_prefix(named, PREFIX)
        if unexpected or not NETS.keys() & set(state):
            raise self._unknown(path, unexpected or flat)
        records = content.get("hparams") if flat is not content else None
        settings, is_pickled = _settings(records) if isinstance(records, Mapping) else ({}, False)
        layout = "accelerate" if any(str(key).startswith("module.") for key in flat) else "state dict"
        return FlowFile("fm.save" if is_pickled else layout, state, settings, dropped=len(named) - len(state))

    def _spec(self, original: FlowFile, path: Path, **options: Any) -> dict[str, Any]:
        settings = original.settings | {key: value for key, value in options.items() if value is not None}
        table = next(table for mark, table in NETS.items() if mark in original.state)
        return fill_description(table, OriginalFile(original.layout, original.state, settings), path)

    def describe_content(self, original: FlowFile, path: Path) -> dict[str, Any]:
        """Summarise a file; see `Converter.describe_content`."""
        spec = self._spec(original, path)
        facts = {
            "net": spec["class_path"].rpartition(".")[2],
            "arguments": spec["init_args"],
            **count_tensors(original.state),
            "settings in the file": original.settings,
        }
        lost = {"left out": f"{original.dropped} tensors of a perceptual loss"}
        return facts | (lost if original.dropped else {})

    def from_original(self, path: Path | str, image_resolution: int | None = None) -> VelocityNet:
        """Build the net of an `fm.save` file or a flat state dict, in evaluation mode.

        It is called as `net(x, t, label=None)` with the labels of the file: 0 is the null class, the real ones count
        from 1. An image resolution of None takes the file's word, or 64 where it says nothing.
        """
        path = Path(path)
        return self.build(self.read(path), path, image_resolution=image_resolution)

    def to_zoo(self, original: FlowFile, source: Path, is_checkpoint: bool) -> ConvertedModel:
        """Build what a checkpoint or an export holds; see `Converter.to_zoo`."""
        net = self.build(original, source)
        names = ("image_resolution", "sigma_min") if isinstance(net, UNet) else ("sigma_min",)
        notes = original.notes_on_defaults({name: DEFAULTS[name] for name in names})
        if original.layout == "SiT":
            notes = [sit.NOTE]
        return ConvertedModel(
            parts={self.part: self._spec(original, source), "path": fill_description(PATH, original, source)},
            nets={self.part: net},
            specs={"original_config": original.settings},
            notes=notes,
        )

    def extra_arguments(
        self, checkpoint: ZooCheckpoint, net: nn.Module, source: Path, notes: list[str]
    ) -> dict[str, Any]:
        """Return options of `to_original`; see `Converter.extra_arguments`."""
        parts = checkpoint.specs["components"]
        path = parts["path"]
        if not path["class_path"].endswith(".ConditionalOT") or parts.get("prediction", "velocity") != "velocity":
            raise ValueError(f"{source}: the original knows velocities on the path ConditionalOT only, not {path}")
        if parts.get("latents"):
            raise ValueError(f"{source}: the original has no latents, and this flow runs in those of an autoencoder")
        recorded = {
            key: value for key, value in (checkpoint.specs.get("original_config") or {}).items() if key in SETTINGS
        }
        return {"settings": {**recorded, "sigma_min": path["init_args"]["sigma_min"]}}

    def to_original(self, module: nn.Module, path: Path | str, settings: Mapping[str, Any] | None = None) -> None:
        """Write a net as the lineage's `fm.save` does, with plain settings in place of the pickled modules.

        The lineage reads it with `model.load_state_dict(torch.load(path)["state_dict"])`.

        Args:
            module: a `UNet` or `ToyNet` that computes as the lineage's nets do (time_scale 1, 32 groups).
            settings: `sigma_min`, `num_train_timesteps` and `cfg_dropout` as far as known; else the lineage's defaults.

        Raises:
            ValueError: when the lineage's net would compute something else with these weights, or a setting is unknown.
        """
        options = dict(settings or {})
        if unknown := sorted(set(options) - set(SETTINGS)):
            raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(SETTINGS)}")
        _check_holds(module)
        values = {"sigma_min": DEFAULTS["sigma_min"], "num_train_timesteps": 1000}
        if isinstance(module, UNet):
            values |= {
                "image_resolution": module.sample_shape[-1],
                "use_cfg": module.num_classes > 0,
                "cfg_dropout": DEFAULTS["cfg_dropout"],
                "dropout": module.dropout,
            }
        state: State = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
        content = {"hparams": {**values, **options}, "state_dict": add_prefix(state, PREFIX)}
        write_atomic(Path(path), lambda file: torch.save(content, file))


def _check_holds(module: nn.Module) -> None:
    if not isinstance(module, UNet | ToyNet):
        raise ValueError(f"expected a UNet or ToyNet of flow matching, found {type(module).__name__}")
    groups = {layer.num_groups for layer in module.modules() if isinstance(layer, nn.GroupNorm)}
    if module.time_scale != 1 or groups - {GROUPS}:
        raise ValueError(
            "the original's net has time_scale 1 and 32 groups in every norm, and would compute something else with "
            f"these weights (time_scale {module.time_scale}, groups {sorted(groups)}); use `zoo export`"
        )


def _settings(records: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """What pickled modules, or plain values in their place, say; and whether there are classes of the lineage."""
    settings = {key: value for key, value in records.items() if key in SETTINGS}
    network, scheduler = records.get("network"), records.get("fm_scheduler")
    for record, names in ((network, NETWORK_SETTINGS), (scheduler, SCHEDULER_SETTINGS)):
        if isinstance(record, Record):
            settings |= {name: record.get(name) for name in names if record.get(name) is not None}
    rates = [module.get("p") for module in _modules(network) if module.path.endswith(".Dropout")]
    if rates:
        settings["dropout"] = rates[0]
    modules = [*_modules(network), *_modules(scheduler)]
    return settings, any(not module.path.startswith("torch.") for module in modules)


def _modules(record: Any) -> Iterator[Record]:
    """A pickled module and all below it."""
    if isinstance(record, Record):
        yield record
        children = record.get("_modules")
        for child in children.values() if isinstance(children, Mapping) else ():
            yield from _modules(child)
