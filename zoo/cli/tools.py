"""The tools: commands that are one function each, whose signature and docstring are their options and help.

Each package lists its tools in the table `COMMANDS` of `zoo/<package>/commands.py`; those of no system are in
`zoo/cli/commands`. A tool is imported when it is called.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

from zoo.cli.help_text import TRAINER_COMMANDS
from zoo.cli.recipes import SECTIONS, WrongNameError, join_option, nearest_names, shorten_list, split_arguments
from zoo.common import registry
from zoo.common.environment import process_rank
from zoo.common.locks import lock_arguments
from zoo.runs.run_folder import find_last_run

HERE = Path(__file__).parent
PER_SYSTEM = ("evaluate",)  # tools that several systems have, called as `zoo evaluate SYSTEM`
# commands of other tools, by what does it here
SYNONYMS = {
    "train": "fit RECIPE",
    "resume": "fit --ckpt_path RUN",
    "infer": "predict --ckpt_path RUN --input FILES --output FOLDER",
    "generate": "sample RUN FOLDER",
}
RANKS = ("rank", "world_size")  # arguments of a tool that follow from how its process was started
NO_OPTIONS: set[str | int] = {*RANKS, "progress"}
TRUTH_VALUES = ("true", "false", "yes", "no")


class Tool(NamedTuple):
    """A command."""

    package: str  # that lists it, `flow`
    path: str  # of its function, "module:function"
    summary: str  # first line of the function's docstring

    def load(self) -> Any:
        """Import the function."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)


def find_tools() -> dict[str, Tool]:
    """Find all tools by the name that one types, `sample` or `evaluate flow`."""
    tools = {}
    packages = [path.parent.name for path in sorted(HERE.parent.glob("*/commands.py"))]
    for package in [HERE.name, *packages]:
        for name, entry in importlib.import_module(f"zoo.{package}.commands").COMMANDS.items():
            tools[f"{name} {package}" if name in PER_SYSTEM else name] = Tool(package, *entry)
    return tools


def find_tool(command: str, args: Sequence[str]) -> tuple[str, Tool, list[str]]:
    """Find the tool of a command line; returns its full name, the tool and its arguments."""
    tools = find_tools()
    name, rest = (command, args) if command in tools else (" ".join([command, *args[:1]]), args[1:])
    if name in tools:
        return name, tools[name], list(rest)
    of_systems = [each for each in tools if each.startswith(f"{command} ")]
    name, candidates = (name, of_systems) if of_systems else (command, [*TRAINER_COMMANDS, *tools])
    if hint := SYNONYMS.get(command):
        raise WrongNameError(f"no command {name!r}: did you mean zoo {hint}?")
    known = ", ".join(candidates) if of_systems else "`zoo --help` lists them"
    raise WrongNameError(f"no command {name!r}{nearest_names(name, candidates)} (commands: {known})")


def run_tool(command: str, args: Sequence[str]) -> int:
    """Parse the arguments of a tool's function and call it; returns the exit code."""
    command, tool, args = find_tool(command, args)
    function = tool.load()
    gc.enable()
    words, values = parse_arguments(command, tool, function, args)
    folders = getattr(function, "writes_into", ())
    find_models(values, [*folders, "output", "target"])
    processes = dict(zip(RANKS, process_rank(), strict=True))
    ranks = {name: value for name, value in processes.items() if name in get_type_hints(function)}
    if processes["rank"] > 0 and not ranks and not getattr(function, "shared", True):
        print(f"zoo {command}: does its work in the first of several processes", file=sys.stderr)
        return 0
    with lock_arguments(function, values, command):
        result = function(*words, **values, **ranks)
    if not isinstance(result, Mapping):
        return result if isinstance(result, int) else 0
    if all(isinstance(value, int | float | list) for value in result.values()):  # others it has shown itself
        print(f"{values.get((*folders, 'output')[0])}: {', '.join(f'{key} {value}' for key, value in result.items())}")
    if result.get("missing"):
        print("parts are missing: the other processes, or the same command again, make them")
    return int(bool(result.get("failed")))


def parse_arguments(command: str, tool: Tool, function: Any, args: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Parse a tool's arguments by the types of its function; returns what it takes as `*args`, and its named ones.

    Raises WrongNameError for an option that it has not, with the nearest; RefusedError for a value of a wrong type.
    """
    import docstring_parser

    from zoo.cli.parser import OneLineParser, RefusedError

    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    for slot in hints.values():
        registry.import_candidates(slot)  # the parser knows the short names of classes that are imported
    starred = next((name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL), "")
    words, options = split_options(args, hints, bool(starred))
    parser = OneLineParser(prog=f"zoo {command}", description=tool.summary)
    if starred:
        about = next(each for each in docstring_parser.parse(function.__doc__).params if each.arg_name == f"*{starred}")
        parser.add_argument(starred, nargs="*", default=[], metavar=starred.upper(), help=about.description)
    positional = getattr(function, "positional", True)
    parser.add_function_arguments(function, as_positional=positional, fail_untyped=True, skip=NO_OPTIONS)
    try:
        values = dict(parser.instantiate(parser.parse_args(options)))
        values.pop(starred, None)
        return words, values
    except RefusedError as error:
        if match := re.match(r"the following arguments are required: (.*)", str(error)):
            missing = match[1] if positional else re.sub(r"\w+", r"--\g<0>", match[1])
            raise WrongNameError(f"{command} needs {missing} (zoo {command} --help)") from None
        if (match := re.match(r"unrecognized arguments: (--[\w-]+)", str(error))) is None:
            raise
        names = [f"--{name}" for name, each in parameters.items() if not positional or each.default is not each.empty]
        nearest = nearest_names(match[1], names)
        raise WrongNameError(f"{command} has no option {match[1]}{nearest} (options: {shorten_list(names)})") from None


def split_options(args: Sequence[str], hints: Mapping[str, Any], takes_words: bool) -> tuple[list[str], list[str]]:
    """Split off what a tool passes on, if it takes words: names of recipes, options of `zoo fit`.

    The tool's own options, by their types, are written in full: a switch has its value, a repeated one adds to a list.
    """
    words: list[str] = []
    own_args: list[str] = []
    for option, value in split_arguments(args):
        name = option.lstrip("-").replace("-", "_")
        if hints.get(name) is bool and (value is None or value.lower() not in TRUTH_VALUES):
            own_args.append(f"{option}=true")
            if value is None:
                continue
            option, name = "", ""  # the value is a word that follows a switch
        elif get_origin(hints.get(name)) is list and value and not value.startswith("["):
            option += "+"
        is_passed = name not in hints and (not option or name.partition(".")[0] in (*SECTIONS, "config", "c"))
        (words if takes_words and is_passed else own_args).append(join_option(option, value))
    return words, own_args


def find_models(values: dict[str, Any], targets: Sequence[str]) -> None:
    """Replace a tool's paths `hf://user/name` and `last` (newest run) by folders, those of targets excepted."""
    for name, value in values.items():
        if not isinstance(value, Path) or name in targets:
            continue
        if value.as_posix().startswith("hf:/"):
            from zoo.runs.hub.models import resolve_path

            values[name] = resolve_path(value)
        elif value == Path("last") and not value.exists():
            values[name] = find_last_run()
            print(f"last is {values[name]}", file=sys.stderr)
