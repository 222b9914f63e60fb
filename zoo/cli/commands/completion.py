"""`zoo completion`."""

from __future__ import annotations

import argparse
from typing import Any, Literal

from zoo.cli.helps import OPTIONS, TRAINER_COMMANDS
from zoo.cli.recipes import recipes
from zoo.cli.tools import find_tools

RUNS = {
    "bash": '_zoo_runs() { compgen -W last -- "$1"; compgen -d -- "${1:-runs/}"; }',
    "zsh": "_zoo_runs() { _alternative 'names:name:(last)' 'runs:run:_path_files -/' }",
    "tcsh": "",
}
RUN: dict[str, str] = {"bash": "_zoo_runs", "zsh": "_zoo_runs", "tcsh": "d"}
FILE_OPTIONS = ("--init_from", "--trainer.default_root_dir")


def main(shell: Literal["bash", "zsh", "tcsh"]) -> None:
    """Print what lets a shell complete commands, recipes and runs: eval "$(zoo completion bash)".

    Args:
        shell: whose script.
    """
    import shtab

    script: Any = shtab.complete
    print(script(_parser(shtab.FILE), shell, preamble=RUNS))


def _parser(file: Any) -> argparse.ArgumentParser:
    """All commands as argparse knows them, for completion alone."""
    parser = argparse.ArgumentParser(prog="zoo")
    commands = parser.add_subparsers()
    names = [recipe.name for recipe in recipes()]
    for command, about in TRAINER_COMMANDS.items():
        sub = commands.add_parser(command, help=about.partition(":")[0])
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
        given: Any = (groups[head] if system else commands).add_parser(system or head, help=tool.summary)
        given.add_argument("path", nargs="*").complete = RUN
    return parser
