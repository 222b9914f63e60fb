"""Starts a training, and starts it again after it lost a process: `scripts/launch.sh`.

One launcher a host. On one host it starts `zoo fit`, whose first process starts the others (torchrun's agent instead
with LAUNCHER=torchrun). On several it starts torchrun's agent with a c10d rendezvous, once an attempt and without
restarts of its own: those of agents on two hosts were measured not to find each other again (docs/cluster.md). The
first host's launcher keeps a store, through which the launchers tell each other that an attempt has ended, and learn
whether there is another; so all begin it together, and one whose processes hang, or that came back, joins in.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch.distributed import TCPStore

Answer = TypeVar("Answer")

LOST = 75  # zoo.training.errors.LostContactError.exit_code
STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
JOIN_SECONDS = 600  # for a host that has to come back
PORT = 29400  # torchrun's own default
_USAGE = "scripts/launch.sh RECIPE [N] [--nodes NODES --node-rank RANK --master HOST[:PORT]] [flags of zoo fit ...]"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


def is_lost(code: int) -> bool:
    """Whether an exit code says that a process was killed, or lost another that was."""
    return code == LOST or (code >= 128 and code not in (130, 143))


def newest_checkpoint(recipe: str, flags: Sequence[str]) -> tuple[float, str]:
    """When the newest checkpoint of a recipe's runs was written, and where; (0, "") without one."""
    given = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    given.add_argument("--trainer.default_root_dir", dest="root")
    root = given.parse_known_args(list(flags))[0].root
    found = []
    for path in Path(root or "runs").rglob("step_*.ckpt"):
        if root or Path(recipe).stem in path.parts:
            with contextlib.suppress(OSError):  # deleted by now
                found.append((path.stat().st_mtime, str(path)))
    return max(found, default=(0.0, ""))


class Attempt:
    """One start of the processes of this host, in a session of their own; none of them outlives it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.child = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_parent)

    def signal(self, number: int) -> None:
        """Send a signal to the process that starts the others; it passes it on."""
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(number)

    def wait(self, ended_elsewhere: Callable[[], bool], patience: float) -> int:
        """Wait for its end; kill what is left `patience` seconds after the first process or another host has ended.

        Returns:
            The exit code as a shell counts it, 128 + signal.
        """
        deadline: float | None = None
        while self._alive():
            if deadline is None and (self.child.poll() is not None or ended_elsewhere()):
                deadline = time.monotonic() + patience
            if deadline is not None and time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.child.pid, signal.SIGKILL)
            time.sleep(0.2)
        code = self.child.wait()
        return code if code >= 0 else 128 - code

    def _alive(self) -> bool:
        running = self.child.poll() is None
        with contextlib.suppress(ChildProcessError):  # orphans come to this process, which is a subreaper
            while not running and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.child.pid, 0)
        except ProcessLookupError:
            return running
        return True


class Hosts:
    """What the launchers of several hosts tell each other.

    Args:
        host: of the store, that of the launcher with rank 0.
    """

    def __init__(self, host: str, port: int, rank: int, count: int) -> None:
        self.host, self.port, self.rank, self.count = host, port, rank, count
        self.store: TCPStore | None = None

    def begin(self) -> int:
        """Connect where that is needed, and tell the number of the attempt that is next or under way.

        Raises:
            TimeoutError: when the store does not answer within `JOIN_SECONDS`.
        """
        from torch.distributed import TCPStore

        end = time.monotonic() + JOIN_SECONDS
        while True:
            try:
                if self.store is None:
                    wait = timedelta(seconds=30)
                    self.store = TCPStore(self.host, self.port, None, self.rank == 0, wait, wait_for_workers=False)
                number = int(self.store.add("attempt", 0))
                if not self.store.check([f"ended/{number}"]):
                    return number
                time.sleep(0.5)  # the first launcher decides what comes next
            except RuntimeError as error:
                self.store = None
                if time.monotonic() > end or self.rank == 0:
                    raise TimeoutError(f"no launcher answers on {self.host}:{self.port}: {error}") from error
                time.sleep(2)

    def ended(self, number: int) -> bool:
        """Whether an attempt has ended on any host."""
        return self._ask(lambda store: store.check([f"ended/{number}"]), lost=True)

    def end(self, number: int, code: int) -> int:
        """Say that an attempt has ended here; tells the exit code for all hosts, an error's before a lost process's."""
        if not is_lost(code):
            self._ask(lambda store: store.set(f"code/{number}", str(code)), lost=None)
        self._ask(lambda store: store.set(f"ended/{number}", ""), lost=None)
        self._ask(lambda store: store.add(f"reports/{number}", 1), lost=0)
        self._until(lambda: self._ask(lambda store: store.add(f"reports/{number}", 0), lost=self.count) >= self.count)
        known = self._ask(lambda store: store.check([f"code/{number}"]), lost=False)
        return self._ask(lambda store: int(store.get(f"code/{number}")), lost=code) if known else code

    def decide(self, number: int, again: bool) -> None:
        """Tell the others whether there is another attempt; only the first launcher does."""
        if again:
            self._ask(lambda store: store.add("attempt", 1), lost=0)
            return
        self._ask(lambda store: store.set(f"over/{number}", ""), lost=None)
        self._until(lambda: self._ask(lambda store: store.add("heard", 0), lost=self.count) >= self.count - 1)

    def goes_on(self, number: int) -> bool | None:
        """Wait for the first launcher's word; None when it is gone."""
        while self.store is not None:
            if self._ask(lambda store: store.check([f"over/{number}"]), lost=False):
                self._ask(lambda store: store.add("heard", 1), lost=0)
                return False
            if self._ask(lambda store: store.add("attempt", 0), lost=number) != number:
                return True
            time.sleep(0.3)
        return None

    def _ask(self, question: Callable[[TCPStore], Answer], lost: Answer) -> Answer:
        if self.store is None:
            return lost
        try:
            return question(self.store)
        except RuntimeError:  # torch's errors of connections are such
            self.store = None
            return lost

    @staticmethod
    def _until(holds: Callable[[], bool], seconds: float = 10) -> None:
        end = time.monotonic() + seconds  # a host that is gone does not answer
        while not holds() and time.monotonic() < end:
            time.sleep(0.1)


class Launcher:
    """Starts attempts until one ends for good.

    Args:
        options: see `parse`.
        flags: of `zoo fit`.
    """

    def __init__(self, options: argparse.Namespace, flags: Sequence[str]) -> None:
        self.options, self.flags = options, list(flags)
        self.restarts = int(os.environ.get("ZOO_RESTARTS", "3"))
        self.patience = float(os.environ.get("ZOO_WAIT", "120"))
        self.stopped: int | None = None
        self.attempt: Attempt | None = None
        self.joins = False
        host, _, port = options.master.partition(":")
        several = options.nodes > 1
        self.hosts = Hosts(host, int(port or PORT), options.node_rank, options.nodes) if several else None

    def run(self) -> int:
        """Train; the exit code of the last attempt, the same on all hosts."""
        for name in STOP_SIGNALS:
            signal.signal(getattr(signal, name), self._stop)
        begun = newest = newest_checkpoint(self.options.recipe, self.flags)
        lost = 0
        while True:
            self.attempt, self.joins = None, True
            number = self.hosts.begin() if self.hosts else lost
            self.joins = False
            self.attempt = Attempt(self.command(number, again=newest != begun))
            if self.stopped is not None:
                self.attempt.signal(self.stopped)
            code = self.attempt.wait(self._ended_elsewhere(number), self.patience)
            code = self.hosts.end(number, code) if self.hosts else code
            before, newest = newest, newest_checkpoint(self.options.recipe, self.flags)
            lost = 1 if newest != before else lost + 1
            again = is_lost(code) and lost <= self.restarts and self.stopped is None
            if self.hosts and self.options.node_rank == 0:
                self.hosts.decide(number, again)
            elif self.hosts:
                word = self.hosts.goes_on(number)
                again = self.stopped is None and (is_lost(code) if word is None else word)
            if not again:
                if is_lost(code) and self.stopped is None:
                    tell(f"a process was lost {lost} times in a row without a new checkpoint: given up")
                return code
            tell(
                f"a process was lost (exit code {code}): starting all again from {newest[1] or 'the beginning'} "
                f"({lost} of {self.restarts} times without a new checkpoint)"
            )

    def command(self, number: int, again: bool) -> list[str]:
        """What an attempt runs."""
        options = self.options
        fragment = Path(__file__).parents[2] / "configs" / "trainer" / "ddp.yaml"
        fit = ["fit", "--config", options.recipe, "--config", str(fragment) if fragment.is_file() else "trainer/ddp"]
        fit += [f"--trainer.devices={options.devices}"]
        if self.hosts:  # a host that comes back cannot tell a start from a restart
            fit += [f"--trainer.num_nodes={options.nodes}", "--ckpt_path", "auto"]
        fit += [*self.flags, *(["--ckpt_path", "auto"] if again else [])]
        if not self.hosts and os.environ.get("LAUNCHER") != "torchrun":
            return [sys.executable, "-m", "zoo", *fit]
        agent = [sys.executable, "-m", "zoo.training.launcher", "agent", "--max-restarts=0"]
        agent += [f"--nproc-per-node={'gpu' if options.devices == 'auto' else options.devices}"]
        if self.hosts:
            agent += [f"--nnodes={options.nodes}", "--rdzv-backend=c10d", f"--rdzv-id=zoo-{number}"]
            agent += [f"--rdzv-endpoint={self.hosts.host}:{self.hosts.port}"]
            agent += [f"--rdzv-conf=is_host=false,join_timeout={JOIN_SECONDS}"]
            agent += [f"--local-addr={options.address}"] if options.address else []
        else:
            agent += ["--standalone"]
        return [*agent, "--module", "zoo", *fit]

    def _ended_elsewhere(self, number: int) -> Callable[[], bool]:
        hosts = self.hosts
        return (lambda: hosts.ended(number)) if hosts else lambda: False

    def _stop(self, number: int, frame: object) -> None:
        self.stopped = number
        if self.joins:  # another host may not come for long
            raise SystemExit(130 if number == signal.SIGINT else 143)
        if self.attempt is not None:
            self.attempt.signal(number)


def tell(line: str) -> None:
    """Say why a training is started again, or is not."""
    print(f"launch: {line}", file=sys.stderr, flush=True)


def agent(arguments: Sequence[str]) -> int:
    """Torchrun with the exit code of the process that failed, and without a traceback of its own."""
    from torch.distributed import DistError, run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    try:
        run.run(run.parse_args(list(arguments)))
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        return min((code if code >= 0 else 128 - code for code in codes), key=is_lost)
    except SignalException as stop:
        return 128 + stop.sigval
    except (RendezvousError, DistError) as error:
        tell(f"the hosts did not meet: {error}")
        return LOST
    return 0


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's own options and the flags of `zoo fit`."""
    parser = argparse.ArgumentParser("scripts/launch.sh", usage=_USAGE, allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=int(os.environ.get("NODES", "1")))
    parser.add_argument("--node-rank", type=int, default=int(os.environ.get("NODE_RANK", "0")))
    parser.add_argument("--master", default=os.environ.get("MASTER_ADDR", ""))
    parser.add_argument("--address", default="", help="of this host, where its name does not lead to it")
    if not arguments or arguments[0].startswith("-"):
        parser.error("a recipe comes first")
    recipe, *rest = arguments
    devices = rest.pop(0) if rest and re.fullmatch(r"\d+", rest[0]) else "auto"
    options, flags = parser.parse_known_args(rest)
    options.recipe, options.devices = recipe, devices
    if not 0 <= options.node_rank < max(options.nodes, 1):
        parser.error(f"--node-rank {options.node_rank}: expected 0 to {options.nodes - 1}")
    if options.nodes > 1 and not options.master:
        parser.error("--nodes needs --master HOST[:PORT], the host of --node-rank 0")
    return options, flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the launcher, or with `agent` first, torchrun's agent under it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["agent"]:
        return agent(given[1:])
    if sys.platform == "win32":  # sessions, orphans and killing them are POSIX's
        tell("restarts need Linux or macOS; here: zoo fit RECIPE trainer/ddp --ckpt_path auto")
        return 2
    launcher = Launcher(*parse(given))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        return launcher.run()
    except (OSError, ValueError) as error:
        tell(str(error))
        return 1
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    sys.exit(main())
