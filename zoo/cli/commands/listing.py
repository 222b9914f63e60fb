"""`zoo list` and `zoo completion`."""

from __future__ import annotations

import shlex
from typing import Literal

from zoo.cli.help_text import TRAINER_COMMANDS, align_rows
from zoo.cli.recipes import WrongNameError, nearest_names
from zoo.cli.tools import find_tools
from zoo.common.systems import OVERRIDES, first_comment, list_systems, recipe_paths


def list_recipes(*systems: str, all: bool = False) -> None:
    """List systems and recipes by name: zoo list hifigan.

    The override files at the end change a recipe: `zoo fit hifigan/base trainer/gpu`.

    Args:
        *systems: those whose recipes are listed; all when none is given.
        all: list the tiny recipes for tests (`smoke`), too.
    """
    titles = {system.name: system.title for system in list_systems()} | {OVERRIDES: "override files"}
    if unknown := [name for name in systems if name not in titles]:
        raise WrongNameError(f"no system {unknown[0]!r}{nearest_names(unknown[0], titles)}")
    recipes = {name: first_comment(path) for name, path in recipe_paths().items()}
    width = max(map(len, recipes))
    for system in systems or titles:
        print(f"{system}: {titles[system]}")
        names = [name for name in recipes if name.startswith(f"{system}/")]
        hidden = [name for name in names if name.partition("/")[2].startswith("smoke_") and not all]
        for line in align_rows([(f"{name:<{width}}", recipes[name]) for name in names if name not in hidden]):
            print(line)
        if hidden:
            print(f"  and {len(hidden)} smoke recipes for tests: zoo list {system} --all")


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
