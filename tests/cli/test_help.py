"""Help and listing answer without torch."""

import subprocess
import sys

import pytest

from tests.harness import REPOSITORY, environment
from zoo.cli.main import main


@pytest.mark.parametrize("args", [["--help"], ["list"], ["doctor", "--help"], ["convert", "--help"]])
def test_answers_without_torch(args: list[str]) -> None:
    code = f"import sys; from zoo.cli.main import main; code = main({args!r}); sys.exit(code or 'torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "hifigan" in result.stdout or "usage" in result.stdout


def test_toy_wing_is_listed_without_an_edit_in_zoo() -> None:
    command = [sys.executable, "-m", "zoo", "list", "--allow-import", "toy_wing"]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=True)
    assert "toy_wing" in result.stdout and "learns a gain" in result.stdout


def test_every_tool_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert "compare-samplers" in names and names.count("find-lr") == 1
    assert main(["compare-samplers", "--help"]) == 0
    assert "zoo compare-samplers" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["--help", "list", "completion bash"])
def test_who_reads_the_output_may_leave(command):
    shell = f"{sys.executable} -m zoo {command} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "141") and done.stderr == ""
