import io
import logging
import math
import re
import sys

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from tests.harness import TOY_FIT, forked, good
from zoo.training.callbacks import progress
from zoo.training.callbacks.checkpoint import Checkpoints
from zoo.training.callbacks.progress import Count, Progress, duration, number, shown_metrics, speed, steps_of

LINE = re.compile(
    r"step \d+/60 · \d+ %( · [\d.]+ (it/s|s/it))?( · ETA \d+ (s|min))?( · loss [\d.]+)?"
    r"( · val/error [\d.]+ \(best( [\d.]+)?\))?"
)


class Task(L.LightningModule):
    """Its validation loss is 3, 1, 2, ..."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 2)
        self.losses = iter([3.0, 1.0, 2.0, *range(4, 100)])

    def training_step(self, batch, batch_idx):
        self.log("train/loss", torch.tensor(float(self.global_step)))
        return self.net(batch).sum()

    def on_validation_epoch_start(self):
        self.loss = 9.0 if self.trainer.sanity_checking else next(self.losses)

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.loss)

    test_step = predict_step = lambda self, batch, batch_idx: None

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def loader(items):
    return DataLoader(torch.ones(items, 3), batch_size=1)


def trainer_of(tmp_path, bar, **settings):
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        log_every_n_steps=1,
        callbacks=[bar, Checkpoints(monitor="val/loss", every_n_steps=None)],
        **{"num_sanity_val_steps": 1, **settings},
    )


def lines(tmp_path, caplog, bar=None, **settings):
    """What a fit of 4 batches an epoch, each validated on 2, tells."""
    caplog.set_level(logging.INFO)
    trainer = trainer_of(tmp_path, bar or Progress(), **settings)
    trainer.fit(Task(), loader(4), loader(2))
    return [record.getMessage() for record in caplog.records if record.name == progress.__name__]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (780, "13 min"), (3600, "1 h 00 min"),
        (7500, "2 h 05 min"), (172800, "2 d 0 h"), (273600, "3 d 4 h"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_numbers_and_speeds():
    assert [number(value) for value in (0.8312, -12.34, 1234.5, 3e-7, math.nan)] == [
        "0.831", "-12.3", "1,234", "3e-07", "nan",
    ]  # fmt: skip
    assert [speed(rate) for rate in (3.123, 250.0, 0.4)] == ["3.12 it/s", "250 it/s", "2.5 s/it"]


def test_the_metrics_to_show():
    gan = ["train/g/total", "train/g/mel", "val/mel_l1", "val/mcd"]
    assert shown_metrics(gan, None, "val/mel_l1") == ["train/g/mel", "val/mel_l1"]
    assert shown_metrics(gan, ["val/mcd", "train/g/mel", "val/absent"], "val/mel_l1") == ["val/mcd", "train/g/mel"]
    assert shown_metrics(["train/lr", "train/loss_a"], None, None) == ["train/loss_a"]
    assert shown_metrics(["train/loss_a", "train/loss"], None, "val/loss") == ["train/loss"]
    assert shown_metrics([], None, None) == []


def test_rate_and_end_of_a_count(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    count = Count("step", 20, done=10)
    assert count.text() == "step 10/20" and count.share == 0.5
    assert count.rate == 0 and count.seconds_left == math.inf
    now, count.done = 102.0, 14
    assert count.rate == 2.0
    assert count.seconds_left == 3.0  # two seconds for four steps
    count.hold()
    now = 104.0
    assert count.rate == 2.0  # a pause takes no part in the speed, and takes part in the end
    assert count.seconds_left == 6.0
    count.go_on()
    now, count.done = 105.0, 15
    assert count.rate == pytest.approx(5 / 3)
    endless = Count("step", math.inf)
    assert endless.text() == "step 0" and endless.share == 0 and endless.seconds_left == math.inf


@pytest.mark.parametrize(
    ("settings", "total"),
    [
        ({"max_steps": 3}, 3),
        ({"max_epochs": 2}, 8),
        ({"max_epochs": 2, "max_steps": 5}, 5),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, 4),
        ({"max_epochs": 2, "limit_train_batches": 3}, 6),
    ],
)
def test_totals(tmp_path, caplog, settings, total):
    caplog.set_level(logging.INFO)
    trainer = trainer_of(tmp_path, Progress(every_seconds=1e-9), **settings)
    trainer.fit(Task(), loader(4), loader(2))
    assert steps_of(trainer) == total == trainer.global_step
    assert f"step {total}/{total} · " in caplog.text
    assert ("epoch 2/2" in caplog.text) is ("max_steps" not in settings)


def test_a_limit_of_time_counts_as_steps_do(tmp_path, caplog):
    told = lines(tmp_path, caplog, max_time={"minutes": 10}, max_steps=4)
    assert "step 4/4 · 0 s of 10 min · 100 %" in told[-1]
    bar = Progress()
    trainer = trainer_of(tmp_path, bar, max_time={"minutes": 10}, max_epochs=-1, limit_train_batches=0)
    trainer.fit(Task(), loader(4), loader(2))
    assert steps_of(trainer) == math.inf


def test_a_line_after_each_validation_with_the_best_so_far(tmp_path, caplog):
    told = [line.partition(" · train")[0].split(" · ")[-2:] for line in lines(tmp_path, caplog, max_epochs=4)]
    assert told == [
        ["loss 3", "val/loss 3 (best)"],
        ["loss 7", "val/loss 1 (best)"],
        ["loss 11", "val/loss 2 (best 1)"],
        ["loss 15", "val/loss 4 (best 1)"],
    ]


def test_lines_in_between_and_of_a_validation_within(tmp_path, caplog):
    told = lines(tmp_path, caplog, Progress(every_seconds=1e-9), max_epochs=1)
    assert told[0].startswith("validation before step 1 1/1 · 100 %")
    assert [line.split(" · ")[0] for line in told[1:5]] == [f"step {n}/4" for n in (1, 2, 3, 4)]
    assert " · validation 1/2 · loss 3" in told[5] and told[5].startswith("step 4/4")
    with pytest.raises(ValueError, match="every_seconds"):
        Progress(every_seconds=0)


def test_nothing_is_complete_before_its_end(tmp_path, caplog):
    told = lines(tmp_path, caplog, Progress(every_seconds=1e-9), max_epochs=60)
    assert any(line.startswith("step 239/240 · epoch 60/60 · 99 %") for line in told)


def test_chosen_metrics(tmp_path, caplog):
    assert lines(tmp_path, caplog, Progress(["val/loss"]), max_epochs=1)[-1].endswith("it/s · val/loss 3 (best)")


@pytest.mark.filterwarnings("ignore:predict returned None")  # the bar is looked at alone
def test_tests_and_predictions_have_a_bar_of_their_own(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    trainer = trainer_of(tmp_path, Progress(every_seconds=1e-9))
    trainer.test(Task(), loader(3), verbose=False)
    trainer.predict(Task(), loader(3))
    told = [line.partition(" · ETA")[0].split(" · ")[:2] for line in caplog.messages if "%" in line]
    assert told == [[f"{name} {n}/3", f"{round(n / 3 * 100)} %"] for name in ("test", "predict") for n in (1, 2, 3)]


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_shows_one_bar_and_gets_its_cursor_back(tmp_path, caplog, monkeypatch, colours):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Screen())
    assert not lines(tmp_path, caplog, max_epochs=1)[0].startswith("\x1b")
    shown = sys.stderr.getvalue()
    assert "\x1b[?25l" in shown and shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert bool(re.search(r"\x1b\[(9|3[0-8])", shown)) is colours
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "validation before step 1 1/1" in plain and "step 2/4 · " in plain and " validation 2/2" in plain
    last = plain.rstrip().splitlines()[-2:]
    assert "step 4/4 · epoch 1/1 · 100 %" in last[0] and last[1] == "loss 3 · val/loss 3 (best)"
    assert all(record.terminal is False for record in caplog.records if record.name == progress.__name__)


def test_an_error_gives_the_terminal_back(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    task = Task()
    task.validation_step = lambda batch, batch_idx: 1 / (0 if task.global_step else 1)
    with pytest.raises(ZeroDivisionError):
        trainer_of(tmp_path, Progress(), max_epochs=1).fit(task, loader(4), loader(2))
    assert sys.stderr is screen
    assert screen.getvalue().rstrip().endswith("\x1b[?25h")


def test_a_notebook_without_widgets_gets_lines(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert lines(tmp_path, caplog, max_epochs=1)[-1].endswith("val/loss 3 (best)")


def test_a_file_gets_whole_lines_without_escapes(tmp_path):
    options = [f"--trainer.default_root_dir={tmp_path / 'run'}", "--terminal.every_seconds=0.001"]
    shown = good(forked(*TOY_FIT, *options, cwd=tmp_path)).stderr
    assert "\r" not in shown and "\x1b" not in shown
    told = [line for line in shown.splitlines() if line.startswith("step ") and "validation" not in line]
    assert len(told) >= 60 and all(LINE.fullmatch(line) for line in told)


def test_no_bar_when_it_is_turned_off(tmp_path):
    options = [f"--trainer.default_root_dir={tmp_path / 'run'}", "--trainer.enable_progress_bar=false"]
    shown = good(forked(*TOY_FIT, *options, cwd=tmp_path)).stderr
    assert "step 10/60" not in shown and "trained  " in shown
