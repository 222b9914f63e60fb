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

from zoo.common.options import VERBOSITY_VARIABLE, verbosity

LIGHTNING = ("lightning", "lightning.pytorch", "lightning.fabric")  # loggers with handlers of their own
LIBRARIES = "torch|torchvision|torchaudio|torchmetrics|lightning|lightning_utilities|transformers|peft|huggingface_hub"
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")


class Noise(NamedTuple):
    """A known message of a library.

    Args:
        pattern: regular expression that matches anywhere in the text.
        reason: why nobody misses it.
        category: of a warning.
        module: regular expression of the names of modules that a warning is about.
    """

    pattern: str
    reason: str
    category: type[Warning] = Warning
    module: str = ""


WARNINGS = (
    Noise("LeafSpec", "Lightning's use of torch"),
    Noise("dataloader is not resumable", "said of loaders that do resume: zoo.training.data"),
    Noise("does not have many workers", "num_workers of a recipe is meant"),
    Noise("sync_dist=True", "said of values that are reduced already"),
    Noise("in eval mode at the start of training", "frozen backbones rest"),
    Noise("overridden `on_before_batch_transfer`", "by the tasks, and meant"),
    Noise("is smaller than the logging interval", "steps are counted over epochs, so values are logged all the same"),
    Noise("GPU available but not used", "the line of the devices says so"),
    Noise("`srun` command is available", "a process started without it is meant to be one"),
    Noise("Detected call of `lr_scheduler.step", "discriminators that start later share the generator's schedule"),
    Noise("Failed to load image Python extension", "torchvision's, which reads no images here"),
    Noise("", "between libraries", FutureWarning, rf"({LIBRARIES})(\.|$)"),
    Noise("", "between libraries", DeprecationWarning, rf"({LIBRARIES})(\.|$)"),
)
MESSAGES = (
    Noise("litlogger|litmodels", "an advertisement"),
    Noise("^(GPU|TPU|HPU|IPU) available", "the line of the devices says so"),
    Noise("^LOCAL_RANK: ", "the lines of the devices say so"),
    Noise("^Initializing distributed|^-+\ndistributed_backend=", "the line of the processes says so"),
    Noise("`max_(steps|epochs)=.*` reached", "the end of the run is told with its results"),
    Noise("^Restor(ing|ed) ", "the run's first lines name the checkpoint"),
    Noise("^Loaded model weights from ", "the command names the checkpoint"),
    Noise("Loading `train_dataloader` to estimate", "of no consequence"),
    Noise("^Time limit reached", "the end of the run is told with its results"),
    Noise(r"^(\[rank: \d+\] )?Seed set to ", "config.yaml says so"),
)
OF_ALL_RANKS = (Noise("saving at the next step boundary", "each process notes the signal"),)


class Terminal(logging.StreamHandler[TextIO]):
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
        known = [] if verbosity() == "verbose" else [*MESSAGES] if record.name.startswith("lightning") else []
        text = record.getMessage()
        return not any(re.search(noise.pattern, text) for noise in [*known, *(() if first else OF_ALL_RANKS)])

    def format(self, record: logging.LogRecord) -> str:
        """The text, with the process's number where it is not the first."""
        rank = _rank()
        return super().format(record) if rank == 0 else f"rank {rank}: {super().format(record)}"


def _rank() -> int:
    """This process's number; Lightning knows it of processes that it forked."""
    told = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(told, "rank_zero_only", None), "rank", None)
    if rank is not None:
        return int(rank)
    return int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0"))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Let a run within another command tell nothing but warnings, unless the user asked for a verbosity."""
    asked = os.environ.get(VERBOSITY_VARIABLE)
    os.environ[VERBOSITY_VARIABLE] = asked or "quiet"
    try:
        yield
    finally:
        if asked is None:
            del os.environ[VERBOSITY_VARIABLE]


def filter_warnings() -> None:
    """Leave out the warnings of the table; before libraries are imported, which warn then."""
    if verbosity() == "verbose":
        return
    for noise in WARNINGS:
        anywhere = f"(?s).*({noise.pattern})" if noise.pattern else ""
        warnings.filterwarnings("ignore", message=anywhere, category=noise.category, module=noise.module)


def show_records() -> None:
    """Send records to the terminal, Lightning's by the same way; a program that has handlers of its own keeps them."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(Terminal())
        root.setLevel(logging.INFO)
    for handler in root.handlers:
        if isinstance(handler, Terminal):
            handler.setLevel(logging.WARNING if verbosity() == "quiet" else logging.INFO)
    for name in LIGHTNING:
        logger = logging.getLogger(name)
        logger.handlers = [each for each in logger.handlers if type(each) is not logging.StreamHandler]
        logger.propagate = True


def printable(value: object) -> str:
    """A text, which may come from a file, on one line and without what a terminal would obey."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(value))
