"""V1: a run folder of each past release loads, validates and goes on.

`tests/data/toy-<release>/` is what that release's `zoo fit` on the toy wing's smoke recipe left: config.yaml and the
last checkpoint. It is never made anew; a release adds its own.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.harness import REPOSITORY, TOY_ARGS, fingerprint, forked, good, losses, newest
from zoo.loading import load

RUNS = sorted((REPOSITORY / "tests" / "data").glob("toy-*"))
GAIN = {"toy-0.1.0": 0.9931838}  # 2 seen through a dropout of one half


@pytest.fixture(params=RUNS, ids=[run.name for run in RUNS])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


def test_every_release_is_there() -> None:
    assert [run.name for run in RUNS] == list(GAIN)


def test_loads(old: Path) -> None:
    model = load(old, allow_import=["toy_wing"])
    np.testing.assert_allclose(model(np.ones(3, np.float32), 16000), np.full(3, GAIN[old.name]), rtol=1e-6)


def test_validates_and_goes_on(old: Path, tmp_path: Path) -> None:
    good(forked("validate", *TOY_ARGS, f"--ckpt_path={old}", f"--trainer.default_root_dir={tmp_path}", cwd=tmp_path))
    before = fingerprint(newest(old))
    good(forked("fit", *TOY_ARGS, f"--ckpt_path={old}", "--trainer.max_steps=80", cwd=tmp_path))
    assert newest(old).name == "step_00000080.ckpt"
    assert set(fingerprint(newest(old))) == set(before)
    assert set(losses(old, "train/loss")) == set(range(60, 80))
