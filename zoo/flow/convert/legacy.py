"""The command of the lineage, `train.py --use_cfg --batch_size 32 ...`, in the words of ours."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from zoo.common.options import take_option
from zoo.common.systems import recipe_root
from zoo.convert import old_calls
from zoo.convert.old_calls import PRECISIONS, Call, shown
from zoo.flow.convert.recipe import FLAGS, WITHOUT_COUNTERPART, options, recipe_path


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """Translate a call of the old script, see `zoo.convert.old_calls.command`."""
    return old_calls.command(translate, arguments)


def translate(arguments: Sequence[str], environment: Mapping[str, str]) -> Call:
    """Translate the lineage's flags; options of `zoo fit` are passed on.

    A `--config` among them takes the place of `base_parity`, whose values stand where a flag is not given. The
    environment is a launcher's.
    """
    recipes, others = take_option(list(arguments), "--config")
    known, rest = _parser().parse_known_args(others)
    given = {flag: value for flag, value in vars(known).items() if value is not None}
    call = Call()
    for flag in sorted(given.keys() & WITHOUT_COUNTERPART.keys()):
        call.notes.append(f"no counterpart: --{flag} {given.pop(flag)}: {WITHOUT_COUNTERPART[flag]}")
    if not given["use_cfg"]:
        call.notes.append("without --use_cfg the net has no classes, and sampling no guidance")
    found = options(given, "train_flow.py")
    started = old_calls.processes(environment)
    found |= {"trainer.devices": started[0], "trainer.num_nodes": started[1]}  # one process a device
    if old_calls.is_on_cpu(environment):
        found["trainer.accelerator"] = "cpu"
        if known.mixed_precision == "fp16":
            found["trainer.precision"] = PRECISIONS["no"]  # fp16 needs a GPU; the lineage ran in fp32 here as well
    configs = recipes or [shown(recipe_path())]
    if max(started) > 1:
        configs.append(shown(recipe_root() / "trainer" / "ddp.yaml"))
    call.command = ["fit", *(part for config in configs for part in ("--config", config))]
    call.command += [f"--{option}={_text(value)}" for option, value in found.items()]
    call.command += rest
    return call


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="train_flow.py",
        description="Train as the lineage's train.py does; options of `zoo fit` may be mixed in.",
        allow_abbrev=False,
    )
    for flag, setting in FLAGS.items():
        usual = setting.default
        if isinstance(usual, bool):
            parser.add_argument(f"--{flag}", action="store_true", help="train and sample with classes")
        else:
            parser.add_argument(f"--{flag}", metavar=type(usual).__name__.upper(), help=f"default {usual}")
    for flag, hint in WITHOUT_COUNTERPART.items():
        parser.add_argument(f"--{flag}", help=f"not used: {hint}")
    return parser


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
