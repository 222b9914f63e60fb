from __future__ import annotations

import subprocess

import pytest

from zoo.cli.main import main

SCRIPT = """
source zoo.sh
mkdir -p runs/flow/smoke
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMPREPLY=(); _shtab_zoo; echo "${COMPREPLY[@]}"; }
complete_words zoo fit hifigan/ss
complete_words zoo ev
complete_words zoo evaluate f
complete_words zoo fit --ck
complete_words zoo predict --ckpt_path runs/f
complete_words zoo predict --ckpt_path la
complete_words zoo inspect runs/f
"""


def test_bash_completes_commands_recipes_and_runs(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "zoo.sh").write_text(capsys.readouterr().out)
    done = subprocess.run(["bash", "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "hifigan/ssl50_22k hifigan/ssl50_24k",
        "evaluate",
        "flow",
        "--ckpt_path",
        "runs/flow",
        "last",
        "runs/flow",
    ]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "hifigan/ssl50_22k" in capsys.readouterr().out
