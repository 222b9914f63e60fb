"""Former checkpoints: what an earlier state of the zoo wrote loads and converts as it did then.

`tests/data/toy-<release>/` is what that release's `zoo fit` on the toy wing's smoke recipe left: config.yaml and the
last checkpoint; a release adds its own. `tests/data/checkpoints_8e52760/` holds every stage of every wing as that
commit wrote it, before parts were named by public names. Neither is ever made anew.
"""

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.faults.attempts import attempts
from tests.harness import REPOSITORY, TOY_ARGS, fingerprint, forked, good, in_fork, losses, newest
from zoo.runs.load import load

DATA = REPOSITORY / "tests" / "data"
RUNS = sorted(DATA.glob("toy-*"))
GAIN = {"toy-0.1.0": 0.9931838}  # 2 seen through a dropout of one half
FORMER = DATA / "checkpoints_8e52760"
MAKE = runpy.run_path(str(FORMER / "make.py"))
STAGES = sorted(str(path.parent.relative_to(FORMER)) for path in FORMER.glob("*/*/expected.json"))


@pytest.fixture(params=RUNS, ids=[run.name for run in RUNS])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a stage's folder."""
    return Path(shutil.copytree(FORMER / request.param, tmp_path / request.param))


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


def test_every_stage_is_there() -> None:
    assert sorted(MAKE["STAGES"]) == STAGES
    for kind, named in (("export", MAKE["EXPORTED"]), ("converted", MAKE["CONVERTED"])):
        assert sorted(str(path.parent.relative_to(FORMER)) for path in _stages_with(kind)) == sorted(named)


def test_a_stage_loads_with_every_weight(stage: Path) -> None:
    checkpoint = torch.load(newest(stage / "run"), weights_only=True)
    saved = {**checkpoint["state_dict"], **checkpoint.get("ema", {}).get("shadow", {})}
    model = load(stage / "run")
    held = {f"{name}.{key}": value for name, part in model.parts().items() for key, value in part.state_dict().items()}
    named = {name for name in saved if name.partition(".")[0] in model.parts()}
    assert named and named <= held.keys()
    assert all(torch.equal(held[name], saved[name]) for name in named)
    model.dry_run()


@pytest.mark.parametrize("name", sorted(MAKE["EXPORTED"]))
def test_an_export_loads(name: str) -> None:
    load(FORMER / name / "export").dry_run()


@pytest.mark.parametrize("name", sorted(MAKE["CONVERTED"]))
def test_converts_both_ways_as_before(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a crowd names the folder that its tokenizer came in
    system, (original, ours) = name.partition("/")[0], MAKE["CONVERTED"][name]
    run = FORMER / name / "run"
    backbone = ["--backbone", next((run / "frozen").iterdir())] if system in ("ci_llm", "miipher") else []
    good(forked("convert", system, run, original, *backbone, cwd=tmp_path))
    good(forked("convert", system, original, ours, *backbone, cwd=tmp_path))
    before, after = _tensors(FORMER / name / "converted" / ours), _tensors(tmp_path / ours)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    load(FORMER / name / "converted" / ours).dry_run()


def test_inspect_finds_them_sound() -> None:
    files = [path for kind in ("run", "export", "converted/ours", "converted/*.ckpt") for path in _stages_with(kind)]
    for path, attempt in zip(files, in_fork(attempts, [["inspect", path] for path in files]), strict=True):
        assert attempt.code == 0 and "TORN" not in attempt.said, (path, attempt)


def _stages_with(kind: str) -> list[Path]:
    return sorted(FORMER.glob(f"*/*/{kind}"))


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    if path.is_dir():
        return load_file(path / "model.safetensors")
    return torch.load(path, weights_only=True)["state_dict"]
