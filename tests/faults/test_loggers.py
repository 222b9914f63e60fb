"""A logging service that is absent, killed or broken never costs a training or a row of metrics.csv."""

from pathlib import Path

from tests.faults.conftest import FIT
from tests.harness import assert_equal_runs, callback, forked, good

WANDB = "--loggers=[wandb]"


def test_offline_wandb_without_account_keeps_its_run_over_a_kill(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [*FIT, WANDB, f"--trainer.default_root_dir={run}"]
    account = {"WANDB_API_KEY": "", "HOME": str(tmp_path)}
    assert forked(*options, *callback("KillAt", step=23), cwd=tmp_path, **account).returncode == -9
    run_id = (run / "wandb_run_id").read_text().strip()
    # two services at once, one of them only from now on
    good(forked(*options, "--loggers+=tensorboard", "--ckpt_path=last", cwd=tmp_path, **account))
    assert_equal_runs(run, reference)
    assert any((run / "tensorboard").iterdir())
    records = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    # W&B's own process may be killed before it made the file of the first part
    assert {path.name for path in records} == {f"run-{run_id}.wandb"}


def test_a_broken_service_is_named_and_left_out(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    broken = ["--trainer.logger=toy_system.faults.BrokenLogger", "--trainer.logger.calls=3"]
    result = good(forked(*FIT, *broken, f"--trainer.default_root_dir={run}", cwd=tmp_path))
    assert "BrokenLogger" in result.stderr and "ConnectionError" in result.stderr
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if "BrokenLogger" in line]) <= 5
    assert_equal_runs(run, reference)


def test_online_wandb_without_account_is_left_out(reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    account = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": str(tmp_path)}
    result = good(forked(*FIT, WANDB, f"--trainer.default_root_dir={run}", cwd=tmp_path, **account))
    assert "WandbLogger failed" in result.stderr
    assert_equal_runs(run, reference)
