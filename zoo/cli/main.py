"""The command line: finds the command, imports only what it needs, turns errors into one line and an exit code.

The Trainer's commands (fit, validate, test) are in `zoo.cli.trainer`, which imports Lightning; the tools are
one function a file in `zoo/cli/commands/` and, for one system alone, those that the table in `zoo/<system>/commands.py`
names. Help needs neither: tables and summaries are read from the sources.
"""

from __future__ import annotations

import ast
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import zoo
from zoo.cli.check import check_part, check_tool, check_trainer_command, dotted_apart, fit_apart
from zoo.cli.helps import TRAINER_COMMANDS, aligned, asks_for_help, short_help
from zoo.cli.lazy_imports import collector_off, put_off_imports
from zoo.cli.names import near, recipes_named
from zoo.cli.quiet import filter_warnings, printable
from zoo.common.hardware import process_rank
from zoo.common.locks import locked_arguments
from zoo.common.options import VERBOSITY_VARIABLE, files_first, take_option, with_values
from zoo.common.registry import admit

HERE = Path(__file__).parent
PER_SYSTEM = ("evaluate",)  # tools that several systems have, called as `zoo evaluate SYSTEM`
RANKS = ("rank", "world_size")  # arguments of a tool that follow from how its process was started
FIT = "fit"  # `*fit` of a tool: recipe, fragments and flags of `zoo fit`
MODEL_OPTIONS = "model_options"  # `*model_options` of a tool: `--model.KEY VALUE` of the model that it loads
TRACEBACK_VARIABLE = "ZOO_TRACEBACK"
FIRST_GROUP = "training and inference"  # of the help


def entry() -> None:
    """Console script; who reads its output, such as `head`, may leave before the end."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        code = 141
    sys.exit(code)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        args: the command and its arguments; the process's own when None.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by a signal.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    packages, arguments = take_option(arguments, "--allow-import")
    arguments = _take_verbosity(arguments)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help", "help"):
        print(overview())
        return 0
    if command == "--version":
        print(f"zoo {zoo.__version__}")
        return 0
    try:
        filter_warnings()
        admit(packages)
        if command in TRAINER_COMMANDS:
            if asks_for_help(rest) == "short":
                print(short_help(command))
                return 0
            rest = recipes_named(rest)
            check_trainer_command(rest)
            put_off_imports()
            with collector_off():
                from zoo.cli.trainer import run
            return run(command, rest)
        return run_tool(command, rest)
    except SystemExit as stop:  # a signal's exit code, or argparse's
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else _fail(str(stop.code)))
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            raise
        return _report(error)


def _reader_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    if sys.platform == "win32":
        return False
    import select

    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in watch.poll(0))


def _take_verbosity(arguments: list[str]) -> list[str]:
    """Take `-q` and `-v` out; whoever prints reads them from the environment, also in processes of this one."""
    for level, options in {"quiet": ("-q", "--quiet"), "verbose": ("-v", "--verbose")}.items():
        if any(option in arguments for option in options):
            os.environ[VERBOSITY_VARIABLE] = level
            arguments = [argument for argument in arguments if argument not in options]
    return arguments


def run_tool(command: str, args: list[str]) -> int:
    """Parse the arguments of a tool's function and call it."""
    tools = find_tools()
    if args and f"{command} {args[0]}" in tools:
        command, args = f"{command} {args[0]}", args[1:]
    if command not in tools:
        of_systems = [name for name in tools if name.startswith(f"{command} ")]
        known = of_systems or [*TRAINER_COMMANDS, *tools]
        given = " ".join([command, *args[:1]]) if of_systems else command
        return _fail(f"no command {given!r}{near(given, known)} (commands: {', '.join(known)})", code=2)
    apart: list[str] = []  # what the tool gets as it is written
    if parameter_help(tools[command], FIT):
        args, apart = fit_apart(tools[command], args)
    elif parameter_help(tools[command], MODEL_OPTIONS):
        args, apart = dotted_apart(args)
    check_tool(command, tools[command], (*RANKS, "progress"), args)
    put_off_imports()
    module, _, name = tools[command].partition(":")
    with collector_off():
        function = getattr(importlib.import_module(module), name)
        for option, slot in get_type_hints(function).items():
            check_part(command, option, slot, args)
    positional = getattr(function, "positional", True)
    parameters = signature(function).parameters
    ranks = {key: value for key, value in zip(RANKS, process_rank(), strict=True) if key in parameters}
    many = [name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_POSITIONAL]
    flags = [name for name, parameter in parameters.items() if parameter.annotation in (bool, "bool")]

    from zoo.cli.parsing import OneLineParser

    parser = OneLineParser(prog=f"zoo {command}", description=summary(tools[command]))
    for name in many:
        parser.add_argument(name, nargs="*", type=str, default=[], help=parameter_help(tools[command], name))
    parser.add_function_arguments(function, as_positional=positional, fail_untyped=True, skip={*RANKS, "progress"})
    values = dict(parser.instantiate(parser.parse_args(files_first(with_values(args, flags)))))
    _find_models(values, getattr(function, "writes_into", ()))
    several = [*apart, *(value for name in many for value in values.pop(name))]
    if process_rank()[0] > 0 and not ranks and not getattr(function, "shared", True):
        print(f"zoo {command}: does its work in the first of several processes", file=sys.stderr)
        return 0
    with locked_arguments(function, values, command):
        result = function(*several, **values, **ranks)
    if isinstance(result, Mapping):
        place = values.get((*getattr(function, "writes_into", ()), "output")[0])
        return _show_counts(result, place)
    return result if isinstance(result, int) else 0


def _find_models(values: dict[str, Any], written: Sequence[str]) -> None:
    """Put folders in the place of names in a tool's arguments: `hf://user/name` of a hub, `last` of the newest run."""
    for name, value in values.items():
        if not isinstance(value, Path):
            continue
        target = name in (*written, "output", "target")
        if value.as_posix().startswith("hf:/"):
            from zoo.runs.hub.names import local, parsed

            if target:
                raise ValueError(f"{parsed(value)} is on a hub: `zoo push` writes there")
            values[name] = local(value)
        elif value == Path("last") and not target and not value.exists():
            values[name] = _newest_run()


def _newest_run() -> Path:
    from zoo.runs.folder import RUNS_ROOT, newest_run

    newest = newest_run(RUNS_ROOT)
    if newest is None:
        raise FileNotFoundError(f"last: no run with a checkpoint below {RUNS_ROOT}")
    print(f"last is {newest}", file=sys.stderr)
    return newest


def _show_counts(counts: Mapping[str, Any], place: Any) -> int:
    """Print what a tool has counted (other results it has shown itself); 1 where something failed."""
    missing = counts.get("missing")
    if counts.keys() != {"missing"} and all(isinstance(value, int | float | list) for value in counts.values()):
        print(f"{place}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    if missing:
        print(f"{missing} parts are missing: the other processes, or the same command again, make them")
    return int(bool(counts.get("failed")))


def find_tools() -> dict[str, str]:
    """All tools: command name -> "module:function", read from the sources without importing them."""
    tools = {
        file.stem.replace("_", "-"): f"zoo.cli.commands.{file.stem}:main"
        for file in sorted((HERE / "commands").glob("[!_]*.py"))
    }
    for file in sorted(HERE.parent.glob("*/commands.py")):
        table = next(node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign))
        for name, function in ast.literal_eval(table.value).items():
            tools[f"{name} {file.parent.name}" if name in PER_SYSTEM else name.replace("_", "-")] = function
    return tools


def summary(tool: str) -> str:
    """The first line of the docstring of a function "module:function", which is not imported."""
    return docstring(tool).partition("\n")[0]


def parameter_help(tool: str, parameter: str) -> str:
    """What the docstring of a function "module:function" says of a parameter in its first line."""
    found = re.search(rf"^ *\*?{parameter}: (.*)", docstring(tool), re.MULTILINE)
    return found[1] if found else ""


def docstring(tool: str) -> str:
    """The docstring of a function "module:function", as it stands in its source."""
    module, _, name = tool.partition(":")
    file = HERE.parents[1].joinpath(*module.split(".")).with_suffix(".py")
    function = file.read_text(encoding="utf-8").partition(f"\ndef {name}(")[2]
    return function.partition('"""')[2].partition('"""')[0]


def overview() -> str:
    """The help of `zoo` itself."""
    groups: dict[str, list[tuple[str, str]]] = {FIRST_GROUP: list(TRAINER_COMMANDS.items())}
    for name, tool in find_tools().items():
        group = name.partition(" ")[2] or tool.split(".")[1].replace("cli", "runs, files and this machine")
        group = FIRST_GROUP if name == "predict" else group
        groups.setdefault(group, []).append((name, summary(tool)))
    width = max(len(name) for rows in groups.values() for name, _ in rows)
    lines = ["usage: zoo COMMAND [options]   (zoo COMMAND --help tells a command's options)"]
    for title, rows in groups.items():
        lines += ["", f"{title}:", *aligned([(f"{name:<{width}}", about) for name, about in rows])]
    lines += [
        "",
        "--allow-import PACKAGE (repeatable) admits classes of your own package in configs and lists its systems.",
        f"{TRACEBACK_VARIABLE}=1 shows the traceback of an error.",
    ]
    return "\n".join(lines)


def _report(error: Exception) -> int:
    """Print one line for an error that the user can mend, the traceback for one that only we can."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    message = None
    if "torch" in sys.modules:
        from zoo.training.errors import explain

        message = explain(error, {})
    if message is None and isinstance(error, (ValueError, OSError, ImportError)):
        message = str(error) or type(error).__name__
    if message is None and isinstance(error, RecursionError):
        return _fail(f"a file or an option nests too deeply ({error}); {TRACEBACK_VARIABLE}=1 shows where", code=2)
    if message is None:
        traceback.print_exception(error)
        message = f"{type(error).__name__}: {error}"
    logging.getLogger(__name__).debug("failed", exc_info=error)
    return _fail(message, code=getattr(error, "exit_code", 1))


def _fail(message: str, code: int = 1) -> int:
    print(f"zoo: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
