"""`zoo list` and `zoo completion`."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any, Literal

from zoo.cli.help_text import OPTIONS, TRAINER_COMMANDS, align_rows
from zoo.cli.tools import find_tools
from zoo.common.systems import OVERRIDES, first_comment, list_systems, recipe_paths

RUNS: Any = {
    "bash": '_zoo_runs() { compgen -W last -- "$1"; compgen -d -- "${1:-runs/}"; }',
    "zsh": "_zoo_runs() { _alternative 'names:name:(last)' 'runs:run:_path_files -/' }",
}
COMPLETE_RUN = {"bash": "_zoo_runs", "zsh": "_zoo_runs", "tcsh": "d"}


def list_recipes() -> None:
    """List systems and recipes by name, a line each.

    The override files at the end change a recipe: `zoo fit hifigan/base trainer/gpu`.
    """
    titles = {system.name: system.title for system in list_systems()} | {OVERRIDES: "override files"}
    recipes = {name: first_comment(path) for name, path in recipe_paths().items()}
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    width = max(map(len, recipes))
    for system, title in titles.items():
        print(f"{system}: {title}")
        rows = [(f"{name:<{width}}", about) for name, about in recipes.items() if name.startswith(f"{system}/")]
        for line in align_rows(rows):
            print(line[:columns])


def print_completion(shell: Literal["bash", "zsh", "tcsh"]) -> None:
    """Print a shell's completion script: completion bash.

    It completes commands, recipes and runs: eval "$(zoo completion bash)".

    Args:
        shell: whose script.
    """
    import shtab

    print(shtab.complete(build_parser(), shell, preamble=RUNS))


def build_parser() -> argparse.ArgumentParser:
    """Build a parser of all commands for completion alone: recipes, and runs or folders after a tool."""
    parser = argparse.ArgumentParser(prog="zoo")
    commands = parser.add_subparsers()
    names = list(recipe_paths())
    for command, title in TRAINER_COMMANDS.items():
        sub = commands.add_parser(command, help=title.partition(":")[0])
        sub.add_argument("recipe", nargs="*", choices=names)
        for name in (text.split()[0] for text, _ in OPTIONS[command] if text.startswith("--") and "help" not in text):
            option: Any = sub.add_argument(name)
            if option.dest in ("ckpt_path", "init_from"):
                option.complete = COMPLETE_RUN
    groups: dict[str, Any] = {}
    for name, tool in find_tools().items():
        head, _, system = name.partition(" ")
        if system and head not in groups:
            groups[head] = commands.add_parser(head, help=f"{head} a run, by system").add_subparsers()
        sub = (groups[head] if system else commands).add_parser(system or head, help=tool.summary)
        path: Any = sub.add_argument("path", nargs="*")
        path.complete = COMPLETE_RUN
    return parser
