"""Help and lists answer without torch, in half a CPU-second, and complete at the shell."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment
from zoo.cli.main import main


@pytest.mark.parametrize("line", ["--help", "fit --help", "doctor --help", "completion bash"])
def test_help_needs_no_torch(line: str) -> None:
    code = f"import sys; from zoo.cli.main import main; code = main({line.split()!r}); sys.exit('torch' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=environment(), capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (result.returncode == 0 and "hifigan" in result.stdout) or "usage" in result.stdout, result.stderr
    # scripts/bench/startup.py has the limit for a quiet machine
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_options_of_a_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model.help", "zoo.flow.FlowTask"]) == 0
    assert "--model.net NET" in capsys.readouterr().out
    assert main(["fit", "--help", "all"]) == 0
    assert "--trainer.accumulate_grad_batches" in capsys.readouterr().out


def test_reader_of_the_output_may_leave() -> None:
    shell = f"{sys.executable} -m zoo list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "141") and done.stderr == ""


def test_bash_completes_commands_and_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "zoo.sh").write_text(capsys.readouterr().out)
    script = 'source zoo.sh; words=$(complete -p zoo); eval "set -- ${words#*-W}"; compgen -W "$1" -- hifigan/ss'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hifigan/ssl50_22k", "hifigan/ssl50_24k"]
    assert main(["completion", "zsh"]) == 0
