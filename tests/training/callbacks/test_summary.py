"""The first and last lines of a fit."""

from tests.harness import TOY_FIT, forked, forked_ranks, good
from zoo.training.callbacks.train_log import LOG_NAME


def fit(folder, *options, **extra):
    return forked(*TOY_FIT, f"--trainer.default_root_dir={folder / 'run'}", *options, cwd=folder, **extra)


def test_verbosity_and_two_processes(tmp_path):
    options = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0"]
    assert good(fit(tmp_path, *options, ZOO_VERBOSITY="quiet")).stderr == ""
    log = (tmp_path / "run" / LOG_NAME).read_text()
    assert "toy_system.GainTask" in log and "steps 1 to 1 in" in log and "max_steps=1" in log
    both = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=10"]
    first, second = forked_ranks(*TOY_FIT, "--trainer.default_root_dir=both", *both, cwd=tmp_path)
    assert good(first).stderr.count("\ntrained ") == 1
    assert "4 = 2 per process x 2 processes" in first.stderr and "DDPStrategy" in first.stderr
    assert first.stderr.count("step 10/10 ") == 1 and "max_steps" not in first.stderr
    assert first.stderr.endswith("--allow-import toy_system\n")
    assert good(second).stderr == ""
