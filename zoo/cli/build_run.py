"""A recipe as Python objects, by the parser of `zoo fit`: `zoo.build`, and trainings that a tool runs a little of."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from zoo.cli.log_filters import configure_logging, filter_warnings, quiet_output
from zoo.cli.recipes import config_files
from zoo.cli.trainer import ZooCLI, resolve_checkpoint, start_from_weights
from zoo.common.locks import lock_folder
from zoo.common.registry import allow_packages
from zoo.runs.checkpoints import find_checkpoint, read_step
from zoo.runs.init_from import init_from
from zoo.runs.run_folder import run_folder
from zoo.training.task import ZooTask

TRIAL_SETTINGS = {  # one process, without validation and end; schedules may end at max_steps, so it is a number
    "devices": 1, "num_nodes": 1, "strategy": "auto", "limit_val_batches": 0, "num_sanity_val_steps": 0,
    "fast_dev_run": False, "max_steps": 10**9, "max_epochs": -1, "max_time": "null", "min_steps": "null",
    "min_epochs": "null",
}  # fmt: skip


def build(
    recipe: str, overrides: Sequence[str] = (), allow_import: Sequence[str] = ()
) -> tuple[ZooTask, L.LightningDataModule, L.Trainer]:
    """Build what `zoo fit RECIPE OVERRIDES` trains; `trainer.fit(task, data)` trains it in a new run folder.

    Example: `task, data, trainer = zoo.build("flow/base", ["data.root=pics"])`. The seed of the recipe is set and the
    weights of `init_from` are loaded. `zoo fit --ckpt_path RUN` resumes such a run.

    Args:
        recipe: its name (`zoo list`) or a YAML file.
        overrides: options of `zoo fit`, as `KEY=VALUE` or `--KEY=VALUE`, and further recipes.
        allow_import: packages of your own whose registered classes may be named.

    Raises:
        ValueError: an unknown recipe or key, or a value that does not fit; the message names it.
    """
    filter_warnings()
    configure_logging()
    allow_packages(allow_import)
    cli = ZooCLI("fit", [recipe, *overrides])
    if cli.checkpoint is not None:
        raise ValueError("ckpt_path: build starts new runs; zoo fit --ckpt_path RUN resumes one")
    start_from_weights(cli)
    cli.trainer.callbacks.append(_FolderLock())  # type: ignore[attr-defined]
    return cli.model, cli.datamodule, cli.trainer


class _FolderLock(L.Callback):
    """Locks the run folder while `trainer.fit` runs, as `zoo fit` does for its whole command."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Lock; ValueError where another command writes."""
        if stage == "fit":
            self._stack.enter_context(lock_folder(run_folder(trainer), "fit"))

    def teardown(self, *_: Any, **__: Any) -> None:
        """Unlock."""
        self._stack.close()

    on_exception = teardown


class _Trial(ZooCLI):
    """Builds a training that writes into the folder that it is given, a run's checkpoint or not."""

    def before_instantiate_classes(self) -> None:
        """Leave a run's folder alone."""
        source = self.config["ckpt_path"]
        self.checkpoint = None if source is None else find_checkpoint(Path(source))
        self.folder = Path(self.config["trainer.default_root_dir"])
        self.trainer_defaults["callbacks"] = self.callbacks()


@contextlib.contextmanager
def trial(words: Sequence[str], **trainer: Any) -> Iterator[ZooCLI]:
    """Build a training in a temporary folder that is deleted at the end; only warnings are shown.

    Args:
        words: a recipe, fragments and options of `zoo fit`; or `--ckpt_path RUN` alone, which brings its recipe.
        **trainer: settings of the Trainer that win.
    """
    with tempfile.TemporaryDirectory(prefix="zoo-trial-") as folder, quiet_output():
        settings = {**TRIAL_SETTINGS, **trainer, "default_root_dir": Path(folder) / "run"}
        options = [f"--trainer.{key}={value}" for key, value in settings.items()]
        arguments, source_run = resolve_checkpoint("fit", [*words])
        if not config_files(arguments):
            raise ValueError("no recipe is named: `zoo list` names them, and --ckpt_path RUN brings a run's own")
        configure_logging()
        yield _Trial("fit", [*arguments, *options], source_run)


def train(cli: ZooCLI) -> None:
    """Train with fresh optimizers: from the weights of the checkpoint or of `init_from`, where one is named."""
    if cli.checkpoint is None:
        start_from_weights(cli)
    else:
        init_from(cli.model, cli.checkpoint, 1.0)
        if hasattr(cli.model, "discriminator_start"):  # which counts batches of the run
            cli.model.discriminator_start = max(0, cli.model.discriminator_start - read_step(cli.checkpoint))
    cli.trainer.fit(cli.model, cli.datamodule)
