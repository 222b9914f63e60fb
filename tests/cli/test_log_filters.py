import logging
import re
import sys
import warnings

import pytest

from zoo.cli import log_filters


def record(text, name="lightning.pytorch.utilities.rank_zero", level=logging.INFO, **extra):
    made = logging.LogRecord(name, level, "", 0, text, None, None)
    vars(made).update(extra)
    return made


@pytest.fixture
def first(monkeypatch):
    for name in log_filters.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "lightning_utilities.core.rank_zero", None)


@pytest.mark.parametrize(
    "text",
    [
        "GPU available: True (cuda), used: False",
        "TPU available: False, using: 0 TPU cores",
        "`Trainer.fit` stopped: `max_steps=40` reached.",
        "💡 Tip: For seamless cloud logging and experiment tracking, try installing [litlogger](https://…)",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2",
        "-" * 80 + "\ndistributed_backend=gloo\nAll distributed processes registered.",
        "Restored all states from the checkpoint at run/step_00000040.ckpt",
        "[rank: 1] Seed set to 1234",
        "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0]",
    ],
)
def test_known_messages_of_lightning_are_left_out(first, monkeypatch, text):
    assert not log_filters.TerminalHandler().filter(record(text))
    assert log_filters.TerminalHandler().filter(record(text, name="zoo.training.task"))  # never ours
    monkeypatch.setenv("ZOO_VERBOSITY", "verbose")
    assert log_filters.TerminalHandler().filter(record(text))


def test_unknown_messages_are_shown(first):
    terminal = log_filters.TerminalHandler()
    assert terminal.filter(record("`Trainer.fit` stopped: No training batches."))
    assert terminal.filter(record("Metric val/loss improved", name="lightning.pytorch.callbacks.early_stopping"))
    assert terminal.filter(record("anything", name="somebody"))
    assert not terminal.filter(record("anything", name="zoo", terminal=False))


def test_other_ranks_show_warnings_with_their_number(first, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    terminal = log_filters.TerminalHandler()
    assert not terminal.filter(record("anything", name="zoo"))
    warning = record("anything", name="zoo", level=logging.WARNING)
    assert terminal.filter(warning) and terminal.format(warning) == "rank 1: anything"
    assert not terminal.filter(record("SIGINT: saving at the next step boundary, then …", "zoo", logging.WARNING))


def warned(text, category, module):
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        log_filters.filter_warnings()
        warnings.warn_explicit(text, category, "file.py", 1, module=module)
    return bool(caught)


def test_warnings_of_the_table_are_left_out_and_no_others(monkeypatch):
    few = "The number of training batches (2) is smaller than the logging interval Trainer(log_every_n_steps=5)."
    assert not warned(few, UserWarning, "lightning.pytorch.loops.fit_loop")
    assert not warned("`torch.x` is deprecated", FutureWarning, "torch.nn")
    assert warned("`torch.x` is deprecated", FutureWarning, "torch_of_somebody")
    assert warned("`zoo.x` is deprecated", FutureWarning, "zoo.flow.task")
    assert warned("a lengthy\ntext", UserWarning, "torch.nn")
    assert not warned("a lengthy\ntext about LeafSpec", UserWarning, "torch.nn")
    monkeypatch.setenv("ZOO_VERBOSITY", "verbose")
    assert warned(few, UserWarning, "lightning.pytorch.loops.fit_loop")


def test_every_filter_has_a_reason_and_none_matches_everything():
    for noise in (*log_filters.WARNINGS, *log_filters.MESSAGES, *log_filters.OF_ALL_RANKS):
        assert noise.reason
        assert not re.search(noise.pattern, "a text") if noise.pattern else noise.module


def test_a_program_with_handlers_keeps_them(monkeypatch):
    root, kept = logging.getLogger(), logging.NullHandler()
    monkeypatch.setattr(root, "handlers", [kept])
    log_filters.configure_logging()
    assert root.handlers == [kept]
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setenv("ZOO_VERBOSITY", "quiet")
    log_filters.configure_logging()
    (handler,) = root.handlers
    assert handler.level == logging.WARNING
    log_filters.configure_logging()
    assert root.handlers == [handler]


def test_a_run_within_another_command_is_quiet_unless_asked_otherwise(monkeypatch):
    monkeypatch.delenv("ZOO_VERBOSITY", raising=False)
    with log_filters.quiet_output():
        assert log_filters.verbosity() == "quiet"
    assert log_filters.verbosity() == "normal"
    monkeypatch.setenv("ZOO_VERBOSITY", "verbose")
    with log_filters.quiet_output():
        assert log_filters.verbosity() == "verbose"
    assert log_filters.verbosity() == "verbose"
    monkeypatch.setenv("ZOO_VERBOSITY", "loud")
    with pytest.raises(ValueError, match="ZOO_VERBOSITY is 'loud', expected one of quiet, normal, verbose"):
        log_filters.verbosity()
