"""fit, validate, test, predict: LightningCLI in subclass mode, with our callbacks and run folders.

Every command takes the same flat config, so that the config.yaml of a run serves all of them. (Its own file beside
`zoo/cli/main.py`, because help and tools must answer without importing Lightning.)
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import lightning as L
import torch.distributed
import yaml
from jsonargparse import ActionConfigFile, Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment

from zoo import __version__
from zoo.cli.helps import asks_for_help
from zoo.cli.lazy_imports import collector_off
from zoo.cli.parsing import (
    CLASS_SECTIONS,
    PARSER_MODE,
    SECTIONS,
    ConfigError,
    MergingConfigFile,
    OneLineParser,
    check_config,
    explain_build,
    fail,
    inlined,
    limit_names,
    read_no_other_files,
)
from zoo.cli.quiet import filter_warnings, quietly, show_records
from zoo.common import registry
from zoo.common.atomic import write_atomic
from zoo.common.locks import locked
from zoo.common.options import PREDICT_KEYS, files_first, take_option
from zoo.common.reading.configs import check_places, read_mapping
from zoo.runs import folder as runs
from zoo.runs import frozen
from zoo.runs.bulk import BulkData, Shard, plan, writing
from zoo.runs.checkpoints import load_checkpoint, step_of
from zoo.runs.csv_log import RunCSV
from zoo.runs.hub import names
from zoo.runs.inference import Inference
from zoo.runs.init_from import init_from
from zoo.runs.listing import RECIPE_MARK, recorded_recipe
from zoo.runs.load import load
from zoo.training.callbacks import precision
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO, Checkpoints
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.logged_run import LoggedRun
from zoo.training.callbacks.loggers import LoggerName, WandbSettings, make_loggers
from zoo.training.callbacks.monitor import GradNorm, Resources, Throughput, TrainLog
from zoo.training.callbacks.precision import PRECISION_TYPE
from zoo.training.callbacks.progress import Progress, TerminalSettings
from zoo.training.callbacks.report import Banner, told_at_end
from zoo.training.callbacks.rng import RNGState
from zoo.training.callbacks.samples import Samples
from zoo.training.errors import ExplainedError, LostContactError, explain, lost_contact
from zoo.training.processes import Processes, leave, limit_waiting
from zoo.training.strategies.fsdp import FSDP2
from zoo.training.task import ZooTask


class Loaded(ZooTask):
    """A task that can only predict.

    Args:
        path: an export folder or a checkpoint, for `zoo.load`.
        options: for `zoo.load`: values of the Inference's constructor, such as a chunk length.
    """

    inference_class: ClassVar[str] = ""
    inference_parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._inference = load(path, **(options or {}))
        for name, part in self._inference.parts().items():
            self.add_module(name, part)

    def inference(self, **changes: Any) -> Inference:
        """The loaded object; its options were changed when it was loaded."""
        assert self._inference is not None
        return self._inference


class NoData(L.LightningDataModule):
    """Stands where a recipe's data would: `predict --input` brings its own."""


class ZooParser(LightningArgumentParser):
    """LightningCLI's parser with one-line errors and `trainer.precision: auto`."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report a wrong key or value in one line and exit with code 2."""
        fail(self.prog, STRATEGY_ERROR if any(name in message for name in SHARDED_BY_LIGHTNING) else message)

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Add an argument; config files merge."""
        if kwargs.get("action") is ActionConfigFile:
            kwargs["action"] = MergingConfigFile
        return super().add_argument(*args, **kwargs)

    def add_lightning_class_args(self, lightning_class: Any, nested_key: str, *args: Any, **kwargs: Any) -> list[str]:
        """Add the arguments of a class; a Trainer's precision may be auto."""
        if lightning_class is not L.Trainer:
            return super().add_lightning_class_args(lightning_class, nested_key, *args, **kwargs)
        settings: dict[str, Any] = {"fail_untyped": False, "instantiate": False, "sub_configs": True}
        added = self.add_class_arguments(lightning_class, nested_key, skip={"precision"}, **settings)
        about = "as Lightning's; auto tries some on the first batches and takes the fastest whose loss is float32's"
        self.add_argument(f"--{nested_key}.precision", type=PRECISION_TYPE, default=None, help=about)
        return added


def config_text(parser: LightningArgumentParser, config: Namespace) -> str:
    """A config as YAML that any of the four commands reads."""
    kept = config.clone()
    kept["trainer.default_root_dir"] = None
    kept["ckpt_path"] = None
    for key in ("config", *PREDICT_KEYS):
        kept.pop(key, None)
    return parser.dump(kept, skip_none=False)


def settle(command: str, config: Namespace, recipe: str) -> tuple[Path | None, Path]:
    """Find the checkpoint that a command means and the folder that it writes to.

    A resumed run goes on in its own folder, unless it starts from an older checkpoint than the newest there.

    Raises:
        ValueError: when a fresh run would write into the folder of another.
    """
    chosen = config["trainer.default_root_dir"]
    given = config["ckpt_path"]
    checkpoint = None if given is None else runs.find_checkpoint(Path(given))
    if command != "fit":
        folder = Path(chosen) if chosen else checkpoint.parent if checkpoint else runs.RUNS_ROOT / command
        return checkpoint, folder
    if checkpoint is not None:
        newest = runs.find_checkpoint(checkpoint.parent)
        if checkpoint == newest or not checkpoint.exists():  # a run that is being trained replaced it meanwhile
            return newest, checkpoint.parent
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


def complete(command: str, args: list[str]) -> tuple[list[str], Path | None]:
    """Fill in what a `--ckpt_path` says already: `last` and `auto` become a run, a run brings its config.

    Returns:
        The arguments, those of a prediction without a recipe begin with `--model.path`; and the run whose own config is
        among them.

    Raises:
        FileNotFoundError: when `last` finds no run.
        ValueError: for a URL.
    """
    values, rest = take_option(args, "--ckpt_path")
    if not values:
        return args, None
    value = values[-1]
    if names.is_name(value):
        if command != "predict":
            raise ValueError(f"--ckpt_path {value}: {command} needs a run; fit --init_from takes the weights of a hub")
        value = str(names.local(value))
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
    if not configs and command == "predict" and not runs.has_config(Path(value)):
        options = [argument.replace("--model.init_args.", "--model.", 1) for argument in rest]
        return [f"--model.path={value}", *options], None
    brought = None
    if not configs:
        config = runs.find_config(Path(value))
        rest, brought = ["--config", str(config), *rest], config.parent
    return [*rest, "--ckpt_path", value], brought


log = logging.getLogger(__name__)

DEFAULT_SEED = 1234
# They read checkpoints by pickle.
SHARDED_BY_LIGHTNING = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")
STRATEGY_ERROR = (
    'Parser key "trainer.strategy": expected auto, ddp or a class; for shards use zoo.training.FSDP2 '
    "(--config configs/trainer/fsdp.yaml) or zoo.training.ZeROStrategy (--config configs/trainer/deepspeed.yaml)"
)


class SaveConfig(SaveConfigCallback):
    """Writes the complete, resolved config of a fit into its run folder."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Wait: a checkpoint that refuses this config is read later, and its run must keep its own."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write it."""
        super().setup(trainer, pl_module, "fit")

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write config.yaml atomically; what belongs to one call only (paths of the run) is left out."""
        text = config_text(self.parser, self.config)
        write_atomic(runs.run_folder(trainer) / runs.CONFIG_NAME, lambda file: file.write(text.encode()))


class ZooCLI(LightningCLI):
    """One Trainer command: parses, builds model, data and trainer; `run` below calls the trainer.

    Args:
        brought: the run whose own config is among them, where no command line named it.
        held: takes the lock of a fit's run folder, for as long as it is open; no lock when not given.
    """

    def __init__(
        self, command: str, args: list[str], brought: Path | None = None, held: contextlib.ExitStack | None = None
    ) -> None:
        self.command = command
        self.brought = brought
        self.held = held
        self.recipe = recipe_of(config_files(args))
        self.folder = Path()
        self.checkpoint: Path | None = None
        described = bool(args) and args[0].startswith("--model.path=")  # what is loaded describes itself
        super().__init__(
            Loaded if described else ZooTask,
            NoData if described else L.LightningDataModule,
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
            subclass_mode_model=not described,
            subclass_mode_data=not described,
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def _callbacks(self) -> list[Callback]:
        bars: list[Callback] = [Processes(self.config.as_dict(), self.checkpoint)]
        if self.config["trainer.enable_progress_bar"] is not False:
            bars.append(Progress(**self.config["terminal"]))
        if self.command != "fit":
            return bars
        logged = LoggedRun(self.recipe, lambda: config_text(self.parser, self.config))
        return [*bars, RNGState(), logged, Banner(self.recipe), TrainLog(), Throughput(), Resources(), GradNorm()]

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
        if self.command == "predict":
            parser.add_argument("--input", type=str | None, default=None, help="a file or a folder tree")
            parser.add_argument(
                "--output", type=str | None, default=None, help="folder for the results and manifest.jsonl"
            )
            parser.add_argument("--overwrite", type=bool, default=False, help="do finished files again")
            parser.add_argument(
                "--engine",
                type=Literal["ranks", "ray"],
                default="ranks",
                help="who computes: this command, or Ray's actors",
            )
            parser.add_argument("--ray_address", type=str | None, default=None, help="host:port of Ray's head, or auto")
            parser.add_argument("--ray_workers", type=PositiveInt | None, default=None, help="actors; all that fit")
            parser.add_argument(
                "--shard", type=str | None, default=None, help="i/n: of n processes without contact, the i-th from 1"
            )
            parser.add_argument(
                "--fanout", type=int | None, default=None, help="spread results where a folder would hold more"
            )
            parser.add_argument(
                "--files_together",
                type=PositiveInt | None,
                default=None,
                help="files under way, whose chunks share batches",
            )
            parser.add_argument("--tar", type=int | None, default=None, help="write tar shards of so many results")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, then settle where this command writes."""
        read_no_other_files(parser)
        for file in config_files(args):
            check_config(Path(file))
        try:
            self.config = parser.parse_args(inlined(files_first(args)))
        except Exception as error:  # jsonargparse leaves some of what YAML and interpolation raise to the caller
            raise ConfigError(str(error) or type(error).__name__) from error
        strategy = self.config["trainer.strategy"]
        if isinstance(strategy, str) and strategy != "auto" and not strategy.lower().startswith("ddp"):
            parser.error(STRATEGY_ERROR)
        if self.brought is not None:
            check_places(self.config.as_dict(), self.brought, args)
        for section in SECTIONS:
            if not isinstance(self.config[section], Namespace):  # jsonargparse takes anything for a group of options
                parser.error(f'Parser key "{section}": expected a mapping, not {self.config[section]!r}')
        seed = self.config["seed_everything"]
        if seed is not None and not 0 <= seed < 2**32:
            parser.error(f'Parser key "seed_everything": expected 0 to {2**32 - 1}, not {seed}')

    def before_instantiate_classes(self) -> None:
        """Decide on checkpoint and run folder before anything is built."""
        self.checkpoint, self.folder = settle(self.command, self.config, self.recipe)
        if self.command == "fit" and self.checkpoint is None:  # the run's config says which commit it began with
            self.config["init_from"] = names.pinned(self.config["init_from"])
        if self.command == "fit" and self.held is not None:
            self.held.enter_context(locked(self.folder, "fit"))
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
        if self.config["trainer.precision"] == precision.AUTO:
            settled = precision.settle(self.command, self.checkpoint, self._build_for_trial)
            self.config["trainer.precision"] = self._given["trainer.precision"] = settled
        with self._explained():
            super().instantiate_classes()
        limit_waiting(self.trainer)
        frozen.note_sources(frozen.frozen_modules({"": self.model}), arguments, used)
        if not isinstance(self.model, Loaded):
            self.model.specs = describe(self.model, self.config)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a constructor may raise anything when its arguments make no sense
            raise explain_build(error, self.config.as_dict()) from error

    def _build_for_trial(self) -> dict[str, Any]:
        with self._explained():
            built = self.parser.instantiate_classes(self.config)
        devices = built["trainer"]["devices"]
        one = devices[:1] if isinstance(devices, list) else 1
        trainer = {"accelerator": built["trainer"]["accelerator"], "devices": one}
        return {"model": built["model"], "data": built["data"], **trainer}

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Build the trainer with our loggers and plugins."""
        self.config = self._given  # what the run's config.yaml says: its copies are no part of the recipe
        settings = self.config_init["trainer"]
        plugins = list(settings.get("plugins") or [])
        plugins += [] if isinstance(settings.get("strategy"), FSDP2) else [AtomicCheckpointIO()]  # it writes folders
        if self.config.get("engine") == "ray":  # the driver is one process, whatever the job has
            plugins += [LightningEnvironment()]
        elif SLURMEnvironment.detect():
            plugins += [SLURMEnvironment(auto_requeue=False)]
        loggers: Any = False
        if self.command != "predict":
            name = "metrics.csv" if self.command == "fit" else f"{self.command}.csv"
            evaluated = None if self.command == "fit" or self.checkpoint is None else step_of(self.checkpoint)
            self.csv = RunCSV(self.folder, name, evaluated)
            configured = settings.get("logger") or []
            own = configured if isinstance(configured, list) else [configured] if configured is not True else []
            names, wandb = self.config["loggers"], self.config_init["wandb"]
            made = make_loggers(names, wandb, self.folder, own, self.recipe, evaluated)
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
        "inference": registry.current_name(model.inference_class),
        "parts": {part: init_args[part] for part in model.inference_parts},
        "options": {option: init_args[option] for option in model.inference_options},
    }


def run(command: str, args: list[str], brought: Path | None = None) -> int:
    """Run one of the four commands.

    Args:
        brought: the run that a config among them came with; that of `--ckpt_path` is known without.

    Returns:
        The exit code.
    """
    filter_warnings()
    show_records()
    limit_names()
    if asks_for_help(args):
        return full_help(command, args)
    with contextlib.ExitStack() as held:
        args, own = complete(command, args)
        with collector_off():  # a recipe's classes are imported here
            cli = ZooCLI(command, args, brought or own, held)
        return _execute(command, cli)


def full_help(command: str, args: Sequence[str]) -> int:
    """Print every option, then the arguments of the classes that the recipes name; returns the exit code 0."""
    with contextlib.suppress(SystemExit):
        ZooCLI(command, ["--help"])
    for section in CLASS_SECTIONS:
        named = [read_mapping(Path(file)).get(section) or {} for file in config_files(list(args))]
        paths = [part["class_path"] for part in named if "class_path" in part]
        if paths:
            options = OneLineParser(prog=f"zoo {command}", usage=f"{section}: {registry.current_name(paths[-1])}")
            options.add_subclass_arguments(registry.find(paths[-1]), f"{section}")
            print()
            with contextlib.suppress(SystemExit):
                options.parse_args([f"--{section}.help={registry.current_name(paths[-1])}"])
    return 0


def _execute(command: str, cli: ZooCLI) -> int:
    checkpoint = None if cli.checkpoint is None else str(cli.checkpoint)
    if command != "fit" and checkpoint is None and not isinstance(cli.model, Loaded):
        raise ValueError(f"{command} needs --ckpt_path, a run or a checkpoint: the recipe alone has no trained weights")
    try:
        if command == "fit":
            fit(cli)
        elif command == "predict":
            return predict(cli)
        else:
            getattr(cli.trainer, command)(cli.model, cli.datamodule, ckpt_path=checkpoint, weights_only=True)
    except Exception as error:
        explained = explained_error(error, cli)
        if cli.trainer.world_size > 1 and torch.distributed.is_initialized():
            leave(cli.trainer, explained)
        if explained is error:
            raise
        raise explained from error
    return 0


def explained_error(error: Exception, cli: ZooCLI) -> Exception:
    """What the user is told of an error: itself, or one of ours that says what to do."""
    if lost_contact(error):
        return LostContactError(
            "lost contact with another process, which was killed or hangs; nothing saved is lost: start all of them "
            "again with --ckpt_path last"
        )
    message = explain(error, cli.config.as_dict()) if isinstance(error, RuntimeError | OSError | MemoryError) else None
    return error if message is None else ExplainedError(message)


def fit(cli: ZooCLI) -> None:
    """Train, from a checkpoint, from given weights or from the start."""
    done = step_of(cli.checkpoint) if cli.checkpoint is not None and cli.checkpoint.parent == cli.folder else 0
    cli.csv.trim(done - 1)  # rows carry the number of the batch, from 0; a run killed before its first save left some
    with told_at_end(cli.trainer, max(done, 0), cli.config["terminal.metrics"]):
        if cli.checkpoint is not None:
            cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=str(cli.checkpoint), weights_only=True)
            return
        given = cli.config["init_from"]
        if given:
            paths = [Path(path) for path in ([given] if isinstance(given, str) else given)]
            init_from(cli.model, paths, cli.config["init_from_min_matched"])
        cli.trainer.fit(cli.model, cli.datamodule)


def predict(cli: ZooCLI) -> int:
    """Run the model on files, or on what its datamodule offers; returns 1 when a file failed."""
    data: L.LightningDataModule = cli.datamodule
    on_ray = cli.config["engine"] == "ray"
    if on_ray and cli.config["input"] is None:
        raise ValueError("predict --engine ray needs --input, a file or a folder tree")
    if cli.config["input"] is not None:
        if cli.config["output"] is None:
            raise ValueError("predict --input needs --output, the folder for the results")
        model = cli.model.inference()
        source, target = Path(cli.config["input"]), Path(cli.config["output"])
        if on_ray:
            return predict_on_ray(cli, source, target, model)
        shard = None if cli.config["shard"] is None else Shard.parse(cli.config["shard"])
        options = (cli.config["overwrite"], shard, cli.config["fanout"], cli.config["tar"])
        several = cli.config["files_together"] or 1
        data = BulkData(source, target, model.input_suffixes, model.output_suffix, *options, files_together=several)
    checkpoint = None if cli.checkpoint is None else str(cli.checkpoint)
    with writing(data.output, "predict", data.shard) if isinstance(data, BulkData) else contextlib.nullcontext():
        cli.trainer.predict(cli.model, data, ckpt_path=checkpoint, weights_only=True, return_predictions=False)
    return int(getattr(data, "failed", 0) > 0)


def predict_on_ray(cli: ZooCLI, source: Path, output: Path, inference: Inference) -> int:
    """Have Ray's actors run on files what this command line describes; returns 1 when a file failed."""
    from zoo.runs.jobs import ray_engine

    config, described = cli.config, cli.model
    for option in ("shard", "tar", "files_together"):
        if config[option] is not None:
            raise ValueError(f"--{option} is for --engine ranks: Ray's actors share one list and write single files")
    if isinstance(described, Loaded):
        path, options, ema = Path(config["model.path"]), config["model.options"] or {}, True
    else:
        assert cli.checkpoint is not None and described.specs is not None
        path, options = cli.checkpoint, described.specs["options"]
        modules = frozen.frozen_modules({"": described})
        kept = [name for name, module in modules.items() if module.is_frozen]
        described._check_parts(load_checkpoint(path).get("zoo"), kept)  # actors build what the checkpoint describes
        ema = any(isinstance(callback, EMA) for callback in cli.trainer.callbacks)  # type: ignore[attr-defined]
    model = ray_engine.Model(str(path.absolute()), dict(options), ema, config["trainer.precision"], registry.admitted())
    jobs = plan(source, output, inference.input_suffixes, inference.output_suffix, config["fanout"])
    with writing(output, "predict"):
        summary = ray_engine.predict(
            jobs, model, output, config["overwrite"], config["ray_address"], config["ray_workers"],
            config["trainer.accelerator"], config["trainer.enable_progress_bar"] is not False,
        )  # fmt: skip
    return int(summary["failed"] > 0)


def dry_run(config: Path) -> list[tuple[str, bool, str]]:
    """Build a recipe, run one step, save, load and predict once, in a temporary folder.

    Returns:
        (check, passed, detail) for each stage that was reached.
    """
    results: list[tuple[str, bool, str]] = []
    brought = config.parent if runs.has_config(config) and any(config.parent.glob("*.ckpt")) else None
    with tempfile.TemporaryDirectory(prefix="zoo-trial-") as folder, quietly():
        root = Path(folder) / "run"
        limits = ["--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--trainer.num_sanity_val_steps=0"]
        stages = {
            "build, one step, save": lambda: run(
                "fit", ["--config", str(config), f"--trainer.default_root_dir={root}", *limits], brought
            ),
            "load": lambda: type(load(root)).__name__,
            "predict": lambda: load(root).dry_run(),
        }
        for name, stage in stages.items():
            try:
                detail = stage()
            except (Exception, SystemExit) as error:
                said = "see the error above" if isinstance(error, SystemExit) else " ".join(str(error).split())
                return [*results, (name, False, said or type(error).__name__)]
            results.append((name, True, str(detail or "ok")))
    return results
