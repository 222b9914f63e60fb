"""Which checkpoint a command means, which recipe it trains, and where it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.cli.recipes import config_files, take_option
from zoo.runs import run_folder as runs
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.hub.models import is_hub_name
from zoo.runs.run_info import read_recipe_name


def recipe_name(configs: Sequence[str]) -> str:
    """Name a recipe by the first file or name, e.g. hifigan/smoke; a run's own config names the run's recipe."""
    if not configs:
        return "unnamed"
    first = Path(configs[0]).absolute()
    if first.name == runs.CONFIG_NAME:
        return read_recipe_name(first) or "/".join(first.parts[-4:-2])
    folder = first.parent.parent if first.parent.name == "configs" else first.parent
    return f"{folder.name}/{first.stem}"


def resolve_checkpoint(command: str, args: list[str]) -> tuple[list[str], Path | None]:
    """Replace `--ckpt_path last` and `auto` by a run, and add a run's config where no recipe is named.

    Returns the arguments, and the run whose own config is among them.
    """
    values, rest = take_option(args, "--ckpt_path")
    if not values:
        return args, None
    value, configs = values[-1], config_files(rest)
    if is_hub_name(value):
        raise ValueError(f"--ckpt_path {value}: {command} needs a run; fit --init_from takes the weights of a hub")
    if "://" in value:
        raise ValueError(f"--ckpt_path {value}: checkpoints are read from local paths only; download it first")
    if value in ("last", "auto"):
        roots = take_option(rest, "--trainer.default_root_dir")[0]
        root = Path(roots[-1]) if roots else runs.RUNS_ROOT / (recipe_name(configs) if configs else "")
        newest = runs.find_latest_run(root)
        if newest is None and value == "auto" and command == "fit":
            return rest, None
        if newest is None:
            raise FileNotFoundError(f"--ckpt_path {value}: no run with a checkpoint below {root}")
        value = str(newest)
    if not Path(value).exists():
        raise FileNotFoundError(f"--ckpt_path: nothing at {value}")
    if configs:
        return [*rest, f"--ckpt_path={value}"], None
    config = runs.find_config(Path(value))
    return [f"--config={config}", *rest, f"--ckpt_path={value}"], config.parent


def choose_run_folder(command: str, config: Mapping[str, Any], recipe: str) -> tuple[Path | None, Path]:
    """Find the checkpoint that a command means and the folder that it writes to.

    A resumed run continues in its folder, unless it starts from an older checkpoint than the newest there.
    """
    root, path = config["trainer.default_root_dir"], config["ckpt_path"]
    checkpoint = None if path is None else find_checkpoint(Path(path))
    if command != "fit":
        return checkpoint, Path(root) if root else checkpoint.parent if checkpoint else runs.RUNS_ROOT / command
    if checkpoint is not None:
        is_newest = checkpoint == find_checkpoint(checkpoint.parent)
        if is_newest or checkpoint != Path(path):
            return checkpoint, checkpoint.parent
    folder = Path(root) if root else runs.new_run_folder(recipe)
    if next(folder.glob("*.ckpt"), None) is not None:
        raise ValueError(
            f"{folder} already holds a run: resume it by --ckpt_path {folder}, "
            "or choose another trainer.default_root_dir"
        )
    return checkpoint, folder
