from tests.harness import TOY_FIT, forked, good
from zoo.training.callbacks.train_log import LOG_NAME


def test_a_quiet_fit_writes_its_summary_to_the_log_alone(tmp_path):
    options = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0", "--trainer.default_root_dir=run"]
    assert good(forked(*TOY_FIT, *options, cwd=tmp_path, ZOO_VERBOSITY="quiet")).stderr == ""
    log = (tmp_path / "run" / LOG_NAME).read_text()
    assert "toy_system.GainTask" in log and "steps 1 to 1 in" in log and "max_steps=1" in log
