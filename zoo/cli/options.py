"""Looking at command-line options before the real parser is built."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CONFIG_OPTIONS = ("--config", "-c")
SETTINGS_SUFFIXES = (".yaml", ".yml", ".json")


def take_option(args: list[str], option: str) -> tuple[list[str], list[str]]:
    """Split off every `option VALUE` and `option=VALUE`.

    Returns:
        The values, and the other arguments.
    """
    values, rest, i = [], [], 0
    while i < len(args):
        if args[i] == option and i + 1 < len(args):
            values.append(args[i + 1])
            i += 2
            continue
        if args[i].startswith(option + "="):
            values.append(args[i][len(option) + 1 :])
        else:
            rest.append(args[i])
        i += 1
    return values, rest


def with_values(args: list[str], flags: Sequence[str]) -> list[str]:
    """Give switches that stand alone (`--json`) the value that the parser expects (`--json=true`)."""
    following = [*args[1:], ""][: len(args)]
    alone = [
        arg.startswith("--")
        and arg[2:].replace("-", "_") in flags
        and after.lower() not in ("true", "false", "yes", "no")
        for arg, after in zip(args, following, strict=True)
    ]
    return [f"{arg}=true" if switch else arg for arg, switch in zip(args, alone, strict=True)]


def files_first(args: list[str]) -> list[str]:
    """Move files of settings before the flags that they could override, so that a flag wins wherever it stands.

    A file is the value of `--config` or `-c`, and a YAML or JSON file given to any other option (`--data data.yaml`).
    It moves before the first flag for the same key or one below it; files for one key keep their order.

    Args:
        args: of a command, without its name.

    Returns:
        The same arguments in an order in which the last one wins.
    """
    ordered: list[tuple[str | None, bool, list[str]]] = []  # (key, whether it is a file, tokens)
    i = 0
    while i < len(args):
        option, joined, value = args[i].partition("=")
        if option != "-c" and not option.startswith("--"):
            ordered.append((None, False, args[i : i + 1]))
            i += 1
            continue
        if not joined:
            value = args[i + 1] if i + 1 < len(args) else ""
        key = "" if option in CONFIG_OPTIONS else option.removeprefix("--").rstrip("+")
        is_file = not key or (not option.endswith("+") and value.endswith(SETTINGS_SUFFIXES) and Path(value).is_file())
        tokens = args[i : i + 1 if joined or not is_file else i + 2]
        place = len(ordered)
        if is_file:
            below = (n for n, (flag, file, _) in enumerate(ordered) if flag and not file and _is_below(flag, key))
            place = next(below, place)
        ordered.insert(place, (key, is_file, tokens))
        i += len(tokens)
    return [token for _, _, tokens in ordered for token in tokens]


def _is_below(key: str, group: str) -> bool:
    return not group or key == group or key.startswith(f"{group}.")
