"""Looking at command-line options before the real parser is built."""

from __future__ import annotations


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
