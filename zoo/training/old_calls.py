"""Calls of the original projects' scripts in the words of `zoo`: what every translator of them needs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Call:
    """An old call in our words.

    Args:
        command: arguments of `zoo`.
        notes: what has no counterpart or means something else here, a line each.
    """

    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def command(
    translate: Callable[[Sequence[str], Mapping[str, str]], Call], arguments: Sequence[str] | None = None
) -> list[str]:
    """Translate the call of an old script, telling on the first process what it means here.

    Args:
        translate: makes a call of the script's arguments and the environment.
        arguments: of the script; the process's when None.

    Returns:
        Arguments of `zoo`. A faulty call ends the process with code 2 and one line.
    """
    try:
        call = translate(sys.argv[1:] if arguments is None else arguments, os.environ)
    except (ValueError, FileNotFoundError) as error:
        print(f"zoo: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        print("the same here:", shlex.join(["python", "-m", "zoo", *call.command]), file=sys.stderr)
        for note in call.notes:
            print("note:", note, file=sys.stderr)
    return call.command


def processes(environment: Mapping[str, str]) -> tuple[int, int]:
    """How many processes torchrun or accelerate has started on each node, and on how many nodes.

    WORLD_SIZE would not do: Lightning sets it for processes that it starts itself, after it has chosen a strategy.
    """
    return int(environment.get("LOCAL_WORLD_SIZE", "1")), int(environment.get("GROUP_WORLD_SIZE", "1"))


def is_on_cpu(environment: Mapping[str, str]) -> bool:
    """Whether `accelerate launch --cpu` has started this process."""
    return is_true(environment.get("ACCELERATE_USE_CPU", ""))


def is_true(value: str) -> bool:
    """Whether a text means yes."""
    return value.lower() in ("true", "1", "yes")


def shown(path: Path) -> str:
    """A path for people and command lines: relative to the working directory where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
