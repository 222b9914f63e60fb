"""No call that one system alone has stands without a guard, as far as mypy knows Windows."""

import os
import re
import subprocess
import sys

from tests.harness import REPOSITORY

# Modules with names that Windows lacks.
OF_SYSTEMS = re.compile(
    r"^\s*import (os|signal|socket|mmap|fcntl|resource|pwd|grp|pty|tty|termios|select|time)\b", re.M
)


def test_windows_has_every_name_that_is_used() -> None:
    sources = sorted((REPOSITORY / "zoo").rglob("*.py"))
    files = [path for path in sources if OF_SYSTEMS.search(path.read_text(encoding="utf-8"))]
    command = [sys.executable, "-m", "mypy", "--platform=win32", "--follow-imports=skip", f"--cache-dir={os.devnull}"]
    result = subprocess.run([*command, *files], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1) and "checked" in result.stdout, result.stderr
    assert [line for line in result.stdout.splitlines() if "Module has no attribute" in line] == []
