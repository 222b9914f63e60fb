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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

from zoo.cli.help_text import TRAINER_COMMANDS
from zoo.cli.options import files_first, with_values
from zoo.cli.recipes import CLASSES, GROUPS, VALUES, WrongNameError, nearest_names, shorten_list, split_arguments
from zoo.common import registry
from zoo.common.environment import process_rank
from zoo.common.locks import lock_arguments

HERE = Path(__file__).parent
PER_SYSTEM = ("evaluate",)  # tools that several systems have, called as `zoo evaluate SYSTEM`
RANKS = ("rank", "world_size")  # arguments of a tool that follow from how its process was started
NO_OPTIONS = (*RANKS, "progress")
FIT_OPTIONS = (*GROUPS, *CLASSES, *VALUES, "config", "c")


class Tool(NamedTuple):
    """A command.

    Args:
        package: that lists it, `flow`.
        place: "module:function".
        summary: the first line of its docstring.
    """

    package: str
    place: str
    summary: str

    def load(self) -> Any:
        """Import the function."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)


def find_tools() -> dict[str, Tool]:
    """All tools by the name that one types, `sample` or `evaluate flow`."""
    tools = {}
    files = [HERE / "commands" / "__init__.py", *sorted(HERE.parent.glob("*/commands.py"))]
    for file in files:
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
        requested = " ".join([command, *args[:1]]) if of_systems else command
        raise WrongNameError(
            f"no command {requested!r}{nearest_names(requested, candidates)} (commands: {', '.join(candidates)})"
        )
    tool = tools[command]
    with without_collector():
        function = tool.load()
    parameters = inspect.signature(function).parameters
    many = next((name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL), None)
    hints = get_type_hints(function)
    own_args, rest = (args, []) if many is None else split_options(args, hints)
    check_options(command, [name for name in parameters if name != many], own_args)
    for option, slot in hints.items():
        check_class(command, option, slot, own_args)

    from zoo.cli.parser import OneLineParser

    parser = OneLineParser(prog=f"zoo {command}", description=tool.summary)
    if many is not None:
        parser.add_argument(many, nargs="*", type=str, default=[], help=parameter_help(function, many))
    positional = getattr(function, "positional", True)
    parser.add_function_arguments(function, as_positional=positional, fail_untyped=True, skip=set(NO_OPTIONS))
    flags = [name for name, hint in hints.items() if hint is bool]
    values = dict(parser.instantiate(parser.parse_args(files_first(with_values(own_args, flags)))))
    if many is not None:
        values.pop(many)
    find_models(values, getattr(function, "writes_into", ()))
    ranks = {key: value for key, value in zip(RANKS, process_rank(), strict=True) if key in parameters}
    if process_rank()[0] > 0 and not ranks and not getattr(function, "shared", True):
        print(f"zoo {command}: does its work in the first of several processes", file=sys.stderr)
        return 0
    with lock_arguments(function, values, command):
        result = function(*rest, **values, **ranks)
    if isinstance(result, Mapping):
        place = values.get((*getattr(function, "writes_into", ()), "output")[0])
        return show_counts(result, place)
    return result if isinstance(result, int) else 0


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Import without the garbage collector, which would go through all that imports make again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def split_options(args: Sequence[str], hints: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Split off the arguments that a tool passes on: words, config keys, options with a dot.

    A repeated option of the tool becomes a list.

    Args:
        hints: types of the tool's options.
    """
    own_args: list[str] = []
    rest: list[str] = []
    lists: dict[str, list[str]] = {}
    for option, value, joined in split_arguments(
        with_values(list(args), [name for name in hints if hints[name] is bool])
    ):
        name = option.lstrip("-").replace("-", "_")
        if option and get_origin(hints.get(name)) is list and value is not None:
            lists.setdefault(option, []).append(value)
            continue
        words = [f"{option}={value}"] if joined else [word for word in (option, value) if word]
        is_passed = not option or "." in name or (name in FIT_OPTIONS and name not in hints)
        (rest if is_passed else own_args).extend(words)
    return [*own_args, *(f"{option}={json.dumps(values)}" for option, values in lists.items())], rest


def check_options(command: str, parameters: Iterable[str], args: Sequence[str]) -> None:
    """Refuse an option that a tool has not.

    Raises:
        WrongNameError: with the nearest.
    """
    options = [f"--{name}" for name in parameters if name not in NO_OPTIONS] + ["--help", "-h"]
    for option, _, _ in split_arguments(args):
        if option.startswith("--") and option.partition(".")[0].rstrip("+") not in options:
            raise WrongNameError(
                f"{command} has no option {option}{nearest_names(option, options)} (options: {shorten_list(options)})"
            )


def check_class(command: str, option: str, slot: Any, args: Sequence[str]) -> None:
    """Check the class that an option names, by its public or short name; see `registry.load_beside`.

    Raises:
        WrongNameError: for a name that no class in this slot has, with the nearest.
    """
    candidates = registry.import_candidates(slot)
    for requested, value, _ in split_arguments(args):
        if not value or requested != f"--{option}" or not re.fullmatch(r"[A-Z]\w*|zoo\.[\w.]+", value):
            continue
        names = candidates if "." in value else [each.rpartition(".")[2] for each in candidates]
        if candidates and not registry.allowed_packages() and value not in names:
            message = f"no class {value} fits here{nearest_names(value, names)} (classes: {shorten_list(names)})"
            raise WrongNameError(f"{command} {requested}: {message}")


def parameter_help(function: Any, parameter: str) -> str:
    """What the docstring of a function says of a parameter in its first line."""
    match = re.search(rf"^ *\*?{parameter}: (.*)", function.__doc__ or "", re.MULTILINE)
    return match[1] if match else ""


def find_models(values: dict[str, Any], written: Sequence[str]) -> None:
    """Replace names in a tool's arguments by folders: `hf://user/name` of a hub, `last` for the newest run."""
    for name, value in values.items():
        if not isinstance(value, Path):
            continue
        target = name in (*written, "output", "target")
        if value.as_posix().startswith("hf:/"):
            from zoo.runs.hub.models import parse_hub_name, resolve_path

            if target:
                raise ValueError(f"{parse_hub_name(value)} is on a hub: `zoo push` writes there")
            values[name] = resolve_path(value)
        elif value == Path("last") and not target and not value.exists():
            values[name] = newest_run()


def newest_run() -> Path:
    """Find the newest run with a checkpoint and print its name."""
    from zoo.runs import folder

    newest = folder.newest_run(folder.RUNS_ROOT)
    if newest is None:
        raise FileNotFoundError(f"last: no run with a checkpoint below {folder.RUNS_ROOT}")
    print(f"last is {newest}", file=sys.stderr)
    return newest


def show_counts(counts: Mapping[str, Any], place: Any) -> int:
    """Print what a tool has counted (other results it has shown itself); 1 where something failed."""
    missing = counts.get("missing")
    if counts.keys() != {"missing"} and all(isinstance(value, int | float | list) for value in counts.values()):
        print(f"{place}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    if missing:
        print(f"{missing} parts are missing: the other processes, or the same command again, make them")
    return int(bool(counts.get("failed")))
