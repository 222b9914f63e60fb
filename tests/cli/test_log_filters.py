"""Known messages of libraries are suppressed, all others are shown."""

import logging
import sys
import warnings

import pytest

from zoo.cli import log_filters


def record(text, name="lightning.pytorch.utilities.rank_zero", level=logging.INFO, **extra):
    made = logging.LogRecord(name, level, "", 0, text, None, None)
    vars(made).update(extra)
    return made


@pytest.fixture(autouse=True)
def first_process(monkeypatch):
    monkeypatch.delenv("ZOO_VERBOSITY", raising=False)
    monkeypatch.setattr(log_filters, "process_rank", lambda: (0, 1))
    monkeypatch.setitem(sys.modules, "lightning_utilities.core.rank_zero", None)


def test_unknown_messages_are_shown_and_of_other_ranks_warnings_with_their_number(monkeypatch):
    terminal = log_filters.TerminalHandler()
    assert terminal.filter(record("`Trainer.fit` stopped: No training batches."))
    assert not terminal.filter(record("anything", name="zoo", terminal=False))
    monkeypatch.setattr(log_filters, "process_rank", lambda: (1, 2))
    assert not terminal.filter(record("anything", name="zoo"))
    warning = record("anything", name="zoo", level=logging.WARNING)
    assert terminal.filter(warning) and terminal.format(warning) == "rank 1: anything"
    assert not terminal.filter(record("SIGINT: saving at the next step boundary, then …", "zoo", logging.WARNING))


@pytest.mark.parametrize(
    ("text", "category", "module", "is_shown"),
    [
        ("2 batches is smaller than the logging interval", UserWarning, "lightning.pytorch.loops.fit_loop", False),
        ("`torch.x` is deprecated", FutureWarning, "torch.nn", False),
        ("`zoo.x` is deprecated", FutureWarning, "zoo.flow.task", True),
    ],
)
def test_warnings_of_the_table_are_suppressed_and_no_others(monkeypatch, text, category, module, is_shown):
    for level in ("normal", "verbose"):
        monkeypatch.setenv("ZOO_VERBOSITY", level)
        with warnings.catch_warnings(record=True) as caught:
            warnings.resetwarnings()
            log_filters.filter_warnings()
            warnings.warn_explicit(text, category, "file.py", 1, module=module)
        assert bool(caught) == (is_shown or level == "verbose")


def test_handlers_of_a_program_stay(monkeypatch):
    root, separate = logging.getLogger(), logging.NullHandler()
    monkeypatch.setattr(root, "handlers", [separate])
    log_filters.configure_logging()
    assert root.handlers == [separate]
    root.handlers.clear()
    monkeypatch.setenv("ZOO_VERBOSITY", "quiet")
    for _ in range(2):
        log_filters.configure_logging()
        assert [handler.filter(record("anything")) for handler in root.handlers] == [False]
