"""The tools: commands that are one function each, whose signature and docstring are their options and help.

Each package lists its tools in the table `COMMANDS` of `zoo/<package>/commands.py`; those of no system are in
`zoo/cli/commands`. A tool is imported when it is called.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

from zoo.cli.help_text import TRAINER_COMMANDS
from zoo.cli.recipes import SECTIONS, WrongNameError, nearest_names, shorten_list, split_arguments
from zoo.common import registry
from zoo.common.environment import process_rank
from zoo.common.locks import lock_arguments

HERE = Path(__file__).parent
PER_SYSTEM = ("evaluate",)  # tools that several systems have, called as `zoo evaluate SYSTEM`
RANKS = ("rank", "world_size")  # arguments of a tool that follow from how its process was started
NO_OPTIONS: set[str | int] = {*RANKS, "progress"}
TRUTH_VALUES = ("true", "false", "yes", "no")


class Tool(NamedTuple):
    """A command.

    Args:
        package: that lists it, `flow`.
        path: of its function, "module:function".
        summary: the first line of its docstring.
    """

    package: str
    path: str
    summary: str

    def load(self) -> Any:
        """Import the function."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)


def find_tools() -> dict[str, Tool]:
    """Find all tools by the name that one types, `sample` or `evaluate flow`."""
    tools = {}
    for file in [HERE / "commands" / "__init__.py", *sorted(HERE.parent.glob("*/commands.py"))]:
        module = ".".join(["zoo", *file.relative_to(HERE.parent).with_suffix("").parts]).removesuffix(".__init__")
        package = module.split(".")[1]
        for name, entry in importlib.import_module(module).COMMANDS.items():
            tools[f"{name} {package}" if name in PER_SYSTEM else name] = Tool(package, *entry)
    return tools


def run_tool(command: str, args: list[str]) -> int:
    """Parse the arguments of a tool's function and call it.

    Returns:
        The exit code.

    Raises:
        WrongNameError: for a command or an option that there is not, with the nearest.
    """
    tools = find_tools()
    if args and f"{command} {args[0]}" in tools:
        command, args = f"{command} {args[0]}", args[1:]
    if command not in tools:
        of_systems = [name for name in tools if name.startswith(f"{command} ")]
        candidates = of_systems or [*TRAINER_COMMANDS, *tools]
        name = " ".join([command, *args[:1]]) if of_systems else command
        raise WrongNameError(
            f"no command {name!r}{nearest_names(name, candidates)} (commands: {', '.join(candidates)})"
        )
    with without_collector():
        function = tools[command].load()
    words, values = parse_arguments(command, tools[command], function, args)
    folders = getattr(function, "writes_into", ())
    find_models(values, [*folders, "output", "target"])
    rank, world_size = process_rank()
    ranks = {
        key: value for key, value in zip(RANKS, (rank, world_size), strict=True) if key in get_type_hints(function)
    }
    if rank > 0 and not ranks and not getattr(function, "shared", True):
        print(f"zoo {command}: does its work in the first of several processes", file=sys.stderr)
        return 0
    with lock_arguments(function, values, command):
        result = function(*words, **values, **ranks)
    if isinstance(result, Mapping):
        return show_counts(result, values.get((*folders, "output")[0]))
    return result if isinstance(result, int) else 0


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Import without the garbage collector, which would go through all that imports make again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parse_arguments(command: str, tool: Tool, function: Any, args: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Parse the arguments of a tool by the types of its function.

    Returns:
        What it takes as `*args`, unparsed, and its named arguments.

    Raises:
        WrongNameError: for an option that it has not, with the nearest.
        RefusedError: for a value of a wrong type.
    """
    from zoo.cli.parser import OneLineParser, RefusedError

    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    for slot in hints.values():
        registry.import_candidates(slot)  # the parser knows the short names of classes that are imported
    takes_words = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    words, options = split_options(args, hints, takes_words)
    parser = OneLineParser(prog=f"zoo {command}", description=tool.summary)
    positional = getattr(function, "positional", True)
    parser.add_function_arguments(function, as_positional=positional, fail_untyped=True, skip=NO_OPTIONS)
    try:
        return words, dict(parser.instantiate(parser.parse_args(options)))
    except RefusedError as error:
        match = re.match(r"unrecognized arguments: (--[\w-]+)", error.message)
        if match is None:
            raise
        names = [f"--{name}" for name, each in parameters.items() if not positional or each.default is not each.empty]
        raise WrongNameError(
            f"{command} has no option {match[1]}{nearest_names(match[1], names)} (options: {shorten_list(names)})"
        ) from None


def split_options(args: Sequence[str], hints: Mapping[str, Any], takes_words: bool) -> tuple[list[str], list[str]]:
    """Split off what a tool passes on (words, options of `zoo fit`), and write its own options in full.

    Args:
        args: the tool's arguments.
        hints: types of the tool's options.
        takes_words: whether it passes on arguments.

    Returns:
        The arguments that are passed on; and the tool's: a switch has its value, a repeated option is a list.
    """
    words: list[str] = []
    own_args: list[str] = []
    lists: dict[str, list[str]] = {}
    for option, value in split_arguments(args):
        name = option.lstrip("-").replace("-", "_")
        hint = hints.get(name)
        texts = [option] if value is None else [f"{option}={value}" if option else value]
        if hint is bool and (value is None or value.lower() not in TRUTH_VALUES):
            own_args.append(f"{option}=true")
            option, texts, hint = "", [] if value is None else [value], None
        if takes_words and hint is None and (not option or name.partition(".")[0] in (*SECTIONS, "config", "c")):
            words += texts
        elif get_origin(hint) is list and value is not None and not value.startswith("["):
            lists.setdefault(option, []).append(value)
        else:
            own_args += texts
    return words, [*own_args, *(f"{option}={json.dumps(values)}" for option, values in lists.items())]


def find_models(values: dict[str, Any], targets: Sequence[str]) -> None:
    """Replace names in a tool's arguments by folders: `hf://user/name` of a hub, `last` for the newest run.

    Args:
        values: the arguments.
        targets: names of those that are written to.
    """
    for name, value in values.items():
        if not isinstance(value, Path):
            continue
        if value.as_posix().startswith("hf:/"):
            from zoo.runs.hub.models import parse_hub_name, resolve_path

            if name in targets:
                raise ValueError(f"{parse_hub_name(value)} is on a hub: `zoo push` writes there")
            values[name] = resolve_path(value)
        elif value == Path("last") and name not in targets and not value.exists():
            from zoo.runs import folder

            values[name] = newest = folder.newest_run(folder.RUNS_ROOT)
            if newest is None:
                raise FileNotFoundError(f"last: no run with a checkpoint below {folder.RUNS_ROOT}")
            print(f"last is {newest}", file=sys.stderr)


def show_counts(counts: Mapping[str, Any], folder: Any) -> int:
    """Print what a tool has counted (other results it has shown itself); 1 where something failed."""
    missing = counts.get("missing")
    if counts.keys() != {"missing"} and all(isinstance(value, int | float | list) for value in counts.values()):
        print(f"{folder}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    if missing:
        print(f"{missing} parts are missing: the other processes, or the same command again, make them")
    return int(bool(counts.get("failed")))
