"""Trying precisions: what is sound, which is chosen, what a run keeps."""

import logging
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from toy_wing.data import PairData
from toy_wing.nets import Gain
from toy_wing.task import GainTask

from tests.harness import TOY_ARGS, TOY_RECIPE, fingerprint, newest
from zoo.cli.main import main
from zoo.training.callbacks import precision
from zoo.training.callbacks.precision import EXACT, Trial, choose, settle, try_precisions

FIT = ["fit", "--config", str(TOY_RECIPE), *TOY_ARGS, "--trainer.max_steps=2", "--trainer.enable_progress_bar=false"]


class Spoiled(GainTask):
    """In bfloat16 its loss is wrong by a factor, and the gradients may overflow."""

    def __init__(self, factor: float = 1.0, gradients: float = 1.0) -> None:
        super().__init__(Gain(0.5), partial(torch.optim.SGD, lr=0.1))
        self.factor, self.gradients = factor, gradients

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if torch.is_autocast_enabled("cpu"):
            loss.register_hook(lambda gradient: gradient * self.gradients)
            loss = loss * self.factor
        return loss


def tried(**how) -> list[Trial]:
    return try_precisions(Spoiled(**how), PairData(items=40, batch_size=2), "cpu")


def test_all_see_the_same_and_no_weight_moves():
    task, state = Spoiled(), torch.get_rng_state()
    exact, other = try_precisions(task, PairData(items=40, batch_size=2), "cpu")
    assert (exact.precision, other.precision) == ("32-true", "bf16-mixed")
    assert exact.loss == other.loss and exact.sound and other.sound  # no layer of it computes in bfloat16
    assert 0 < exact.seconds < math.inf
    assert task.net.gain == 0.5 and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("how", "said"),
    [({"factor": 1.1}, "loss differs"), ({"factor": math.inf}, "not finite"), ({"gradients": math.inf}, "not finite")],
)
def test_what_is_not_sound(how, said):
    exact, other = tried(**how)
    assert exact.sound and not other.sound and said in str(other)
    assert choose([exact, other]) is exact


def test_no_memory_for_float32(monkeypatch):
    def step(self, batch, batch_idx):
        if not torch.is_autocast_enabled("cpu"):
            raise torch.OutOfMemoryError("too little")
        return self.net(batch["x"]).square().mean()

    monkeypatch.setattr(Spoiled, "training_step", step)
    exact, other = tried()
    assert "out of memory" in str(exact) and choose([exact, other]) is other
    with pytest.raises(ValueError, match=r"no precision helps \(32-true\): the device's memory"):
        try_precisions(Spoiled(), PairData(items=40, batch_size=2), "cpu", precisions=[EXACT])


def test_tasks_that_step_themselves_are_refused():
    task = Spoiled()
    task.automatic_optimization = False
    with pytest.raises(ValueError, match="steps its optimizers itself: set one of 32-true"):
        try_precisions(task, PairData(items=40, batch_size=2), "cpu")


def test_a_run_is_that_of_the_chosen_precision_and_keeps_it(tmp_path: Path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(precision, "choose", lambda trials: trials[1])
    for name in ("auto", "bf16-mixed"):
        assert main([*FIT, f"--trainer.precision={name}", f"--trainer.default_root_dir={tmp_path / name}"]) == 0
    run = tmp_path / "auto"
    assert "trainer.precision auto: bf16-mixed" in caplog.text
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["precision"] == "bf16-mixed"
    assert fingerprint(newest(run)) == fingerprint(newest(tmp_path / "bf16-mixed"))
    monkeypatch.setattr(precision, "choose", lambda trials: trials[0])
    assert settle("fit", newest(run), dict) == "bf16-mixed"


def test_processes_agree(monkeypatch):
    assert settle("validate", None, dict) == EXACT
    monkeypatch.setenv("ZOO_PRECISION", "16-mixed")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="each of the 2 processes would choose for itself"):
        settle("fit", None, dict)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert settle("fit", None, dict) == "16-mixed"


def test_a_refused_config_does_not_replace_that_of_the_run(tmp_path: Path, capsys):
    run = tmp_path / "run"
    assert main([*FIT, f"--trainer.default_root_dir={run}"]) == 0
    before = (run / "config.yaml").read_text()
    capsys.readouterr()
    again = ["fit", "--ckpt_path", str(run), *TOY_ARGS, "--trainer.max_steps=3"]
    assert main([*again, "--model.init_args.net.init_args.start=1"]) == 1
    assert "init_args.start is 0.0 in the checkpoint and 1.0 in the config" in capsys.readouterr().err
    assert (run / "config.yaml").read_text() == before
    assert main(again) == 0
