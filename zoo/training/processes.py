"""What the processes of one run agree on: code, config and data, how long one waits for another, and how a run ends.

At the start the ranks compare what they are; a run whose ranks differ ends with one line. While it trains, each waits
for the others no longer than a timeout (`ZOO_TIMEOUT`, seconds), and notes the stacks of its threads in the run folder
when that is over. A rank that fails says so in the store of torch.distributed, so that the others leave quietly with
its exit code; one that was killed cannot, and the others leave with `LostContactError.exit_code`.

Ran with gloo; the settings for NCCL (its timeout, its flight recorder) were not run: that takes several GPUs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment

from zoo import __version__
from zoo.runs.folder import run_folder
from zoo.runs.listing import flatten
from zoo.training.data import ZooDataModule
from zoo.training.errors import LostContactError, lost_contact
from zoo.training.launcher import die_with_parent

TIMEOUT_VARIABLE = "ZOO_TIMEOUT"
TIMEOUT_SECONDS = {"nccl": 600.0, "gloo": 300.0}
START_SECONDS = 600.0  # at least, until all have loaded their data: hosts start at different times
STACKS = "stacks-rank{}.txt"
DISAGREEMENT_CODE = 2
# What may differ from host to host: where things lie, and what only says how fast or how loud.
NOT_COMPARED = (
    "config", "ckpt_path", "trainer.default_root_dir", "input", "output", "terminal", "data.init_args.num_workers"
)  # fmt: skip
_PATIENCE_SECONDS = 3.0  # for the other ranks' last words
_EXIT_SECONDS = 60
_FAILED, _LOST, _LEFT = "zoo/failed", "zoo/lost", "zoo/left"  # keys in the store

Result = TypeVar("Result")


def limit_waiting(trainer: L.Trainer) -> float | None:
    """Set how long this rank waits for the others; NCCL's flight recorder is written when that time is up.

    `ZOO_TIMEOUT` goes before a timeout of the strategy's own, and that before the default: 10 minutes for NCCL, 5 for
    gloo.

    Returns:
        Seconds, None for one process.

    Raises:
        ValueError: when `ZOO_TIMEOUT` is no positive number.
    """
    strategy: Any = trainer.strategy
    if trainer.world_size == 1 or not hasattr(strategy, "_timeout"):
        return None
    from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout

    given = os.environ.get(TIMEOUT_VARIABLE)
    if given is not None:
        try:
            strategy._timeout = timedelta(seconds=float(given))
        except (ValueError, OverflowError):
            strategy._timeout = timedelta(0)
        if strategy._timeout <= timedelta(0):
            raise ValueError(f"{TIMEOUT_VARIABLE}={given}: expected the seconds to wait for another process, above 0")
    elif strategy._timeout in (None, default_pg_timeout):
        backend = "nccl" if strategy.root_device.type == "cuda" else "gloo"
        strategy._timeout = timedelta(seconds=TIMEOUT_SECONDS[backend])
    seconds = float(strategy._timeout.total_seconds())
    strategy._timeout = max(strategy._timeout, timedelta(seconds=START_SECONDS))  # `Processes` shortens it
    if strategy.root_device.type == "cuda":
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
        folder = Path(trainer.default_root_dir).absolute()
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl-rank"))
    watch = _watch(trainer)
    if watch is not None:
        watch.seconds = seconds
    return seconds


class Processes(L.Callback):
    """Compares the ranks at the start, and dumps the stacks of one in which no batch ends within the timeout.

    Does nothing in a run of one process.

    Args:
        config: the run's, as nested mappings.
        checkpoint: that it goes on from.
    """

    def __init__(self, config: Mapping[str, Any], checkpoint: Path | None = None) -> None:
        self.config = config
        self.checkpoint = checkpoint
        self.hosts: list[str] = []
        self.first = -1  # the process of this host's first rank
        self._stacks: IO[str] | None = None
        self.seconds = 0.0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Compare, once; from then on watch."""
        if trainer.world_size == 1 or self.hosts or not dist.is_initialized():
            return
        die_with_agent(trainer)
        facts = {**versions(), **settings(self.config), "checkpoint": self.checkpoint and self.checkpoint.name}
        self.hosts, numbers = agree({**facts, **_data_facts(trainer)})
        self.first = numbers[trainer.global_rank - trainer.local_rank]
        with contextlib.suppress(OSError):  # of a disk of this host's own, which may be full
            if stage == "fit":
                run_folder(trainer).mkdir(parents=True, exist_ok=True)
                self._stacks = (run_folder(trainer) / STACKS.format(trainer.global_rank)).open("a", encoding="utf-8")
                faulthandler.enable(self._stacks)  # NCCL ends a process that waited too long by SIGABRT
        for group in dist.distributed_c10d._world.pg_map if self.seconds else ():
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.seconds), group)
        self._beat()

    def on_train_batch_end(self, *_: Any) -> None:
        """Start the clock again."""
        self._beat()

    def on_validation_batch_end(self, *_: Any) -> None:
        """Start the clock again."""
        self._beat()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Note where this rank was when it lost another."""
        _calm_observer()
        if self._stacks is not None and lost_contact(exception):
            place = f"rank {trainer.global_rank} on {socket.gethostname()}, step {trainer.global_step}"
            with contextlib.suppress(OSError):
                self._stacks.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {place}\n")
                self._stacks.writelines(traceback.format_exception(exception))
                self._stacks.flush()
                faulthandler.dump_traceback(self._stacks)
        self._end()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Stop watching."""
        self._end()

    def _end(self) -> None:
        """Without stacks, the file goes."""
        if self._stacks is None:
            return
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
        self._stacks.close()
        path = Path(self._stacks.name)
        self._stacks = None
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()

    def _beat(self) -> None:
        if self._stacks is not None and self.seconds:
            faulthandler.dump_traceback_later(self.seconds, file=self._stacks)


def versions() -> dict[str, str]:
    """What this process runs: versions, and a digest of zoo's own sources."""
    digest = hashlib.blake2b(digest_size=8)
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    return {
        "zoo": __version__,
        "torch": torch.__version__,
        "lightning": L.__version__,
        "Python": platform.python_version(),
        "zoo's code": digest.hexdigest(),
    }


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that must not differ between ranks; absolute paths may, as hosts have their own disks."""
    flat = flatten(dict(config))
    return {
        key: value
        for key, value in flat.items()
        if not any(key == name or key.startswith(f"{name}.") for name in NOT_COMPARED)
        and not (isinstance(value, str) and os.path.isabs(os.path.expanduser(value)))
    }


def agree(facts: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Compare what every rank knows; all of them leave when it differs, with one line by the first.

    Args:
        facts: values by name.

    Returns:
        The ranks' hosts and process numbers.

    Raises:
        SystemExit: on every rank.
    """
    told = {name: str(value) for name, value in facts.items()}
    digest = hashlib.blake2b(repr(sorted(told.items())).encode(), digest_size=16).hexdigest()
    known: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(known, (socket.gethostname(), os.getpid(), digest))
    hosts, numbers, digests = map(list, zip(*known, strict=True))
    if len(set(digests)) == 1:
        return hosts, numbers
    dist.all_gather_object(known, told)
    if dist.get_rank() == 0:
        say(f"the processes of this run differ: {differences(known, hosts)}; start all of them alike")
    dist.barrier()
    raise SystemExit(DISAGREEMENT_CODE)


def differences(facts: Sequence[Mapping[str, str]], hosts: Sequence[str], most: int = 5) -> str:
    """Name what differs: `torch is 2.10.0 on rank 0 (a), 2.11.0 on ranks 1, 2 (b)`.

    Args:
        facts: of every rank, values by name.
        hosts: of every rank.
        most: facts to name; the others are counted.
    """
    said = []
    for name in dict.fromkeys(name for each in facts for name in each):
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(facts):
            ranks.setdefault(each.get(name, "not set"), []).append(rank)
        if len(ranks) > 1:
            said.append(
                f"{name} is " + ", ".join(f"{value} on {_named(where, hosts)}" for value, where in ranks.items())
            )
    return "; ".join(said[:most]) + (f"; and {len(said) - most} more" if len(said) > most else "")


def leave(trainer: L.Trainer, error: Exception) -> NoReturn:
    """End this rank of a run of several processes: one of them says why, all leave with the same exit code.

    Args:
        error: what ended this rank, explained as far as it can be.

    Raises:
        SystemExit: with the exit code of the rank that failed, or `LostContactError.exit_code` when one is gone.
    """
    _calm_observer()
    rank, store = trainer.global_rank, dist.distributed_c10d._get_default_store()
    place = f"rank {rank} on {socket.gethostname()}, step {trainer.global_step}"
    lost, code = isinstance(error, LostContactError), int(getattr(error, "exit_code", 1))
    failed = _within(lambda: store.get(_FAILED).decode() if store.check([_FAILED]) else "")
    answers = failed is not None  # the store; it is part of the first rank, or of its torchrun
    if answers:
        _within(lambda: store.set(f"{_LEFT}/{rank}", ""))
    if failed:
        code = int(failed)
    elif lost:
        first = answers and _within(lambda: store.add(_LOST, 1)) == 1
        if first or (not answers and trainer.local_rank == int(trainer.node_rank == 0)):
            who = _silent(trainer, store) if first else _named([0], _hosts(trainer))
            stacks = Path(getattr(trainer, "_zoo_run_folder", trainer.default_root_dir)) / STACKS.format("*")
            say(
                f"{place}: lost contact with {who}, which was killed or hangs; nothing saved is lost: start all "
                f"processes again with --ckpt_path last (where they were: {stacks})"
            )
    elif not answers or _within(lambda: store.add(f"{_FAILED}/count", 1)) == 1:
        if answers:
            _within(lambda: store.set(_FAILED, str(code)))
        known = isinstance(error, ValueError | OSError | ImportError)
        if not known or os.environ.get("ZOO_TRACEBACK"):
            traceback.print_exception(error)
        say(f"{place}: {'' if known else type(error).__name__ + ': '}{error or type(error).__name__}")
    if sys.platform != "win32":  # should what follows, or Python's own end, wait for a process that hangs
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_EXIT_SECONDS)
    if not lost:  # else gloo might wait for the others with Python's lock held
        _within(dist.destroy_process_group)  # they notice now
    _let_others_leave(trainer, store, lost)
    raise SystemExit(code)


def say(line: str) -> None:
    """Tell an error as the command line does."""
    print(f"zoo: error: {' '.join(line.split())}", file=sys.stderr, flush=True)


def die_with_agent(trainer: L.Trainer) -> None:
    """Have the kernel kill this rank when torchrun's agent is killed, which would leave it running (Linux)."""
    if isinstance(trainer.strategy.cluster_environment, TorchElasticEnvironment):  # type: ignore[attr-defined]
        die_with_parent()


def _data_facts(trainer: L.Trainer) -> dict[str, Any]:
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, ZooDataModule) or trainer.state.fn != "fit":
        return {}
    facts = data._circumstances()
    names = {"seed": "data seed", "items": "number of training items", "contents": "digest of the training data"}
    return {name: facts[key] for key, name in names.items() if key in facts}


def _named(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    where = ", ".join(dict.fromkeys(hosts[rank] for rank in ranks)) if hosts else "host unknown"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} ({where})"


def _within(function: Callable[[], Result], seconds: float = 5.0) -> Result | None:
    """What a call gives that may fail or never end, as those to a store whose process is gone or stopped; else None."""
    given: list[Result] = []

    def call() -> None:
        with contextlib.suppress(Exception):
            given.append(function())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return given[0] if given else None


def _until(holds: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return held


def _absent(trainer: L.Trainer, store: dist.Store) -> list[int]:
    """The ranks that have not said that they leave."""
    others = set(range(trainer.world_size)) - {trainer.global_rank}
    return sorted(rank for rank in others if _within(lambda rank=rank: store.check([f"{_LEFT}/{rank}"])) is False)  # type: ignore[misc]


def _silent(trainer: L.Trainer, store: dist.Store) -> str:
    """Name the ranks from which no word comes."""
    _until(lambda: not _absent(trainer, store))
    absent = _absent(trainer, store)
    return _named(absent, _hosts(trainer)) if absent else "another process"


def _watch(trainer: L.Trainer) -> Processes | None:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((each for each in callbacks if isinstance(each, Processes)), None)


def _hosts(trainer: L.Trainer) -> list[str]:
    watch = _watch(trainer)
    return [] if watch is None else watch.hosts


def _let_others_leave(trainer: L.Trainer, store: dist.Store, lost: bool) -> None:
    """Stay while others may ask the store of this process; then end those of this host that Lightning started."""
    environment = trainer.strategy.cluster_environment  # type: ignore[attr-defined]
    if trainer.global_rank == 0 and not lost and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        _until(lambda: not _absent(trainer, store))
    if type(environment) is not LightningEnvironment:
        return
    parent, watch = os.getppid(), _watch(trainer)
    if trainer.local_rank != 0 and watch is not None and parent == watch.first:
        # the first rank started this one; it is killed where it sees this one fail before it has left, or else hangs

        def gone() -> bool:
            return os.getppid() != parent or _within(lambda: store.check([f"{_LEFT}/{first}"])) is True

        first = trainer.global_rank - trainer.local_rank
        if not _until(gone, (5 if lost else 10) * _PATIENCE_SECONDS) and lost:
            os.kill(parent, getattr(signal, "SIGKILL", signal.SIGTERM))
            os._exit(LostContactError.exit_code)  # Python's end would wait for it, too
    children = list(getattr(trainer.strategy.launcher, "procs", ()))
    _until(lambda: all(child.poll() is not None for child in children), 2 * _PATIENCE_SECONDS)
    for child in children:
        child.kill()


def _calm_observer() -> None:
    """Keep Lightning's thread that watches the processes it started from killing this one before it has spoken."""
    for thread in threading.enumerate():
        if thread.name == "child-process-observer":
            thread._child_processes = []  # type: ignore[attr-defined]
