"""Reading the assignment lineage's flow matching files: which layout, which net, and what is known of its training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.common.build import build_whole
from zoo.common.reading.foreign import Stub, load_foreign
from zoo.flow.nets.unet import GROUPS
from zoo.flow.nets.velocity import VelocityNet

State = dict[str, Tensor]

PREFIX = "network."
DROPPED = "lpips_fn."  # InstaFlow students carry their perceptual loss along
# Attributes of the pickled modules (and plain entries of the files that we write) that say what shapes cannot.
NETWORK_SETTINGS = ("image_resolution", "use_cfg", "cfg_dropout")
SCHEDULER_SETTINGS = ("sigma_min", "num_train_timesteps")
SETTINGS = (*NETWORK_SETTINGS, "dropout", *SCHEDULER_SETTINGS)
DEFAULTS: dict[str, Any] = {"image_resolution": 64, "sigma_min": 0.001, "dropout": 0.1, "cfg_dropout": 0.1}


@dataclass
class Original:
    """What a file of the lineage holds.

    Attributes:
        layout: "fm.save" (with pickled modules), "accelerate" (flat, under `module.`) or "state dict".
        state: the net's tensors under its own names, which are ours too.
        settings: what the file says of `SETTINGS`, nothing else.
        classes: names of the pickled classes.
        dropped: count of tensors that belong to no net.
    """

    layout: str
    state: State
    settings: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    dropped: int = 0

    def setting(self, name: str) -> Any:
        """A setting of the file, or the lineage's default."""
        return self.settings.get(name, DEFAULTS.get(name))


def read(path: Path) -> Original:
    """Read a file without executing anything in it.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    return interpret(load_foreign(path), path)


def interpret(content: Any, path: Path) -> Original:
    """Recognise the layout of a loaded file.

    Raises:
        ValueError: when the layout is not known; the message lists a few keys.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors")
    flat = content.get("state_dict", content)
    tensors = isinstance(flat, Mapping) and all(isinstance(value, Tensor) for value in flat.values())
    if "zoo" in content or not tensors:
        raise ValueError(f"{path}: unknown layout with keys {', '.join(map(str, list(content)[:5]))}; {_known()}")
    state, dropped, strangers = {}, 0, []
    for key, value in flat.items():
        name = re.sub(r"^(module\.)+", "", str(key).replace("_orig_mod.", ""))
        if name.startswith(DROPPED):
            dropped += 1
        elif name.startswith(PREFIX):
            state[name.removeprefix(PREFIX)] = value
        else:
            strangers.append(str(key))
    if strangers or not {"head.weight", "net.0.fc.weight"} & set(state):
        shown = (strangers or list(map(str, flat)))[:5]
        raise ValueError(f"{path}: unknown layout with keys {', '.join(shown)}; {_known()}")
    records = content.get("hparams") if flat is not content else None
    settings, classes = _settings(records) if isinstance(records, Mapping) else ({}, ())
    layout = "accelerate" if any(str(key).startswith("module.") for key in flat) else "state dict"
    return Original("fm.save" if classes else layout, state, settings, classes, dropped)


def _known() -> str:
    return "known are fm.save files and the flat last.ckpt of the Accelerate fork, whose tensors are named network.*"


def _settings(records: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What pickled modules, or plain values in their place, say."""
    settings = {key: value for key, value in records.items() if key in SETTINGS}
    network, scheduler = records.get("network"), records.get("fm_scheduler")
    for record, names in ((network, NETWORK_SETTINGS), (scheduler, SCHEDULER_SETTINGS)):
        if isinstance(record, Stub):
            settings |= {name: record.get(name) for name in names if record.get(name) is not None}
    rates = [module.get("p") for module in _modules(network) if module.path.endswith(".Dropout")]
    if rates:
        settings["dropout"] = rates[0]
    modules = [*_modules(network), *_modules(scheduler)]
    own = sorted({module.path for module in modules if not module.path.startswith("torch.")})
    return settings, tuple(own)


def _modules(record: Any) -> Iterator[Stub]:
    """A pickled module and all below it."""
    if isinstance(record, Stub):
        yield record
        children = record.get("_modules")
        for child in children.values() if isinstance(children, Mapping) else ():
            yield from _modules(child)


def net_spec(original: Original, path: Path, image_resolution: int | None = None) -> dict[str, Any]:
    """Describe the net of a file, with every argument written out; sizes come from the shapes of its tensors.

    Args:
        original: what was read.
        path: named in errors.
        image_resolution: in pixels; None takes the file's word, or 64.

    Returns:
        `class_path` and `init_args`.

    Raises:
        ValueError: when the tensors are not those of a net of the lineage.
    """
    state = original.state
    try:
        if "head.weight" not in state:
            arguments = _toy_arguments(state)
            return {"class_path": "zoo.flow.ToyNet", "init_args": arguments}
        arguments = _unet_arguments(state)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path}: the sizes of its net cannot be told from its tensors ({error})") from error
    resolution = image_resolution if image_resolution is not None else original.setting("image_resolution")
    known = {"image_resolution": resolution, "dropout": original.setting("dropout")}
    return {"class_path": "zoo.flow.UNet", "init_args": {**arguments, **known}}


def _toy_arguments(state: State) -> dict[str, Any]:
    layers = sorted(int(key.split(".")[1]) for key in state if key.endswith(".fc.weight"))
    widths = [state[f"net.{layer}.fc.weight"].shape[0] for layer in layers]
    return {"dim": state["net.0.fc.weight"].shape[1], "widths": widths[:-1], "time_scale": 1.0}


def _unet_arguments(state: State) -> dict[str, Any]:
    channels, in_channels = state["head.weight"].shape[:2]
    blocks = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("downblocks."))
    levels: list[list[int]] = [[]]
    for index in range(blocks):
        if f"downblocks.{index}.main.weight" in state:
            levels.append([])
        else:
            levels[-1].append(index)
    counts = {len(level) for level in levels}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"its levels have {[len(level) for level in levels]} residual blocks, expected equal numbers")
    classes = len(state["class_embedding.weight"]) - 1 if "class_embedding.weight" in state else 0
    return {
        "in_channels": in_channels,
        "channels": channels,
        "channel_mult": [len(state[f"downblocks.{level[0]}.block1.2.weight"]) // channels for level in levels],
        "attention_levels": [i for i, level in enumerate(levels) if f"downblocks.{level[0]}.attn.proj.weight" in state],
        "res_blocks": counts.pop(),
        "num_classes": classes,
        "time_scale": 1.0,
        "norm_groups": GROUPS,
        "attention_gain": 1.0,
        "checkpointing": False,
        "channels_last": False,
    }


def build_net(original: Original, path: Path, image_resolution: int | None = None) -> VelocityNet:
    """Build the net of a file and load its weights.

    Raises:
        ValueError: when its tensors are not a whole net; the message names missing, unexpected and differing ones.
    """
    net: VelocityNet = build_whole(net_spec(original, path, image_resolution), original.state, str(path))
    return net
