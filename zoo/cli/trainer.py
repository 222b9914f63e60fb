"""fit, validate, test: LightningCLI in subclass mode, with our callbacks and run folders.

Every command takes the same flat config, so that the config.yaml of a run serves all of them.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed
import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.environments import SLURMEnvironment
from omegaconf import OmegaConf

from zoo import __version__
from zoo.cli.log_filters import configure_logging, filter_warnings
from zoo.cli.parser import PARSER_MODE, OneLineParser, RefusedError, explain_refusal, restrict_imports, use_public_names
from zoo.cli.recipes import TOP_LEVEL, WrongNameError, compose_arguments, config_files, merge_files, take_option
from zoo.common import registry
from zoo.common.atomic_files import LOCK_NAME, delete_path, write_atomic
from zoo.common.configs import ConfigFileError, check_config_paths, load_yaml, read_mapping
from zoo.common.foreign_files import iterate_keys
from zoo.common.locks import is_rank_zero, lock_folder
from zoo.runs import frozen, frozen_files
from zoo.runs import run_folder as runs
from zoo.runs.checkpoints import find_checkpoint, load_checkpoint, read_step
from zoo.runs.hub.models import is_hub_name, pin_revisions
from zoo.runs.init_from import init_from
from zoo.runs.metrics_csv import MetricsCSV
from zoo.runs.model_description import describe_model
from zoo.runs.run_info import RECIPE_MARK, describe_config_changes, find_runs, read_recipe_name, read_settings
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO, Checkpoints, is_fast_dev_run
from zoo.training.callbacks.checkpoint_contents import CheckpointContents, check_checkpoint
from zoo.training.callbacks.loggers import LoggerName, RunInfoLogger, WandbSettings, make_loggers
from zoo.training.callbacks.metrics import TrainingMetrics
from zoo.training.callbacks.progress import ProgressBar
from zoo.training.callbacks.rng import RNGState
from zoo.training.callbacks.samples import Samples
from zoo.training.callbacks.summary import RunSummary, print_summary
from zoo.training.callbacks.train_log import TrainLog
from zoo.training.datamodule import ZooDataModule
from zoo.training.errors import ConnectionLostError, explain_error
from zoo.training.task import ZooTask

log = logging.getLogger(__name__)

DEFAULT_SEED = 1234
STRATEGIES = "expected auto, ddp, zoo.training.FSDP or zoo.training.DeepSpeed (recipes trainer/fsdp, trainer/deepspeed)"
POSITIVE = {  # numbers that Lightning and the loaders divide by
    "accumulate_grad_batches", "batch_size", "check_val_every_n_epoch", "every_n_steps", "val_check_interval",
}  # fmt: skip


def recipe_name(configs: Sequence[str]) -> str:
    """Name a recipe by the first file or name, e.g. hifigan/smoke; a run's own config names the run's recipe."""
    if not configs:
        return "unnamed"
    first = Path(configs[0]).absolute()
    if first.name == runs.CONFIG_NAME:
        name = read_recipe_name(first) or ""
        parts = name.split("/")  # a file may say anything: runs are named by it, below their root
        if name == "unnamed" or (len(parts) == 2 and not {"", ".", ".."} & {*parts}):
            return name
    folder = first.parent.parent if first.parent.name == "configs" else first.parent
    return f"{folder.name or 'unnamed'}/{first.stem}"


def resolve_checkpoint(command: str, args: list[str]) -> tuple[list[str], Path | None]:
    """Replace `--ckpt_path last` and `auto` by a run, and add a run's config where no recipe of a model is named.

    Returns the arguments, and the run whose own config is among them.
    """
    values, rest = take_option(args, "--ckpt_path")
    if not values:
        return args, None
    value, settings = values[-1], merge_files(rest)
    if is_hub_name(value):
        raise ValueError(f"--ckpt_path {value}: {command} needs a run; fit --init_from takes the weights of a hub")
    if "://" in value:
        raise ValueError(f"--ckpt_path {value}: checkpoints are read from local paths only; download it first")
    if value in ("last", "auto"):
        configs, roots = config_files(rest), take_option(rest, "--trainer.default_root_dir")[0]
        named = roots[-1] if roots else OmegaConf.select(OmegaConf.create(settings), "trainer.default_root_dir")
        root = Path(named) if named else runs.RUNS_ROOT / (recipe_name(configs) if "model" in settings else "")
        newest = runs.find_latest_run(root)
        if newest is None and value == "auto" and command == "fit":
            return rest, None
        if newest is None:
            raise FileNotFoundError(f"--ckpt_path {value}: no run with a checkpoint below {root}")
        value = str(newest)
    if not Path(value).exists():
        raise FileNotFoundError(f"--ckpt_path: nothing at {value}")
    if {"model", "data"} <= settings.keys():
        return [*rest, f"--ckpt_path={value}"], None
    config = runs.find_config(Path(value))
    return [f"--config={config}", *rest, f"--ckpt_path={value}"], config.parent


def choose_run_folder(command: str, config: Mapping[str, Any], recipe: str) -> tuple[Path | None, Path]:
    """Find the checkpoint that a command means and the folder that it writes to.

    A resumed run continues in its folder, unless it starts from an older checkpoint than the newest there.
    """
    root, path = config["trainer.default_root_dir"], config["ckpt_path"]
    checkpoint = None if path is None else find_checkpoint(Path(path))
    if command != "fit":
        if checkpoint is None:
            raise ValueError(f"{command} needs --ckpt_path, a run or a checkpoint: a recipe has no trained weights")
        return checkpoint, Path(root) if root else checkpoint.parent
    if checkpoint is not None:
        is_newest = checkpoint == find_checkpoint(checkpoint.parent)
        if is_newest or checkpoint != Path(path):
            return checkpoint, checkpoint.parent
    folder = Path(root) if root else runs.new_run_folder(recipe)
    if next(folder.glob("*.ckpt"), None) is not None:
        raise ValueError(
            f"{folder} already holds a run: resume it by --ckpt_path {folder}, "
            "or choose another trainer.default_root_dir"
        )
    inner = next(find_runs(folder), folder)
    if inner != folder:
        raise ValueError(
            f"{folder} holds other runs ({inner}): trainer.default_root_dir is the folder of one run alone"
        )
    return checkpoint, folder


class ZooParser(OneLineParser, LightningArgumentParser):
    """LightningCLI's parser, in which no text of a config stands for another file."""

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments, of which none is read from a file."""
        return super().add_class_arguments(*args, **{**kwargs, "sub_configs": False})


def check_values(config: Mapping[str, Any]) -> None:
    """Refuse values that Lightning takes and fails at later, or that would read checkpoints by pickle."""
    for key, value in iterate_keys(config):
        if key.rpartition(".")[2] in POSITIVE and type(value) in (int, float) and value <= 0:
            raise WrongNameError(f"{key} is {value}; expected a number above 0")
        if isinstance(value, float) and (math.isnan(value) or (key.endswith(".lr") and math.isinf(value))):
            raise WrongNameError(f"{key} is {value}; expected a finite number")
    if config["trainer"]["max_steps"] is None:
        raise WrongNameError("trainer.max_steps is null; expected a number, -1 for no limit")
    if config["trainer"]["overfit_batches"]:
        raise WrongNameError("trainer.overfit_batches would train on other batches in each epoch: use fewer data")
    strategy = config["trainer"]["strategy"]
    if isinstance(strategy, str) and strategy != "auto" and not strategy.lower().startswith("ddp"):
        raise WrongNameError(f"trainer.strategy is {strategy}; {STRATEGIES}")
    seed = config["seed_everything"]
    if seed is not None and not 0 <= seed < 2**32:
        raise WrongNameError(f"seed_everything is {seed}; expected 0 to {2**32 - 1}")


def explain_build(error: Exception) -> Exception:
    """Turn what went wrong while a config's objects were built into one line that names the class.

    A missing file or package keeps its error. (jsonargparse wraps what a constructor says in pages about types.)
    """
    cause = error.__cause__ if isinstance(error, ValueError) and isinstance(error.__cause__, Exception) else error
    if isinstance(cause, OSError | ImportError):
        return cause
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__) if frame.f_code.co_name == "__init__"]
    names = [registry.public_name(type(frame.f_locals.get("self"))) for frame in frames]
    owner = next((name for name in reversed(names) if registry.defining_module(name) is not None), "the config")
    reason = str(cause) if isinstance(cause, ValueError) else f"{type(cause).__name__}: {cause}"
    return WrongNameError(f"{owner}: {reason}")


class ConfigFile(L.Callback):
    """Writes the resolved config of a fit, which `read_config` returns as YAML, into its run folder.

    A resumed run keeps its former config until its first step, so a resume that is refused changes nothing.
    """

    def __init__(self, read_config: Callable[[], str]) -> None:
        self._read_config = read_config

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the config of a new run."""
        self._is_pending = trainer.is_global_zero and not is_fast_dev_run(trainer)
        if trainer.ckpt_path is None:
            self._write(trainer)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remove what a resumed run has logged beyond its checkpoint, and say what its config changes."""
        if trainer.ckpt_path is not None:
            former = Path(trainer.ckpt_path).with_name(runs.CONFIG_NAME)
            changes = ""
            with contextlib.suppress(ConfigFileError, FileNotFoundError):  # a checkpoint of elsewhere
                changes = describe_config_changes(read_mapping(former), load_yaml(self._read_config()))
            if changes and trainer.is_global_zero:
                log.warning("resumed with %s: this is no longer the run that was interrupted", changes)
            for logger in trainer.loggers:
                if isinstance(logger, MetricsCSV):
                    logger.trim(trainer.global_step - 1)  # rows carry the number of the batch, from 0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Write the config of a resumed run after its first step."""
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if self._is_pending:
            self._is_pending = False
            text = self._read_config().encode()
            write_atomic(runs.run_folder(trainer) / runs.CONFIG_NAME, lambda file: file.write(text))


class ZooCLI(LightningCLI):
    """Parse one of the Trainer's commands and build model, data and trainer; `run` calls the trainer.

    Args:
        command: fit, validate or test.
        args: the command's arguments.
        source_run: the run whose own config is among them, where no command line named it.
        lock_stack: takes the lock of a fit's run folder, for as long as it is open; no lock when not given.
    """

    def __init__(
        self,
        command: str,
        args: list[str],
        source_run: Path | None = None,
        lock_stack: contextlib.ExitStack | None = None,
    ) -> None:
        restrict_imports()
        self.command = command
        self.source_run = source_run
        self.lock_stack = lock_stack
        self.recipe = recipe_name(config_files(args))
        self.names_root = bool(take_option(args, "--trainer.default_root_dir")[0])
        super().__init__(
            save_config_callback=None,
            seed_everything_default=DEFAULT_SEED,
            parser_kwargs={
                "prog": f"zoo {command}",
                "parser_mode": PARSER_MODE,
                "dump_header": [f"zoo=={__version__}", f"{RECIPE_MARK}{self.recipe}"],
                "allow_abbrev": False,
            },
            parser_class=ZooParser,
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add all arguments; model and data are classes by name, and no files."""
        parser.add_lightning_class_args(L.Trainer, "trainer")
        parser.set_defaults({"trainer.use_distributed_sampler": False})
        parser.add_argument("--model", type=ZooTask, required=True)
        parser.add_argument("--data", type=L.LightningDataModule, required=True)
        parser.add_lightning_class_args(Checkpoints, "checkpoints")
        parser.add_lightning_class_args(Samples, "samples")
        parser.add_argument("--loggers", type=list[LoggerName], default=[], help=TOP_LEVEL["loggers"])
        parser.add_class_arguments(WandbSettings, "wandb")
        parser.add_class_arguments(ProgressBar, "terminal", instantiate=False)
        parser.add_argument("--init_from", type=list[str] | str | None, default=None, help=TOP_LEVEL["init_from"])
        share = TOP_LEVEL["init_from_min_matched"]
        parser.add_argument("--init_from_min_matched", type=float, default=0.9, help=share)
        parser.add_argument("--ckpt_path", type=str | None, default=None, help=TOP_LEVEL["ckpt_path"])

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse files and options, and check what the parser does not."""
        if not config_files(args) and not any(arg.startswith(("--model", "--help")) for arg in args):
            raise WrongNameError(
                f"{self.command} needs a recipe (`zoo list`) or --ckpt_path RUN: zoo {self.command} RECIPE"
            )
        try:
            self.config = parser.parse_args(compose_arguments(args))
        except RefusedError as error:
            reason = explain_refusal(error.details, args, list(parser.get_defaults().keys()))
            raise WrongNameError(f"{reason}; {STRATEGIES}" if "trainer.strategy" in reason else reason) from None
        except Exception as error:  # jsonargparse leaves some of what YAML and interpolation raise to the caller
            raise WrongNameError(str(error) or type(error).__name__) from error
        if self.source_run is not None:
            check_config_paths(self.config.as_dict(), self.source_run, args)
        use_public_names(self.config)
        check_values(self.config.as_dict())

    def before_instantiate_classes(self) -> None:
        """Decide on checkpoint and run folder before anything is built."""
        self.checkpoint, self.folder = choose_run_folder(self.command, self.config, self.recipe)
        root = self.config["trainer.default_root_dir"]
        if self.names_root and root and not self.folder.resolve().is_relative_to(Path(root).resolve()):
            raise ValueError(
                f"trainer.default_root_dir is {root}, but the run of ckpt_path goes on in {self.folder}: "
                "leave it out, or copy the run there and resume the copy"
            )
        if self.command == "fit":
            if self.checkpoint is None:  # the run's config says which commit it began with
                self.config["init_from"] = pin_revisions(self.config["init_from"])
            else:
                self._keep_start(self.checkpoint.parent)
        runs.refuse_links(self.folder)
        self.is_new_folder = not self.folder.exists()
        if self.command == "fit" and self.lock_stack is not None:
            self.lock_stack.enter_context(lock_folder(self.folder, "fit"))
        self.config["trainer.default_root_dir"] = str(self.folder)
        self.trainer_defaults["callbacks"] = self.callbacks()

    def _keep_start(self, run: Path) -> None:
        """Keep the weights that a run began with in its config: a resume reads none."""
        before, now = read_settings(run).get("init_from"), self.config["init_from"]
        if before != now:
            if str(before).partition("@")[0] != str(now).partition("@")[0]:  # of a hub's name the run has the commit
                log.warning("init_from %s has no effect on a resume: the run began with %s", now, before)
            self.config["init_from"] = before

    def config_text(self) -> str:
        """Write the config as YAML that any of the three commands reads, without what belongs to one call only."""
        portable = self.config.clone()
        portable["trainer.default_root_dir"] = portable["ckpt_path"] = None
        portable.pop("config", None)
        return self.parser.dump(portable, skip_unset=False)

    def callbacks(self) -> list[Callback]:
        """Make the callbacks that no recipe names."""
        callbacks: list[Callback] = [CheckpointContents()]
        if self.config["trainer.enable_progress_bar"] is not False:
            callbacks.append(ProgressBar(**self.config["terminal"]))
        if self.command != "fit":
            return callbacks
        logged, file = RunInfoLogger(self.recipe, self.config_text), ConfigFile(self.config_text)
        return [*callbacks, RNGState(), logged, RunSummary(self.recipe), TrainLog(), TrainingMetrics(), file]

    def instantiate_classes(self) -> None:
        """Build everything and describe the model's parts on it; frozen modules come from the run's own copies."""
        parsed, self.config = self.config, copy.deepcopy(self.config)
        arguments, used = parsed["model"].get("init_args") or {}, {}
        if self.checkpoint is not None:
            recorded = load_checkpoint(self.checkpoint, mmap=True).get("frozen", {})
            used = frozen_files.use_local_copies(
                self.config["model"].get("init_args") or {}, recorded, self.checkpoint.parent
            )
        try:
            super().instantiate_classes()
        except Exception as error:  # a constructor may raise anything when its arguments make no sense
            raise explain_build(error) from error
        self.config = parsed  # what the run's config.yaml says: its copies are no part of the recipe
        frozen_files.restore_sources(frozen.frozen_modules({"": self.model}), arguments, used)
        try:
            plain = yaml.safe_load(yaml.safe_dump(self.config["model"].as_dict(), sort_keys=False))
        except yaml.representer.RepresenterError as error:
            value = error.args[-1]
            raise WrongNameError(
                f"model: a checkpoint cannot describe {value!r}; take str in the place of {type(value).__name__}"
            ) from error
        self.model.specs = describe_model(self.model, plain["init_args"])

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Build the trainer with our loggers and plugins."""
        settings = self.config_init["trainer"]
        plugins = [*(settings.get("plugins") or []), AtomicCheckpointIO()]
        if SLURMEnvironment.detect():
            plugins += [SLURMEnvironment(auto_requeue=False)]
        step = None if self.checkpoint is None else read_step(self.checkpoint)
        evaluated = None if self.command == "fit" else step
        self.csv = MetricsCSV(self.folder, "metrics.csv" if self.command == "fit" else f"{self.command}.csv", evaluated)
        logger = settings.get("logger") or []
        own_loggers = logger if isinstance(logger, list) else [] if logger is True else [logger]
        names, wandb = self.config["loggers"], self.config_init["wandb"]
        loggers: list[Any] = [self.csv]
        if self.command == "fit":
            loggers += make_loggers(names, wandb, self.folder, own_loggers, self.recipe, step)
        if "TORCHELASTIC_RUN_ID" in os.environ and settings.get("num_nodes") in (None, 1):
            kwargs["num_nodes"] = int(os.environ.get("GROUP_WORLD_SIZE", "1"))  # torchrun knows, and may change it
        summary = bool(settings.get("enable_model_summary"))  # the run's first lines count the weights
        return super().instantiate_trainer(plugins=plugins, logger=loggers, enable_model_summary=summary, **kwargs)


def run(command: str, args: list[str], source_run: Path | None = None) -> int:
    """Run one of the three commands; returns the exit code. For `source_run` see `ZooCLI`."""
    filter_warnings()
    configure_logging()
    with contextlib.ExitStack() as lock_stack:
        args, resumed_run = resolve_checkpoint(command, args)
        cli = ZooCLI(command, args, source_run or resumed_run, lock_stack)
        try:
            if cli.checkpoint is not None:
                check_checkpoint(cli.model, load_checkpoint(cli.checkpoint, mmap=True), resumes=command == "fit")
            if command == "fit":
                fit(cli)
            else:
                evaluate = getattr(cli.trainer, command)
                evaluate(cli.model, cli.datamodule, ckpt_path=str(cli.checkpoint), weights_only=True)
        except Exception as error:
            if command == "fit" and is_rank_zero():
                remove_unstarted_run(cli)
            explained = explain_error(error, cli.config.as_dict())
            if not isinstance(explained, ConnectionLostError):  # else it would wait for the lost process
                _leave_process_group()
            if explained is None:
                raise
            raise explained from error
        _leave_process_group()
    return 0


def fit(cli: ZooCLI) -> None:
    """Train, from a checkpoint, from given weights or from the start."""
    done = 0 if cli.checkpoint is None else read_step(cli.checkpoint)
    resumed = None if cli.checkpoint is None else str(cli.checkpoint)
    if not isinstance(cli.datamodule, ZooDataModule):
        log.warning("%s is no ZooDataModule: a resume may train on other batches", type(cli.datamodule).__name__)
    with print_summary(cli.trainer, done, cli.config["terminal.metrics"]):
        if resumed is None:
            cli.csv.trim(-1)  # a run that was killed before its first checkpoint left some rows
            start_from_weights(cli)
        cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=resumed, weights_only=True)


def remove_unstarted_run(cli: ZooCLI) -> None:
    """Delete what a new run left that failed before its config was written; `lock_folder` removes the folder."""
    if cli.is_new_folder and cli.folder.is_dir() and not (cli.folder / runs.CONFIG_NAME).exists():
        with contextlib.suppress(OSError):  # the error that ended the start is the one to tell
            for path in cli.folder.iterdir():
                if not path.name.startswith(LOCK_NAME):
                    delete_path(path)


def start_from_weights(cli: ZooCLI) -> None:
    """Load the weights that `init_from` names, where it names any."""
    source = cli.config["init_from"]
    if source is not None:
        texts = [source] if isinstance(source, str) else source
        if not texts or not all(texts):
            raise ValueError(f"init_from is {source!r}; leave it out to start from random weights")
        paths = [Path(text) for text in texts]
        init_from(cli.model, paths, cli.config["init_from_min_matched"])


def _leave_process_group() -> None:
    """Close the connections to the other processes; gloo's threads abort a Python that exits with open ones."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
