"""The help that fits a screen: what a command does, the options that one uses, and where the rest is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

TRAINER_COMMANDS = {
    "fit": "train a recipe, or go on with a run: fit RECIPE | fit --ckpt_path last|RUN|FILE",
    "validate": "evaluate a checkpoint on the validation set: validate --ckpt_path RUN",
    "test": "evaluate a checkpoint on the test set: test --ckpt_path RUN",
}
_CHECKPOINT = ("--ckpt_path RUN", "a run folder, a checkpoint, or `last` for the newest run")
_SHARED = (
    ("--trainer.accelerator cpu|gpu", "and --trainer.devices N, --trainer.num_nodes N: where it runs"),
    ("--trainer.precision P", "32-true, bf16-mixed, 16-mixed, …"),
    ("--data.batch_size N", "like this, any argument of the recipe's data and model: --model.KEY VALUE"),
)
OPTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "fit": (
        ("--ckpt_path RUN", "go on with a run, exactly: its folder, a checkpoint, `last`, or `auto`: last if any"),
        ("--init_from FILE", "start with these weights: a checkpoint, an export, an original's file"),
        ("--trainer.max_steps N", "or --trainer.max_epochs N, --trainer.max_time DD:HH:MM:SS: when it ends"),
        *_SHARED,
        ("--trainer.default_root_dir DIR", "the run's folder; runs/SYSTEM/RECIPE/TIME when not given"),
        ("--loggers '[tensorboard, wandb]'", "beside metrics.csv, which is always written"),
        ("--samples.enabled false", "no sounds, pictures and tables at validations"),
    ),
    "validate": (_CHECKPOINT, *_SHARED),
    "test": (_CHECKPOINT, *_SHARED),
}
EVERYWHERE = (
    ("-q, -v", "errors and warnings only; everything that the libraries say as well"),
    ("--help all", "every option, with a recipe also those of its classes"),
)
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "fit": (
        "zoo fit flow/smoke",
        "zoo fit hifigan/base trainer/gpu --data.batch_size 32",
        "zoo fit --ckpt_path last",
    ),
    "validate": ("zoo validate --ckpt_path last",),
    "test": ("zoo test --ckpt_path last",),
}


def asks_for_help(args: Sequence[str]) -> Literal["short", "all", ""]:
    """Whether a command line asks for help, and for which: `--help`, or `--help all`."""
    words = [*args, ""]
    place = next((number for number, word in enumerate(args) if word in ("-h", "--help")), None)
    if "--help=all" in args:
        return "all"
    return "" if place is None else "all" if words[place + 1] == "all" else "short"


def short_help(command: str) -> str:
    """The help of fit, validate or test."""
    about = TRAINER_COMMANDS[command].partition(":")[0]
    options = [*OPTIONS[command], *EVERYWHERE]
    recipe = (
        "RECIPE is a name (`zoo list`) or a YAML file; later ones change earlier ones. "
        if command == "fit"
        else "A run brings its recipe. "
    )
    return "\n".join(
        [
            f"usage: zoo {command} [RECIPE ...] [options]",
            "",
            f"{about[0].upper()}{about[1:]}. {recipe}Options change both.",
            "",
            *(f"  {example}" for example in EXAMPLES[command]),
            "",
            *aligned(options),
        ]
    )


def aligned(rows: list[tuple[str, str]]) -> list[str]:
    """Names and what they mean, in two columns."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    return [f"  {name:<{width}}{about}".rstrip() for name, about in rows]
