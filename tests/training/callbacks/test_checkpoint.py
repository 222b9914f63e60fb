"""When a run is saved, which checkpoints stay, and how resumes continue."""

import functools
import signal
from pathlib import Path

import lightning as L
import pytest
import torch
from toy_system.data import PairData
from toy_system.nets import Gain
from toy_system.task import GainTask

from tests.harness import TOY_FIT, callback, forked_ranks, newest
from tests.training.callbacks.parts import make_trainer
from zoo.runs.checkpoints import find_checkpoints, load_checkpoint, parse_score, parse_step
from zoo.training.callbacks.checkpoint import Checkpoints


class SignalAfter(L.Callback):
    def __init__(self, batches: int, in_validation: bool = False) -> None:
        self.batches = batches
        self.in_validation = in_validation

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx + 1 == self.batches and not self.in_validation:
            signal.raise_signal(signal.SIGTERM)

    def on_validation_batch_start(self, trainer, *_):
        if self.in_validation and trainer.fit_loop.total_batch_idx + 1 == self.batches:
            signal.raise_signal(signal.SIGTERM)


def fit(folder: Path, *callbacks: L.Callback, ckpt_path: Path | None = None, kind=GainTask, **settings) -> L.Trainer:
    task = kind(Gain(), functools.partial(torch.optim.SGD, lr=0.01))
    trainer = make_trainer(*callbacks, default_root_dir=folder, enable_checkpointing=True, **settings)
    trainer.fit(task, PairData(items=40, batch_size=2), ckpt_path=ckpt_path, weights_only=True)
    return trainer


@pytest.mark.parametrize(("batches", "in_validation"), [(3, False), (4, False), (4, True)])
def test_signal_between_accumulated_batches_waits_for_the_step(batches, in_validation, tmp_path):
    callbacks = SignalAfter(batches, in_validation), Checkpoints(every_n_steps=None, every_minutes=None)
    with pytest.raises(SystemExit):
        fit(tmp_path, *callbacks, accumulate_grad_batches=3, max_steps=5, val_check_interval=batches)
    (saved,) = find_checkpoints(tmp_path, "step_*.ckpt")
    progress = load_checkpoint(saved)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
    steps = -(-batches // 3)
    assert (saved.name, progress["processed"]) == (f"step_{steps:08d}.ckpt", 3 * steps)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"every_n_steps": 4, "every_minutes": None}, [12, 8]),
        ({"every_n_steps": None, "every_minutes": 0.0}, [13, 12]),
        ({"every_n_steps": None, "every_minutes": None, "keep_last": 1}, [13]),
    ],
)
def test_saves_by_steps_and_time_and_keeps_the_last(settings, steps, tmp_path):
    fit(tmp_path, Checkpoints(**settings), max_steps=13, limit_val_batches=0)
    expected = steps if 13 in steps else [13, *steps[:1]]
    assert [parse_step(path) for path in find_checkpoints(tmp_path, "step_*.ckpt")] == expected


def test_a_damaged_checkpoint_of_a_later_step_costs_no_valid_one(tmp_path):
    (tmp_path / "step_00000020.ckpt").write_bytes(b"damaged")
    fit(tmp_path, Checkpoints(every_n_steps=4, every_minutes=None), max_steps=12, limit_val_batches=0)
    assert [parse_step(path) for path in find_checkpoints(tmp_path, "step_*.ckpt")] == [20, 12, 8]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_best_checkpoints_are_kept_by_metric(mode, tmp_path):
    best = Checkpoints(monitor="val/error", mode=mode, save_best=2)
    fit(tmp_path, best, max_steps=12, val_check_interval=3, check_val_every_n_epoch=None, num_sanity_val_steps=0)
    steps = sorted(parse_step(path) for path in tmp_path.glob("best-*.ckpt"))
    assert steps == ([9, 12] if mode == "min" else [3, 6])  # the error falls


def test_renamed_copies_are_left_alone(tmp_path):
    names = ["best-step_00000001-0.1-keep.ckpt", "best-step_00000001_old-0.ckpt", "step_00000001-keep.ckpt"]
    for name in names:
        (tmp_path / name).write_bytes(b"a copy of the user")
    saves = Checkpoints(every_n_steps=3, monitor="val/error", keep_last=1)
    fit(tmp_path, saves, max_steps=9, val_check_interval=3, check_val_every_n_epoch=None, num_sanity_val_steps=0)
    written = [path for path in find_checkpoints(tmp_path) if path.name not in names]
    assert [parse_step(path) for path in written] == [9, 9] and all((tmp_path / name).is_file() for name in names)


def test_resume_between_accumulated_batches_is_told(tmp_path, caplog):
    settings = {"accumulate_grad_batches": 3, "val_check_interval": 4, "num_sanity_val_steps": 0}
    fit(tmp_path, Checkpoints(monitor="val/error"), max_steps=2, **settings)
    for pattern, lines in (("best-*.ckpt", 1), ("step_*.ckpt", 0)):
        (path,) = tmp_path.glob(pattern)
        caplog.clear()
        fit(tmp_path / "other", Checkpoints(), ckpt_path=path, max_steps=3, **settings)
        assert caplog.text.count("resumed between accumulated batches, whose gradients are not saved") == lines


def test_best_of_values_below_a_millionth(tmp_path):
    class SmallTask(GainTask):
        def evaluate(self, *args):
            values, items = super().evaluate(*args)
            return {"error": 1e-9 * values["error"]}, items

    settings = {"max_steps": 6, "val_check_interval": 3, "num_sanity_val_steps": 0}
    fit(tmp_path, Checkpoints(monitor="val/error"), kind=SmallTask, **settings)
    (path,) = tmp_path.glob("best-*.ckpt")
    assert parse_step(path) == 6 and 0 < parse_score(path) < 1e-6


def test_signal_at_one_rank_ends_both_and_saves_once(tmp_path):
    both = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.default_root_dir=run"]
    ranks = forked_ranks(*TOY_FIT, *both, *callback("KillAt", step=13, signum=15), cwd=tmp_path)
    assert [rank.returncode for rank in ranks] == [143, 143], ranks[0].stderr[-2000:]
    assert newest(tmp_path / "run").name == "step_00000013.ckpt"
