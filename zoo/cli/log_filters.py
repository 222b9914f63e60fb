"""What of the libraries' messages does not reach the terminal, with the reason of each; train.log keeps the records.

Whatever stands in no table is shown, and so is all that the zoo or a package of the user's says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

from zoo.common.environment import VERBOSITY_VARIABLE, process_rank, verbosity

LIGHTNING = ("lightning", "lightning.pytorch", "lightning.fabric")  # loggers with handlers of their own
LIBRARIES = "torch|torchvision|torchaudio|torchmetrics|lightning|lightning_utilities|transformers|peft|huggingface_hub"

# Regular expressions that match anywhere in a suppressed text -> the reason.
WARNINGS = {
    "LeafSpec": "Lightning's use of torch",
    "dataloader is not resumable": "given for loaders that do resume: zoo.training.resume",
    "does not have many workers": "num_workers of a recipe is meant",
    "sync_dist=True": "given for values that are reduced already",
    "in eval mode at the start of training": "frozen backbones rest",
    "overridden `on_before_batch_transfer`": "by the tasks, and meant",
    "is smaller than the logging interval": "steps are counted over epochs, so values are logged all the same",
    "GPU available but not used": "the line of the devices says so",
    "`srun` command is available": "a process started without it is meant to be one",
    "Detected call of `lr_scheduler.step": "discriminators that start later share the generator's schedule",
    "Failed to load image Python extension": "torchvision's, which reads no images here",
}
MESSAGES = {
    "litlogger|litmodels": "an advertisement",
    "^(GPU|TPU|HPU|IPU) available": "the line of the devices says so",
    r"Automatic Mixed Precision \(AMP\)$": "the line of the precision says so",
    "has Tensor Cores": "no recipe has a key for the precision of float32 products; bf16 is the way",
    "^LOCAL_RANK: ": "the lines of the devices say so",
    "^Initializing distributed|^-+\ndistributed_backend=": "the line of the processes says so",
    "`max_(steps|epochs)=.*` reached": "the summary at the end says so",
    "^Restor(ing|ed) ": "the run's first lines name the checkpoint",
    "^Loaded model weights from ": "the command names the checkpoint",
    "Loading `train_dataloader` to estimate": "of no consequence",
    "^Time limit reached": "the summary at the end says so",
    r"^(\[rank: \d+\] )?Seed set to ": "config.yaml says so",
}
OTHER_RANKS = {"saving at the next step boundary": "each process notes the signal"}


class TerminalHandler(logging.StreamHandler[TextIO]):
    """Shows records on standard error as it is at the time, which a progress bar may have replaced.

    Records with `terminal=False` are for files. Quiet commands and processes other than the first, whose number is
    shown, show warnings and errors only.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record is shown."""
        is_first = _rank() == 0
        lowest = logging.INFO if is_first and verbosity() != "quiet" else logging.WARNING
        if not getattr(record, "terminal", True) or record.levelno < lowest:
            return False
        is_suppressed = record.name.startswith("lightning") and verbosity() != "verbose"
        patterns = [*(MESSAGES if is_suppressed else ()), *(() if is_first else OTHER_RANKS)]
        return not any(re.search(pattern, record.getMessage()) for pattern in patterns)

    def format(self, record: logging.LogRecord) -> str:
        """Write the text, with the process's number where it is not the first."""
        rank = _rank()
        return super().format(record) if rank == 0 else f"rank {rank}: {super().format(record)}"


def _rank() -> int:
    """Return this process's number; Lightning knows it of processes that it forked."""
    rank_zero_module = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(rank_zero_module, "rank_zero_only", None), "rank", None)
    return process_rank()[0] if rank is None else int(rank)


@contextlib.contextmanager
def quiet_output() -> Iterator[None]:
    """Let a run within another command print nothing but warnings, unless the user set a verbosity."""
    previous = os.environ.get(VERBOSITY_VARIABLE)
    os.environ[VERBOSITY_VARIABLE] = previous or "quiet"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[VERBOSITY_VARIABLE]


def filter_warnings() -> None:
    """Suppress the warnings of the table and those between libraries; call it before libraries are imported."""
    if verbosity() == "verbose":
        return
    for pattern in WARNINGS:
        warnings.filterwarnings("ignore", message=f"(?s).*({pattern})")
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=rf"({LIBRARIES})(\.|$)")


def configure_logging() -> None:
    """Send log records to the terminal, Lightning's included; handlers of a host program stay."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(TerminalHandler())
        root.setLevel(logging.INFO)
    logging.getLogger("zoo").setLevel(logging.INFO)  # for train.log; the root logger of a host program may say less
    for name in LIGHTNING:
        logger = logging.getLogger(name)
        logger.handlers = [each for each in logger.handlers if type(each) is not logging.StreamHandler]
        logger.propagate = True
    logging.getLogger("DeepSpeed").addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    """Drop what DeepSpeed prints when transformers imports it: the line of the devices says so."""
    return verbosity() == "verbose" or "Setting accelerator to CPU" not in record.getMessage()


def printable(value: object) -> str:
    """Write a text, which may come from a file, on one line and without what a terminal would obey."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(value))
