"""The argument parser of the tools and the import rules of every config."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from jsonargparse import ArgumentParser, set_parsing_settings

ALLOWED_IMPORTS = ("zoo", "lightning", "torch.nn", "torch.optim", "torchmetrics")


def fail(prog: str, message: str) -> NoReturn:
    """Exit with code 2 and one line on standard error."""
    message = message.replace(
        "Add the import path to import_path_allowlist in set_parsing_settings to allow it.",
        "Classes of your own package are admitted by --allow-import PACKAGE.",
    )
    prog = prog if prog.startswith("zoo") else "zoo"  # jsonargparse names its inner parsers after the script
    print(f"{prog}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


class OneLineParser(ArgumentParser):
    """A parser whose errors are one line and whose exit code for them is 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report a wrong option."""
        fail(self.prog, message)


def allow_imports(packages: Sequence[str] = ()) -> None:
    """Let configs name classes of zoo, lightning, torch.nn, torch.optim, torchmetrics and `packages` only."""
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=[*ALLOWED_IMPORTS, *packages])
