"""The command line: finds the command, imports only what it needs, turns errors into one line and an exit code.

The Trainer's commands (fit, validate, test, predict) are in `zoo.cli.trainer`, which imports Lightning; the tools are
one function a file in `zoo/cli/commands/` and, for one system alone, in `zoo/<system>/commands.py`. Help needs neither:
summaries are read from the sources.
"""

from __future__ import annotations

import ast
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import zoo
from zoo.common.locks import locked_arguments
from zoo.common.options import files_first, take_option
from zoo.common.registry import admit

HERE = Path(__file__).parent
TRAINER_COMMANDS = {
    "fit": "train a recipe, or go on with a run: fit --config RECIPE | fit --ckpt_path last|RUN|FILE",
    "validate": "evaluate a checkpoint on the validation set: validate --ckpt_path RUN",
    "test": "evaluate a checkpoint on the test set: test --ckpt_path RUN",
    "predict": "run a checkpoint on files: predict --ckpt_path RUN --input PATH --output DIR",
}
PER_SYSTEM = ("evaluate",)  # tools that several systems have, called as `zoo evaluate SYSTEM`
TRACEBACK_VARIABLE = "ZOO_TRACEBACK"


def entry() -> None:
    """Console script."""
    sys.exit(main())


def main(args: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        args: the command and its arguments; the process's own when None.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by a signal.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    packages, arguments = take_option(arguments, "--allow-import")
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help", "help"):
        print(overview())
        return 0
    if command == "--version":
        print(f"zoo {zoo.__version__}")
        return 0
    try:
        admit(packages)
        if command in TRAINER_COMMANDS:
            from zoo.cli.trainer import run

            return run(command, rest)
        return run_tool(command, rest)
    except SystemExit as stop:  # a signal's exit code, or argparse's
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else _fail(str(stop.code)))
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)
    except Exception as error:
        return _report(error)


def run_tool(command: str, args: list[str]) -> int:
    """Parse the arguments of a tool's function and call it."""
    tools = find_tools()
    if args and f"{command} {args[0]}" in tools:
        command, args = f"{command} {args[0]}", args[1:]
    if command not in tools:
        known = ", ".join([name for name in tools if name.startswith(f"{command} ")] or [*TRAINER_COMMANDS, *tools])
        return _fail(f"no command {' '.join([command, *args[:1]])!r}; commands: {known}", code=2)
    module, function_name, summary = tools[command]
    function = getattr(importlib.import_module(module), function_name)

    from zoo.cli.parsing import OneLineParser

    parser = OneLineParser(prog=f"zoo {command}", description=summary)
    parser.add_function_arguments(function, as_positional=True, fail_untyped=True)
    values = dict(parser.instantiate_classes(parser.parse_args(files_first(args))))
    with locked_arguments(function, values, command):
        result = function(**values)
    return result if isinstance(result, int) else 0


def find_tools() -> dict[str, tuple[str, str, str]]:
    """All tools: command name -> (module, function, summary), read from the sources without importing them."""
    tools: dict[str, tuple[str, str, str]] = {}
    for file in sorted((HERE / "commands").glob("[!_]*.py")):
        summary = _functions(file).get("main", "")
        tools[file.stem.replace("_", "-")] = (f"zoo.cli.commands.{file.stem}", "main", summary)
    for file in sorted(HERE.parent.glob("*/commands.py")):
        for name, summary in _functions(file).items():
            command = f"{name} {file.parent.name}" if name in PER_SYSTEM else name.replace("_", "-")
            tools[command] = (f"zoo.{file.parent.name}.commands", name, summary)
    return tools


def _functions(file: Path) -> dict[str, str]:
    """The public functions of a source file with the first lines of their docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return {node.name: (ast.get_docstring(node) or "").split("\n")[0] for node in public}


def overview() -> str:
    """The help of `zoo` itself."""
    tools = {name: summary for name, (_, _, summary) in find_tools().items()}
    width = max(map(len, [*TRAINER_COMMANDS, *tools])) + 2
    lines = ["usage: zoo COMMAND [options]   (zoo COMMAND --help tells a command's options)", ""]
    for title, group in (("training and inference", TRAINER_COMMANDS), ("tools", tools)):
        lines += [f"{title}:", *(f"  {name:<{width}}{summary}" for name, summary in group.items()), ""]
    lines.append(
        "--allow-import PACKAGE (repeatable) admits classes of your own package in configs and lists its systems."
    )
    lines.append(f"{TRACEBACK_VARIABLE}=1 shows the traceback of an error.")
    return "\n".join(lines)


def _report(error: Exception) -> int:
    """Print one line for an error that the user can mend, the traceback for one that only we can."""
    from zoo.training.errors import explain

    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    message = explain(error, {})
    if message is None and isinstance(error, (ValueError, OSError, ImportError)):
        message = str(error) or type(error).__name__
    if message is None and isinstance(error, RecursionError):
        return _fail(f"a file or an option nests too deeply ({error}); {TRACEBACK_VARIABLE}=1 shows where", code=2)
    if message is None:
        traceback.print_exception(error)
        message = f"{type(error).__name__}: {error}"
    logging.getLogger(__name__).debug("failed", exc_info=error)
    return _fail(" ".join(message.split()), code=getattr(error, "exit_code", 1))


def _fail(message: str, code: int = 1) -> int:
    print(f"zoo: error: {message}", file=sys.stderr)
    return code
