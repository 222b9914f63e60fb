"""The command line: finds the command, imports only what it needs, turns errors into one line and an exit code.

The Trainer's commands (fit, validate, test) are in `zoo.cli.trainer`, which imports Lightning; the tools are found by
`zoo.cli.tools`. Help needs neither.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Sequence

import zoo
from zoo.cli.help_text import TRAINER_COMMANDS, align_rows, short_help
from zoo.cli.log_filters import filter_warnings, printable
from zoo.cli.recipes import read_files, take_option
from zoo.cli.tools import find_tools, run_tool
from zoo.common.environment import VERBOSITY_VARIABLE
from zoo.common.registry import allow_packages
from zoo.training.errors import explain_error

TRACEBACK_VARIABLE = "ZOO_TRACEBACK"
FIRST_GROUP = "training and inference"  # of the help


def entry() -> None:
    """Console script; a reader of its output, such as `head`, may exit first."""
    gc.disable()  # until the command is imported: the collector would go through all that imports make, again and again
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        code = 141
    sys.exit(code)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command with its arguments, those of the process when None.

    Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by a signal. Raises BrokenPipeError when
    the reader of standard output has left.
    """
    verbosity = os.environ.get(VERBOSITY_VARIABLE)
    try:
        packages, arguments = take_option(list(sys.argv[1:] if args is None else args), "--allow-import")
        for level, options in {"quiet": ("-q", "--quiet"), "verbose": ("-v", "--verbose")}.items():
            if any(option in arguments for option in options):
                os.environ[VERBOSITY_VARIABLE] = level  # this process and its children read it
                arguments = [argument for argument in arguments if argument not in options]
        filter_warnings()
        allow_packages(packages)
        if packages and os.getcwd() not in sys.path:  # the console script's path begins at itself
            sys.path.append(os.getcwd())  # last: a file there stands for no installed package
        return run_command(*(arguments or ["--help"]))
    except SystemExit as stop:  # a signal's exit code, or a parser's
        code = stop.code or 0
        return code if isinstance(code, int) else _fail(code, getattr(stop, "exit_code", 1))
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)
    except BrokenPipeError as error:
        print(flush=True)  # fails again where it is the reader of standard output that has left
        return _report(error)
    except Exception as error:
        return _report(error)
    finally:
        os.environ.pop(VERBOSITY_VARIABLE, None)
        if verbosity is not None:
            os.environ[VERBOSITY_VARIABLE] = verbosity


def run_command(command: str, *args: str) -> int:
    """Run a command of the Trainer or a tool; returns its exit code."""
    if command in ("-h", "--help", "help"):
        print(overview())
    elif command == "--version":
        print(f"zoo {zoo.__version__}")
    elif command not in TRAINER_COMMANDS:
        return run_tool(command, list(args))
    elif {"-h", "--help"} & {*args} and "all" not in args:
        print(short_help(command))
    else:
        words = ["--help"] if "--help" in args else list(args)
        read_files(words)  # a wrong file or section is answered before torch is imported
        from zoo.cli.trainer import run

        gc.enable()
        return run(command, words)
    return 0


def overview() -> str:
    """Write the help of `zoo` itself."""
    groups: dict[str, list[tuple[str, str]]] = {FIRST_GROUP: list(TRAINER_COMMANDS.items())}
    for name, tool in find_tools().items():
        group = name.partition(" ")[2] or tool.package.replace("cli", "runs, files and this machine")
        groups.setdefault(FIRST_GROUP if name == "predict" else group, []).append((name, tool.summary))
    width = max(len(name) for rows in groups.values() for name, _ in rows)
    lines = ["usage: zoo COMMAND [options]   (zoo COMMAND --help tells a command's options)"]
    for title, rows in groups.items():
        lines += ["", f"{title}:", *align_rows([(f"{name:<{width}}", about) for name, about in rows])]
    lines += [
        "",
        "--allow-import PACKAGE (repeatable) admits classes of your own package in configs and lists its systems.",
        f"{TRACEBACK_VARIABLE}=1 shows the traceback of an error.",
    ]
    return "\n".join(lines)


def _report(error: Exception) -> int:
    """Print one line for an error that the user can mend, the traceback for one that only we can."""
    explained: Exception | None = explain_error(error, {})
    if explained is None and isinstance(error, (ValueError, OSError, ImportError)):
        explained = error
    message = None if explained is None else str(explained) or type(error).__name__
    code = getattr(explained, "exit_code", getattr(error, "exit_code", 1))
    if message is None and isinstance(error, RecursionError):
        message, code = f"a file or an option nests too deeply ({error}); {TRACEBACK_VARIABLE}=1 shows where", 2
    if message is None or os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    logging.getLogger(__name__).debug("failed", exc_info=error)
    return _fail(message or f"{type(error).__name__}: {error}", code)


def _fail(message: str, code: int = 1) -> int:
    print(f"zoo: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
