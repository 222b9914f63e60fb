"""A3: files that are passed over are counted and named; a name or a text in another encoding stops nothing."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.harness import SMOKE, good, zoo
from zoo.audio.io import files

RATE = 22050
FIT = [
    "fit", "--config", SMOKE, "--trainer.max_steps=1", "--trainer.limit_val_batches=0", "--checkpoints.monitor=null",
    "--data.init_args.split.items=1", "--data.init_args.batch_size=2",
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three clips, and beside them what no command reads."""
    for number, name in enumerate(("corpus/a.wav", "corpus/b.wav", "corpus/deep/c.wav", "elsewhere/d.wav")):
        audio = np.random.default_rng(number).normal(0, 0.1, 12000)
        files.write(tmp_path / name, audio, RATE)
    root = tmp_path / "corpus"
    for name in ("e.m4a", "f.w64", "deep/g.aiff"):
        (root / name).touch()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "broken.wav").symlink_to(tmp_path / "gone.wav")
    (root / "a.txt").write_bytes("café".encode("latin-1"))
    try:
        os.link(root / "a.wav", os.fsencode(root) + b"/\xe9t\xe9.wav")
    except OSError:
        pytest.skip("the file system refuses names that are not UTF-8")
    return root


def assert_states_what_is_left_out(message: str, root: Path) -> None:
    lines = [line for line in message.splitlines() if f"{root}: left out " in line]
    assert len(lines) == 1
    for part in (
        "1 .aiff",
        "1 .m4a",
        "1 .w64",
        "1 broken link",
        f"1 linked folder ({root / 'linked'})",
        r"\xe9t\xe9.wav",
    ):
        assert part in lines[0]


def test_fit_names_what_is_left_out(corpus: Path, tmp_path: Path) -> None:
    run = [f"--data.init_args.root={corpus}", f"--trainer.default_root_dir={tmp_path / 'run'}"]
    result = good(zoo(*FIT, *run, cwd=tmp_path))
    assert_states_what_is_left_out(result.stderr, corpus)
    assert "2 items to train on" in result.stdout + result.stderr


def test_degrade_names_what_is_left_out(corpus: Path, tmp_path: Path) -> None:
    options = ["--copies", 1, "--val_items", 1, "--sample_rate", 16000]
    result = good(zoo("degrade", corpus, tmp_path / "out", *options, cwd=tmp_path))
    assert_states_what_is_left_out(result.stderr, corpus)
    assert "done 3" in result.stdout and f"{corpus / 'a.txt'}:1: " in result.stderr
