"""fit, validate, test: LightningCLI in subclass mode, with our callbacks and run folders.

Every command takes the same flat config, so that the config.yaml of a run serves all of them. (Its own file beside
`zoo/cli/main.py`, because help and tools must answer without importing Lightning.)
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import torch.distributed
import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins.environments import SLURMEnvironment

from zoo import __version__
from zoo.cli.help_text import asks_for_help
from zoo.cli.log_filters import configure_logging, filter_warnings, quiet_output
from zoo.cli.options import take_option
from zoo.cli.parser import (
    PARSER_MODE,
    ConfigError,
    OneLineParser,
    exit_with_error,
    explain_build,
    explain_refusal,
    restrict_imports,
    use_public_names,
)
from zoo.cli.recipes import CLASSES, GROUPS, WrongNameError, compose_arguments, compose_config
from zoo.common import registry
from zoo.common.atomic_files import write_atomic
from zoo.common.configs import check_config_paths, load_run_config
from zoo.common.locks import lock_folder
from zoo.runs import folder as runs
from zoo.runs import frozen
from zoo.runs.checkpoints import step_of
from zoo.runs.csv_log import RunCSV
from zoo.runs.hub.models import is_hub_name, pin_revisions
from zoo.runs.init_from import init_from
from zoo.runs.listing import RECIPE_MARK, recorded_recipe
from zoo.runs.load import load
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO, Checkpoints
from zoo.training.callbacks.logged_run import LoggedRun
from zoo.training.callbacks.loggers import LoggerName, WandbSettings, make_loggers
from zoo.training.callbacks.metrics import TrainingMetrics
from zoo.training.callbacks.progress import Progress, TerminalSettings
from zoo.training.callbacks.report import Banner, told_at_end
from zoo.training.callbacks.samples import Samples
from zoo.training.callbacks.train_log import TrainLog
from zoo.training.errors import ConnectionLostError, ExplainedError, explain_error, is_connection_lost
from zoo.training.resume import RNGState
from zoo.training.task import ZooTask


class RefusedError(SystemExit):
    """What a parser says of an argument; jsonargparse passes it on as it is, from a parser within a parser too."""

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = message


class ZooParser(LightningArgumentParser):
    """LightningCLI's parser, in which no text of a config stands for another file."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Refuse an argument."""
        raise RefusedError(message)

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments, of which none is read from a file."""
        return super().add_class_arguments(*args, **{**kwargs, "sub_configs": False})


def explain_arguments(message: str, args: Sequence[str], parser: LightningArgumentParser) -> str:
    """Explain a refused command line by the parser's message and the known keys."""
    if any(name in message for name in SHARDED_BY_LIGHTNING):
        return STRATEGY_ERROR
    keys = list(parser.get_defaults().keys())
    groups = {group: [key.split(".")[1] for key in keys if key.startswith(f"{group}.")] for group in GROUPS}
    return explain_refusal(message, args, groups)


def config_text(parser: LightningArgumentParser, config: Namespace) -> str:
    """A config as YAML that any of the three commands reads."""
    portable = config.clone()
    portable["trainer.default_root_dir"] = None
    portable["ckpt_path"] = None
    portable.pop("config", None)
    return parser.dump(portable, skip_unset=False)


def choose_run_folder(command: str, config: Namespace, recipe: str) -> tuple[Path | None, Path]:
    """Find the checkpoint that a command means and the folder that it writes to.

    A resumed run continues in its folder, unless it starts from an older checkpoint than the newest there.

    Raises:
        ValueError: when a fresh run would write into the folder of another.
    """
    chosen = config["trainer.default_root_dir"]
    path = config["ckpt_path"]
    checkpoint = None if path is None else runs.find_checkpoint(Path(path))
    if command != "fit":
        folder = Path(chosen) if chosen else checkpoint.parent if checkpoint else runs.RUNS_ROOT / command
        return checkpoint, folder
    if checkpoint is not None:
        named = checkpoint == Path(path)
        if not named or checkpoint == runs.find_checkpoint(checkpoint.parent):
            return checkpoint, checkpoint.parent
    folder = Path(chosen) if chosen else runs.new_run_folder(recipe)
    if next(folder.glob("*.ckpt"), None) is not None:
        raise ValueError(
            f"{folder} already holds a run: go on with it by --ckpt_path {folder}, "
            "or choose another trainer.default_root_dir"
        )
    return checkpoint, folder


def config_files(args: list[str]) -> list[str]:
    """The config files that a command line names."""
    return [*take_option(args, "--config")[0], *take_option(args, "-c")[0]]


def recipe_of(configs: Sequence[str]) -> str:
    """`<system>/<recipe>` by the first config file, e.g. hifigan/smoke; a run's own config names the run's recipe."""
    if not configs:
        return "unnamed"
    first = Path(configs[0]).absolute()
    if first.name == runs.CONFIG_NAME:
        return recorded_recipe(first) or "/".join(first.parts[-4:-2])
    folder = first.parent.parent if first.parent.name == "configs" else first.parent
    return f"{folder.name}/{first.stem}"


def resolve_checkpoint(command: str, args: list[str]) -> tuple[list[str], Path | None]:
    """Fill in what a `--ckpt_path` says already: `last` and `auto` become a run, a run brings its config.

    Returns:
        The arguments; and the run whose own config is among them.

    Raises:
        FileNotFoundError: when `last` finds no run.
        ValueError: for a URL.
    """
    values, rest = take_option(args, "--ckpt_path")
    if not values:
        return args, None
    value = values[-1]
    if is_hub_name(value):
        raise ValueError(f"--ckpt_path {value}: {command} needs a run; fit --init_from takes the weights of a hub")
    if "://" in value:
        raise ValueError(f"--ckpt_path {value}: checkpoints are read from local paths only; download it first")
    configs = config_files(rest)
    if value in ("last", "auto"):
        roots = take_option(rest, "--trainer.default_root_dir")[0]
        root = Path(roots[-1]) if roots else runs.RUNS_ROOT / (recipe_of(configs) if configs else "")
        newest = runs.newest_run(root)
        if newest is None:
            if value == "auto" and command == "fit":
                return rest, None
            raise FileNotFoundError(f"--ckpt_path {value}: no run with a checkpoint below {root}")
        value = str(newest)
    if not Path(value).exists():
        raise FileNotFoundError(f"--ckpt_path: nothing at {value}")
    source_run = None
    if not configs:
        config = runs.find_config(Path(value))
        rest, source_run = ["--config", str(config), *rest], config.parent
    return [*rest, "--ckpt_path", value], source_run


log = logging.getLogger(__name__)

DEFAULT_SEED = 1234
POSITIVE = {  # numbers that Lightning and the loaders divide by
    "accumulate_grad_batches", "batch_size", "check_val_every_n_epoch", "every_n_steps", "val_check_interval",
}  # fmt: skip
# They read checkpoints by pickle.
SHARDED_BY_LIGHTNING = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")
STRATEGY_ERROR = (
    'Parser key "trainer.strategy": expected auto, ddp or a class; for shards use zoo.training.FSDP '
    "(--config configs/trainer/fsdp.yaml) or zoo.training.DeepSpeed (--config configs/trainer/deepspeed.yaml)"
)


def check_positive(config: Mapping[str, Any], place: str = "") -> None:
    """Refuse zero where Lightning or a loader divides by it.

    Raises:
        WrongNameError: naming the key.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_positive(value, f"{place}{key}.")
        elif key in POSITIVE and isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            raise WrongNameError(f"{place}{key} is {value}; expected a number above 0")


def report_callback_changes(former: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Say which callbacks a resumed run has that it had not, and the other way round.

    Args:
        former: the section `trainer` of the run's config.
        current: the same of the command.
    """
    before, now = ([each["class_path"] for each in trainer.get("callbacks") or []] for trainer in (former, current))
    removed, added = ([name for name in one if name not in other] for one, other in ((before, now), (now, before)))
    changes = [f"{words} {', '.join(names)}" for words, names in (("without", removed), ("with", added)) if names]
    if changes:
        log.warning(
            "resumed %s: trainer.callbacks replaces the run's; `--trainer.callbacks+=NAME` adds to them",
            " and ".join(changes),
        )


class SaveConfig(SaveConfigCallback):
    """Writes the complete, resolved config of a fit into its run folder.

    A resumed run keeps its former config until a step was made by the new one, so a resume that is refused changes
    nothing.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Wait until it is known whether the run is resumed."""
        self._is_written = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the config of a new run."""
        if trainer.ckpt_path is None:
            self._write(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compare the callbacks of a resumed run with its former ones; remove what was logged beyond its checkpoint."""
        if trainer.ckpt_path is None or not trainer.is_global_zero:
            return
        former = Path(trainer.ckpt_path).parent / runs.CONFIG_NAME
        if former.is_file():
            report_callback_changes(load_run_config(former)["trainer"], self.config["trainer"].as_dict())
        for logger in trainer.loggers:
            if isinstance(logger, RunCSV):
                logger.trim(trainer.global_step - 1)  # rows carry the number of the batch, from 0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Write the config of a resumed run after its first step."""
        self._write(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write it also where a checkpoint comes before the first step."""
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._is_written:
            self._is_written = True
            super().setup(trainer, pl_module, "fit")

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write config.yaml atomically; what belongs to one call only (paths of the run) is left out."""
        text = config_text(self.parser, self.config)
        write_atomic(runs.run_folder(trainer) / runs.CONFIG_NAME, lambda file: file.write(text.encode()))


class ZooCLI(LightningCLI):
    """One Trainer command: parses, builds model, data and trainer; `run` below calls the trainer.

    Args:
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
        self.command = command
        self.source_run = source_run
        self.lock_stack = lock_stack
        self.recipe = recipe_of(config_files(args))
        self.folder = Path()
        self.checkpoint: Path | None = None
        super().__init__(
            ZooTask,
            L.LightningDataModule,
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True, "save_to_log_dir": False},
            trainer_defaults={"use_distributed_sampler": False},
            seed_everything_default=DEFAULT_SEED,
            parser_kwargs={
                "prog": f"zoo {command}",
                "parser_mode": PARSER_MODE,
                "dump_header": [f"zoo=={__version__}", f"{RECIPE_MARK}{self.recipe}"],
                "allow_abbrev": False,
            },
            parser_class=ZooParser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def _callbacks(self) -> list[Callback]:
        bars: list[Callback] = []
        if self.config["trainer.enable_progress_bar"] is not False:
            bars.append(Progress(**self.config["terminal"]))
        if self.command != "fit":
            return bars
        logged = LoggedRun(self.recipe, lambda: config_text(self.parser, self.config))
        return [*bars, RNGState(), logged, Banner(self.recipe), TrainLog(), TrainingMetrics()]

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add trainer, model and data; the latter two are classes by name, and no files."""
        parser.add_lightning_class_args(L.Trainer, "trainer")
        parser.set_defaults({f"trainer.{key}": value for key, value in self.trainer_defaults.items()})
        parser.add_argument("--model", type=ZooTask, required=True)
        parser.add_argument("--data", type=L.LightningDataModule, required=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what the zoo has beside trainer, model and data."""
        parser.add_lightning_class_args(Checkpoints, "checkpoints")
        parser.add_lightning_class_args(Samples, "samples")
        parser.add_argument("--loggers", type=list[LoggerName], default=[], help="beside metrics.csv, always on")
        parser.add_class_arguments(WandbSettings, "wandb")
        parser.add_class_arguments(TerminalSettings, "terminal")
        parser.add_argument(
            "--init_from",
            type=list[str] | str | None,
            default=None,
            help="start from these weights: our checkpoint, an export, hf://user/name, an original's file, or a list",
        )
        parser.add_argument(
            "--init_from_min_matched", type=float, default=0.9, help="share of the tensors that must match"
        )
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="a checkpoint, a run folder, `last` (newest run), or for fit `auto` (last if there is one)",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, then settle where this command writes."""
        if not any(arg.startswith(("--config", "-c", "--model", "--print_config", "--help", "-h")) for arg in args):
            raise WrongNameError(
                f"{self.command} needs a recipe (`zoo list`) or --ckpt_path RUN: zoo {self.command} RECIPE"
            )
        try:
            self.config = parser.parse_args(compose_arguments(args))
        except RefusedError as error:
            exit_with_error(self.parser.prog, explain_arguments(error.message, args, self.parser))
        except WrongNameError:
            raise
        except Exception as error:  # jsonargparse leaves some of what YAML and interpolation raise to the caller
            raise ConfigError(str(error) or type(error).__name__) from error
        if self.source_run is not None:
            check_config_paths(self.config.as_dict(), self.source_run, args)
        use_public_names(self.config)
        check_positive(self.config.as_dict())
        strategy = self.config["trainer.strategy"]
        if isinstance(strategy, str) and strategy != "auto" and not strategy.lower().startswith("ddp"):
            exit_with_error(parser.prog, STRATEGY_ERROR)
        seed = self.config["seed_everything"]
        if seed is not None and not 0 <= seed < 2**32:
            exit_with_error(parser.prog, f'Parser key "seed_everything": expected 0 to {2**32 - 1}, not {seed}')

    def before_instantiate_classes(self) -> None:
        """Decide on checkpoint and run folder before anything is built."""
        self.checkpoint, self.folder = choose_run_folder(self.command, self.config, self.recipe)
        if self.command == "fit" and self.checkpoint is None:  # the run's config says which commit it began with
            self.config["init_from"] = pin_revisions(self.config["init_from"])
        if self.command == "fit" and self.lock_stack is not None:
            self.lock_stack.enter_context(lock_folder(self.folder, "fit"))
        self.config["trainer.default_root_dir"] = str(self.folder)
        self.trainer_defaults["callbacks"] = self._callbacks()

    def instantiate_classes(self) -> None:
        """Build everything and describe the model's parts on it; frozen modules come from the run's own copies."""
        self._given = self.config
        self.config = copy.deepcopy(self.config)
        arguments, used = self._given["model"].get("init_args") or {}, {}
        if self.checkpoint is not None:
            recorded = frozen.read_records(self.checkpoint)
            used = frozen.use_copies(self.config["model"].get("init_args") or {}, recorded, self.checkpoint.parent)
        with self._explained():
            super().instantiate_classes()
        frozen.note_sources(frozen.frozen_modules({"": self.model}), arguments, used)
        self.model.specs = describe(self.model, self.config)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a constructor may raise anything when its arguments make no sense
            raise explain_build(error, self.config.as_dict()) from error

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Build the trainer with our loggers and plugins."""
        self.config = self._given  # what the run's config.yaml says: its copies are no part of the recipe
        settings = self.config_init["trainer"]
        plugins = list(settings.get("plugins") or [])
        plugins += [AtomicCheckpointIO()]
        if SLURMEnvironment.detect():
            plugins += [SLURMEnvironment(auto_requeue=False)]
        name = "metrics.csv" if self.command == "fit" else f"{self.command}.csv"
        evaluated = None if self.command == "fit" or self.checkpoint is None else step_of(self.checkpoint)
        self.csv = RunCSV(self.folder, name, evaluated)
        configured = settings.get("logger") or []
        own_loggers = configured if isinstance(configured, list) else [configured] if configured is not True else []
        names, wandb = self.config["loggers"], self.config_init["wandb"]
        trained = None if self.checkpoint is None else step_of(self.checkpoint)
        made = make_loggers(names, wandb, self.folder, own_loggers, self.recipe, evaluated, trained)
        loggers = [self.csv, *made]
        if "TORCHELASTIC_RUN_ID" in os.environ and settings.get("num_nodes") in (None, 1):
            kwargs["num_nodes"] = int(os.environ.get("GROUP_WORLD_SIZE", "1"))  # torchrun knows, and may change it
        summary = bool(settings.get("enable_model_summary"))  # the run's first lines count the weights
        return super().instantiate_trainer(plugins=plugins, logger=loggers, enable_model_summary=summary, **kwargs)


def describe(model: ZooTask, config: Namespace) -> dict[str, Any]:
    """What a checkpoint must carry so that its parts can be built again without the run folder."""
    init_args = yaml.safe_load(yaml.safe_dump(config["model"].as_dict()))["init_args"]
    return {
        "version": __version__,
        "task": registry.public_name(type(model)),
        "inference": model.inference_class,
        "parts": {part: init_args[part] for part in model.inference_modules},
        "options": {option: init_args[option] for option in model.inference_options},
    }


def run(command: str, args: list[str], source_run: Path | None = None) -> int:
    """Run one of the three commands.

    Args:
        source_run: the run that a config among them came with; that of `--ckpt_path` is known without.

    Returns:
        The exit code.
    """
    filter_warnings()
    configure_logging()
    restrict_imports()
    if asks_for_help(args):
        return full_help(command, args)
    with contextlib.ExitStack() as lock_stack:
        args, resumed_run = resolve_checkpoint(command, args)
        cli = ZooCLI(command, args, source_run or resumed_run, lock_stack)
        return _execute(command, cli)


def full_help(command: str, args: Sequence[str]) -> int:
    """Print every option, then the arguments of the classes that the recipes name; returns the exit code 0."""
    with contextlib.suppress(SystemExit):
        ZooCLI(command, ["--help"])
    config, _ = compose_config(args)
    for section in CLASSES:
        name = (config.get(section) or {}).get("class_path")
        if name:
            options = OneLineParser(prog=f"zoo {command}", usage=f"{section}: {name}")
            options.add_subclass_arguments(registry.get_class(name), section)
            print()
            with contextlib.suppress(SystemExit):
                options.parse_args([f"--{section}.help={name}"])
    return 0


def _execute(command: str, cli: ZooCLI) -> int:
    checkpoint = None if cli.checkpoint is None else str(cli.checkpoint)
    if command != "fit" and checkpoint is None:
        raise ValueError(f"{command} needs --ckpt_path, a run or a checkpoint: the recipe alone has no trained weights")
    try:
        if command == "fit":
            fit(cli)
        else:
            getattr(cli.trainer, command)(cli.model, cli.datamodule, ckpt_path=checkpoint, weights_only=True)
    except Exception as error:
        explained = explained_error(error, cli)
        if not isinstance(explained, ConnectionLostError):  # else it would wait for the lost process
            _leave_process_group()
        if explained is error:
            raise
        raise explained from error
    _leave_process_group()
    return 0


def _leave_process_group() -> None:
    """Close the connections to the other processes; gloo's threads abort a Python that exits with open ones."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def explained_error(error: Exception, cli: ZooCLI) -> Exception:
    """Return the error to report: itself, or one of ours that names the remedy."""
    if is_connection_lost(error):
        return ConnectionLostError(
            "lost contact with another process, which was killed or hangs; nothing saved is lost: start all of them "
            "again with --ckpt_path last"
        )
    message = (
        explain_error(error, cli.config.as_dict()) if isinstance(error, RuntimeError | OSError | MemoryError) else None
    )
    return error if message is None else ExplainedError(message)


def fit(cli: ZooCLI) -> None:
    """Train, from a checkpoint, from given weights or from the start."""
    done = step_of(cli.checkpoint) if cli.checkpoint is not None and cli.checkpoint.parent == cli.folder else 0
    if cli.checkpoint is None:
        cli.csv.trim(-1)  # a run that was killed before its first checkpoint left some rows
    try:
        with told_at_end(cli.trainer, max(done, 0), cli.config["terminal.metrics"]):
            if cli.checkpoint is None and (source := cli.config["init_from"]):
                paths = [Path(path) for path in ([source] if isinstance(source, str) else source)]
                init_from(cli.model, paths, cli.config["init_from_min_matched"])
            resumed = None if cli.checkpoint is None else str(cli.checkpoint)
            cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=resumed, weights_only=True)
    finally:  # Lightning calls no teardown after an exception
        for callback in cli.trainer.checkpoint_callbacks:
            if isinstance(callback, Checkpoints):
                callback.stop.uninstall()


def dry_run(config: Path) -> list[tuple[str, bool, str]]:
    """Build a recipe, run one step, save, load and predict once, in a temporary folder.

    Returns:
        (check, passed, detail) for each stage that was reached.
    """
    results: list[tuple[str, bool, str]] = []
    source_run = config.parent if runs.has_config(config) and any(config.parent.glob("*.ckpt")) else None
    with tempfile.TemporaryDirectory(prefix="zoo-trial-") as folder, quiet_output():
        root = Path(folder) / "run"
        limits = ["--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--trainer.num_sanity_val_steps=0"]
        stages = {
            "build, one step, save": lambda: run(
                "fit", ["--config", str(config), f"--trainer.default_root_dir={root}", *limits], source_run
            ),
            "load": lambda: type(load(root)).__name__,
            "predict": lambda: load(root).dry_run(),
        }
        for name, stage in stages.items():
            try:
                detail = stage()
            except (Exception, SystemExit) as error:
                detail = "see the error above" if isinstance(error, SystemExit) else " ".join(str(error).split())
                return [*results, (name, False, detail or type(error).__name__)]
            results.append((name, True, str(detail or "ok")))
    return results
