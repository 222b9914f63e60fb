"""The calls of ProjectLily's trainers, `--headless` and the like, in the words of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.audiosr.convert.read import CONFIG_NAME
from zoo.audiosr.convert.recipe import convert_config
from zoo.common.options import take_option
from zoo.common.systems import recipe_root
from zoo.convert import old_calls
from zoo.convert.old_calls import Call, shown
from zoo.convert.sizes import part

TEST = "--test-model"
WAYS = {
    **dict.fromkeys(("--headless", "--term", "--distributed"), "train"),
    **dict.fromkeys(("--gui", "--legacy-gui"), "window"),
    TEST: "test",
}


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """Translate a call of an old script, see `zoo.convert.old_calls.command`."""
    return old_calls.command(translate, arguments)


def translate(arguments: Sequence[str], environment: Mapping[str, str]) -> Call:
    """Translate a call; for training and its test the recipe is written beside config.yaml, as `<name>.zoo.yaml`.

    Args:
        arguments: one of `--headless`, `--term` (both train), `--distributed` (train with one process a device),
            `--test-model`, `--gui` and `--legacy-gui`; the window where there is none. `--config FILE` is the
            original's configuration (`config.yaml` when not given; further ones are fragments of ours). Other options
            are those of `zoo fit`, `doctor` or `ui`, and passed on.
        environment: variables of a launcher.

    Returns:
        The call.

    Raises:
        FileNotFoundError: when there is no such configuration.
        ValueError: when several ways are asked for, or it is no configuration of AudioSR or ProjectLily.
    """
    given = [each for each in arguments if each in WAYS]
    ways = {WAYS[each] for each in given} or {"window"}
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(given)} exclude one another; name one")
    configs, rest = take_option([each for each in arguments if each not in WAYS], "--config")
    if ways == {"window"}:
        note = [f"pick the recipe on the page; `zoo convert-config audiosr {configs[0]}` makes one"] if configs else []
        return Call(["ui", *rest], note)
    original, *fragments = configs or [CONFIG_NAME]
    recipe, notes = convert_config(original)
    devices, nodes = old_calls.processes(environment)
    flags: list[str] = []
    if ways == {"train"}:
        if recipe["model"]["init_args"]["latent_scale"] == 1.0:
            recipe["trainer"]["callbacks"].append({"class_path": "zoo.audiosr.OriginalFiles"})
        else:
            notes.append("the original's file names: its layout has no scale of the latents but 1")
        if "--distributed" in given or devices * nodes > 1:
            _spread(recipe, devices * nodes)
            fragments.insert(0, shown(recipe_root() / "trainer" / "ddp.yaml"))
            if devices * nodes > 1:
                flags = [f"--trainer.devices={devices}", f"--trainer.num_nodes={nodes}"]
            else:
                flags = ["--trainer.devices=auto"]
                notes.append("devices: all of this machine, a process each; torchrun is not needed")
    elif fragments:
        raise ValueError(f"{TEST} tests one configuration, found also {', '.join(fragments)}")
    written = old_calls.write_recipe(recipe, Path(original), "scripts/train_audiosr.py")
    options = [text for config in (written, *fragments) for text in ("--config", config)]
    verb = "fit" if ways == {"train"} else "doctor"
    return Call([verb, *options, *flags, *rest], [f"not translated: {note}" for note in notes])


def _spread(recipe: dict[str, Any], processes: int) -> None:
    """One process a device: DataParallel and the monitor of one process are replaced, the epochs' steps shared."""
    trainer = recipe["trainer"]
    recipe["model"]["init_args"]["parallel"] = "none"
    trainer.pop("devices")
    for place, callback in enumerate(trainer["callbacks"]):
        if callback["class_path"] == "zoo.audiosr.LossMonitor":
            limit = callback["init_args"]["threshold"]
            limit = limit if math.isfinite(limit) else None
            trainer["callbacks"][place] = part("zoo.training.LossGuard", action="reduce", limit=limit)
    old_calls.share_steps(recipe, processes)
