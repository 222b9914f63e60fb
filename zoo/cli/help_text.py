"""The help that fits a screen: what a command does, the options that one uses, and where the rest is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TRAINER_COMMANDS = {
    "fit": "train a recipe, or resume a run: fit RECIPE | fit --ckpt_path last|RUN|FILE",
    "validate": "evaluate a checkpoint on the validation set: validate --ckpt_path RUN",
    "test": "evaluate a checkpoint on the test set: test --ckpt_path RUN",
}
_SHARED = (
    ("--trainer.accelerator cpu|gpu", "and --trainer.devices N, --trainer.num_nodes N: where it runs"),
    ("--trainer.precision P", "32-true, bf16-mixed, 16-mixed, …"),
    ("--data.batch_size N", "like this, any argument of the recipe's data and model: --model.KEY VALUE"),
    ("-q, -v", "errors and warnings only; everything that the libraries say as well"),
    ("--help all", "every option; --model.help CLASS shows those of a class"),
)
_EVALUATION = (("--ckpt_path RUN", "a run folder, a checkpoint, or `last` for the newest run"), *_SHARED)
OPTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "fit": (
        ("--ckpt_path RUN", "resume a run exactly: its folder, a checkpoint, `last`, or `auto`: last if any"),
        ("--init_from FILE", "start with these weights: a checkpoint, an export, an original's file"),
        ("--trainer.max_steps N", "or --trainer.max_epochs N, --trainer.max_time DD:HH:MM:SS: when it ends"),
        ("--trainer.default_root_dir DIR", "the run's folder; runs/SYSTEM/RECIPE/TIME when not given"),
        ("--loggers '[tensorboard, wandb]'", "beside metrics.csv, which is always written"),
        ("--samples.enabled false", "no sounds, pictures and tables at validations"),
        *_SHARED,
    ),
    "validate": _EVALUATION,
    "test": _EVALUATION,
}


def short_help(command: str) -> str:
    """Write the help of fit, validate or test."""
    about, _, example = TRAINER_COMMANDS[command].partition(": ")
    recipe = "RECIPE is a name (`zoo list`) or a YAML file; later ones change earlier ones."
    lines = [
        f"usage: zoo {command} [RECIPE ...] [options]",
        "",
        f"{about[0].upper()}{about[1:]}: {example}. {recipe if command == 'fit' else 'A run brings its recipe.'}",
    ]
    return "\n".join([*lines, "Options change both.", "", *align_rows(OPTIONS[command])])


def align_rows(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Write names and what they mean in two columns."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    return [f"  {name:<{width}}{about}".rstrip() for name, about in rows]
