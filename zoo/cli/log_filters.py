"""What of the libraries' messages does not reach the terminal, with the reason of each; train.log keeps the records.

Whatever stands in neither table is shown, and so is all that the zoo or a package of the user's says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple, TextIO

from zoo.common.environment import VERBOSITY_VARIABLE, verbosity

LIGHTNING = ("lightning", "lightning.pytorch", "lightning.fabric")  # loggers with handlers of their own
LIBRARIES = "torch|torchvision|torchaudio|torchmetrics|lightning|lightning_utilities|transformers|peft|huggingface_hub"
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")


class SuppressedMessage(NamedTuple):
    """A known message of a library.

    Args:
        pattern: regular expression that matches anywhere in the text.
        reason: why it is not shown.
        category: of a warning.
        module: regular expression of the names of modules that a warning is about.
    """

    pattern: str
    reason: str
    category: type[Warning] = Warning
    module: str = ""


WARNINGS = (
    SuppressedMessage("LeafSpec", "Lightning's use of torch"),
    SuppressedMessage("dataloader is not resumable", "said of loaders that do resume: zoo.training.resume"),
    SuppressedMessage("does not have many workers", "num_workers of a recipe is meant"),
    SuppressedMessage("sync_dist=True", "said of values that are reduced already"),
    SuppressedMessage("in eval mode at the start of training", "frozen backbones rest"),
    SuppressedMessage("overridden `on_before_batch_transfer`", "by the tasks, and meant"),
    SuppressedMessage(
        "is smaller than the logging interval", "steps are counted over epochs, so values are logged all the same"
    ),
    SuppressedMessage("GPU available but not used", "the line of the devices says so"),
    SuppressedMessage("`srun` command is available", "a process started without it is meant to be one"),
    SuppressedMessage(
        "Detected call of `lr_scheduler.step", "discriminators that start later share the generator's schedule"
    ),
    SuppressedMessage("Failed to load image Python extension", "torchvision's, which reads no images here"),
    SuppressedMessage("", "between libraries", FutureWarning, rf"({LIBRARIES})(\.|$)"),
    SuppressedMessage("", "between libraries", DeprecationWarning, rf"({LIBRARIES})(\.|$)"),
)
MESSAGES = (
    SuppressedMessage("litlogger|litmodels", "an advertisement"),
    SuppressedMessage("^(GPU|TPU|HPU|IPU) available", "the line of the devices says so"),
    SuppressedMessage("^LOCAL_RANK: ", "the lines of the devices say so"),
    SuppressedMessage("^Initializing distributed|^-+\ndistributed_backend=", "the line of the processes says so"),
    SuppressedMessage("`max_(steps|epochs)=.*` reached", "the end of the run is told with its results"),
    SuppressedMessage("^Restor(ing|ed) ", "the run's first lines name the checkpoint"),
    SuppressedMessage("^Loaded model weights from ", "the command names the checkpoint"),
    SuppressedMessage("Loading `train_dataloader` to estimate", "of no consequence"),
    SuppressedMessage("^Time limit reached", "the end of the run is told with its results"),
    SuppressedMessage(r"^(\[rank: \d+\] )?Seed set to ", "config.yaml says so"),
)
OF_ALL_RANKS = (SuppressedMessage("saving at the next step boundary", "each process notes the signal"),)


class TerminalHandler(logging.StreamHandler[TextIO]):
    """Shows records on standard error as it is at the time, which a progress bar may have replaced.

    Records with `terminal=False` are for files. Processes other than the first show warnings and errors only, with
    their number.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(message)s"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is shown."""
        if not getattr(record, "terminal", True):
            return False
        first = _rank() == 0
        if not first and record.levelno < logging.WARNING:
            return False
        suppressed = [] if verbosity() == "verbose" else [*MESSAGES] if record.name.startswith("lightning") else []
        text = record.getMessage()
        return not any(re.search(noise.pattern, text) for noise in [*suppressed, *(() if first else OF_ALL_RANKS)])

    def format(self, record: logging.LogRecord) -> str:
        """The text, with the process's number where it is not the first."""
        rank = _rank()
        return super().format(record) if rank == 0 else f"rank {rank}: {super().format(record)}"


def _rank() -> int:
    """This process's number; Lightning knows it of processes that it forked."""
    rank_zero_module = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(rank_zero_module, "rank_zero_only", None), "rank", None)
    if rank is not None:
        return int(rank)
    return int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0"))


@contextlib.contextmanager
def quiet_output() -> Iterator[None]:
    """Let a run within another command tell nothing but warnings, unless the user asked for a verbosity."""
    previous = os.environ.get(VERBOSITY_VARIABLE)
    os.environ[VERBOSITY_VARIABLE] = previous or "quiet"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[VERBOSITY_VARIABLE]


def filter_warnings() -> None:
    """Leave out the warnings of the table; before libraries are imported, which warn then."""
    if verbosity() == "verbose":
        return
    for noise in WARNINGS:
        anywhere = f"(?s).*({noise.pattern})" if noise.pattern else ""
        warnings.filterwarnings("ignore", message=anywhere, category=noise.category, module=noise.module)


def configure_logging() -> None:
    """Send log records to the terminal, Lightning's included; handlers of a host program stay."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(TerminalHandler())
        root.setLevel(logging.INFO)
    for handler in root.handlers:
        if isinstance(handler, TerminalHandler):
            handler.setLevel(logging.WARNING if verbosity() == "quiet" else logging.INFO)
    for name in LIGHTNING:
        logger = logging.getLogger(name)
        logger.handlers = [each for each in logger.handlers if type(each) is not logging.StreamHandler]
        logger.propagate = True


def printable(value: object) -> str:
    """A text, which may come from a file, on one line and without what a terminal would obey."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(value))
