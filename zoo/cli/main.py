"""The command line: finds the command, imports only what it needs, turns errors into one line and an exit code.

The Trainer's commands (fit, validate, test) are in `zoo.cli.trainer`, which imports Lightning; the tools are found by
`zoo.cli.tools`. Help needs neither.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import zoo
from zoo.cli.help_text import TRAINER_COMMANDS, aligned, asks_for_help, short_help
from zoo.cli.log_filters import filter_warnings, printable
from zoo.cli.options import take_option
from zoo.cli.recipes import read_files, replace_recipe_names
from zoo.cli.tools import find_tools, run_tool, without_collector
from zoo.common.environment import VERBOSITY_VARIABLE
from zoo.common.registry import allow_packages

TRACEBACK_VARIABLE = "ZOO_TRACEBACK"
FIRST_GROUP = "training and inference"  # of the help


def entry() -> None:
    """Console script; a reader of its output, such as `head`, may exit first."""
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
    verbosity = os.environ.get(VERBOSITY_VARIABLE)
    try:
        return _run(list(sys.argv[1:] if args is None else args))
    finally:
        os.environ.pop(VERBOSITY_VARIABLE, None)
        if verbosity is not None:
            os.environ[VERBOSITY_VARIABLE] = verbosity


def _run(arguments: list[str]) -> int:
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
        allow_packages(packages)
        if command in TRAINER_COMMANDS:
            if asks_for_help(rest) == "short":
                print(short_help(command))
                return 0
            rest = replace_recipe_names(rest)
            read_files(rest)  # a wrong file or section is answered before torch is imported
            with without_collector():
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
    """Whether standard output is a closed pipe."""
    if sys.platform == "win32":
        return False
    import select

    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in watch.poll(0))


def _take_verbosity(arguments: list[str]) -> list[str]:
    """Remove `-q` and `-v`, and set the environment variable that this process and its children read."""
    for level, options in {"quiet": ("-q", "--quiet"), "verbose": ("-v", "--verbose")}.items():
        if any(option in arguments for option in options):
            os.environ[VERBOSITY_VARIABLE] = level
            arguments = [argument for argument in arguments if argument not in options]
    return arguments


def overview() -> str:
    """The help of `zoo` itself."""
    groups: dict[str, list[tuple[str, str]]] = {FIRST_GROUP: list(TRAINER_COMMANDS.items())}
    for name, tool in find_tools().items():
        group = name.partition(" ")[2] or tool.package.replace("cli", "runs, files and this machine")
        groups.setdefault(FIRST_GROUP if name == "predict" else group, []).append((name, tool.summary))
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
        from zoo.training.errors import explain_error

        message = explain_error(error, {})
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
