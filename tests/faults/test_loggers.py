"""A logging service that is absent, killed or broken never costs a training or a row of metrics.csv."""

from pathlib import Path

import pytest

from tests.faults.conftest import FIT
from tests.harness import assert_equal_runs, callback, forked, good

WANDB = "--loggers=[wandb]"
BROKEN = ["--trainer.logger=toy_system.faults.BrokenLogger", "--trainer.logger.calls=3"]


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


@pytest.mark.parametrize(
    ("options", "mode", "message"),
    [
        (BROKEN, "offline", "BrokenLogger failed (ConnectionError"),
        ([WANDB], "online", "WandbLogger failed"),  # without an account
    ],
)
def test_a_service_that_fails_is_named_and_left_out(reference, tmp_path, options, mode, message):
    account = {"WANDB_MODE": mode, "WANDB_API_KEY": "", "HOME": str(tmp_path)}
    result = good(forked(*FIT, *options, f"--trainer.default_root_dir={tmp_path / 'run'}", cwd=tmp_path, **account))
    assert message in result.stderr and "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if message.partition(" ")[0] in line]) <= 5
    assert_equal_runs(tmp_path / "run", reference)
