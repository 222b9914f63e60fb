"""`zoo list` and `zoo completion`."""

from __future__ import annotations

import shlex
import shutil
import sys
from typing import Literal

from zoo.cli.help_text import TRAINER_COMMANDS, align_rows
from zoo.cli.tools import find_tools
from zoo.common.systems import OVERRIDES, first_comment, list_systems, recipe_paths


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


def print_completion(shell: Literal["bash", "zsh"]) -> None:
    """Print a shell's completion script: completion bash.

    It completes commands, recipes and paths: eval "$(zoo completion bash)".

    Args:
        shell: whose script.
    """
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    words = dict.fromkeys(" ".join([*TRAINER_COMMANDS, *find_tools(), *recipe_paths(), "last"]).split())
    print(f"complete -o default -W {shlex.quote(' '.join(words))} zoo")
