"""What a command line means before the real parser is built: which config, which checkpoint, which run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from zoo.options import take_option
from zoo.training import run as runs


def settle(command: str, config: Namespace, recipe: str) -> tuple[Path | None, Path]:
    """Find the checkpoint that a command means and the folder that it writes to.

    A resumed run goes on in its own folder, unless it starts from an older checkpoint than the newest there.

    Raises:
        ValueError: when a fresh run would write into the folder of another.
    """
    chosen = config["trainer.default_root_dir"]
    given = config["ckpt_path"]
    checkpoint = None if given is None else runs.find_checkpoint(Path(given))
    if command != "fit":
        folder = Path(chosen) if chosen else checkpoint.parent if checkpoint else runs.RUNS_ROOT / command
        return checkpoint, folder
    if checkpoint is not None and checkpoint == runs.find_checkpoint(checkpoint.parent):
        return checkpoint, checkpoint.parent
    folder = Path(chosen) if chosen else runs.new_run_folder(recipe)
    if next(folder.glob("*.ckpt"), None) is not None:
        raise ValueError(
            f"{folder} already holds a run: go on with it by --ckpt_path {folder}, "
            "or choose another trainer.default_root_dir"
        )
    return checkpoint, folder


def config_files(args: list[str]) -> list[str]:
    """The config files that a command line names."""
    return [*take_option(args, "--config")[0], *take_option(args, "-c")[0]]


def recipe_of(configs: Sequence[str]) -> str:
    """`<system>/<recipe>` by the first config file, e.g. hifigan/smoke; a run's own config names the run's recipe."""
    if not configs:
        return "unnamed"
    first = Path(configs[0]).absolute()
    if first.name == runs.CONFIG_NAME:
        return "/".join(first.parts[-4:-2])
    folder = first.parent.parent if first.parent.name == "configs" else first.parent
    return f"{folder.name}/{first.stem}"


def complete(command: str, args: list[str]) -> tuple[list[str], Path | None]:
    """Fill in what a `--ckpt_path` says already: `last` and `auto` become a run, a run brings its config.

    Returns:
        The arguments, those of a prediction without a recipe begin with `--model.path`; and the run whose own config is
        among them.

    Raises:
        FileNotFoundError: when `last` finds no run.
        ValueError: for a URL.
    """
    values, rest = take_option(args, "--ckpt_path")
    if not values:
        return args, None
    value = values[-1]
    if "://" in value:
        raise ValueError(f"--ckpt_path {value}: checkpoints are read from local paths only; download it first")
    configs = config_files(rest)
    if value in ("last", "auto"):
        roots = take_option(rest, "--trainer.default_root_dir")[0]
        root = Path(roots[-1]) if roots else runs.RUNS_ROOT / (recipe_of(configs) if configs else "")
        newest = runs.newest_run(root)
        if newest is None:
            if value == "auto" and command == "fit":
                return rest, None
            raise FileNotFoundError(f"--ckpt_path {value}: no run with a checkpoint below {root}")
        value = str(newest)
    if not Path(value).exists():
        raise FileNotFoundError(f"--ckpt_path: nothing at {value}")
    if not configs and command == "predict" and not runs.has_config(Path(value)):
        options = [argument.replace("--model.init_args.", "--model.", 1) for argument in rest]
        return [f"--model.path={value}", *options], None
    brought = None
    if not configs:
        config = runs.find_config(Path(value))
        rest, brought = ["--config", str(config), *rest], config.parent
    return [*rest, "--ckpt_path", value], brought
