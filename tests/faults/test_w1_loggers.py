"""W1: a logging service that is absent, killed or broken never costs a training or a row of metrics.csv."""

from pathlib import Path

import pytest

from tests.harness import TOY_FIT, callback, fingerprint, forked, good, newest, record

WANDB = "--loggers=[wandb]"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    good(forked(*TOY_FIT, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"


def assert_same(run: Path, whole: Path) -> None:
    assert fingerprint(newest(run)) == fingerprint(newest(whole))
    assert record(run) == record(whole)


def test_offline_wandb_without_account_keeps_its_run_over_a_kill(whole: Path, tmp_path: Path) -> None:
    options = [*TOY_FIT, WANDB, f"--trainer.default_root_dir={tmp_path / 'run'}"]
    assert forked(*options, *callback("KillAt", step=23), cwd=tmp_path).returncode == -9
    run_id = (tmp_path / "run" / "wandb_run_id").read_text().strip()
    out = good(forked(*options, "--ckpt_path=last", cwd=tmp_path))
    print(out.stderr)
    assert_same(tmp_path / "run", whole)
    print(list((tmp_path / "run").rglob("*")))
    records = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))
    assert len(records) == 2
    assert 0
