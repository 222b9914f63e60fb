"""`zoo list` and `zoo completion`."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any, Literal

from zoo.cli.help_text import OPTIONS, TRAINER_COMMANDS, aligned
from zoo.cli.recipes import recipes
from zoo.cli.tools import find_tools
from zoo.common.systems import OVERRIDES, list_systems

PREAMBLES = {
    "bash": '_zoo_runs() { compgen -W last -- "$1"; compgen -d -- "${1:-runs/}"; }',
    "zsh": "_zoo_runs() { _alternative 'names:name:(last)' 'runs:run:_path_files -/' }",
    "tcsh": "",
}
RUN: dict[str, str] = {"bash": "_zoo_runs", "zsh": "_zoo_runs", "tcsh": "d"}
FILE_OPTIONS = ("--init_from", "--trainer.default_root_dir")


def list_recipes() -> None:
    """List systems and recipes by name, a line each.

    The override files at the end change a recipe: `zoo fit hifigan/base trainer/gpu`.
    """
    titles = {system.name: system.title for system in list_systems()} | {OVERRIDES: "override files"}
    entries = recipes()
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    width = max(len(recipe.name) for recipe in entries)
    for name, title in titles.items():
        print(f"{name}: {title}")
        rows = [(f"{each.name:<{width}}", each.title) for each in entries if each.name.partition("/")[0] == name]
        for line in aligned(rows):
            print(line if columns is None or len(line) <= columns else f"{line[: columns - 1]}…")


def print_completion(shell: Literal["bash", "zsh", "tcsh"]) -> None:
    """Print what lets a shell complete commands, recipes and runs: eval "$(zoo completion bash)".

    Args:
        shell: whose script.
    """
    import shtab

    script: Any = shtab.complete
    print(script(build_parser(shtab.FILE), shell, preamble=PREAMBLES))


def build_parser(file: Any) -> argparse.ArgumentParser:
    """Build a parser of all commands for completion alone: recipes, and runs or files after a tool."""
    parser = argparse.ArgumentParser(prog="zoo")
    commands = parser.add_subparsers()
    names = [recipe.name for recipe in recipes()]
    for command, title in TRAINER_COMMANDS.items():
        sub = commands.add_parser(command, help=title.partition(":")[0])
        sub.add_argument("recipe", nargs="*", choices=names)
        for text, _ in OPTIONS[command]:
            name = text.split()[0].rstrip(",")
            option: Any = sub.add_argument(name)
            if name in ("--ckpt_path", *FILE_OPTIONS):
                option.complete = RUN if name == "--ckpt_path" else file
    groups: dict[str, Any] = {}
    for name, tool in find_tools().items():
        head, _, system = name.partition(" ")
        if system and head not in groups:
            groups[head] = commands.add_parser(head, help=f"{head} a run, by system").add_subparsers()
        sub = (groups[head] if system else commands).add_parser(system or head, help=tool.summary)
        path: Any = sub.add_argument("path", nargs="*")
        path.complete = RUN
    return parser
