"""A SLURM of two nodes on this machine: Debian's munged, slurmctld and two slurmd, on ports of their own."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
NODES = ("n1", "n2")
CONFIG = """
ClusterName=zoo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=20
KillWait=30
JobRequeue=1
FirstJobId={first}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


@dataclass
class Slurm:
    """The running cluster.

    Args:
        folder: of its files; short, as socket paths are limited.
    """

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What makes SLURM's commands find this cluster, and its jobs the Python that runs the tests."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: object, cwd: Path | None = None, timeout: float = 60) -> str:
        """Run one of SLURM's commands; its output, an AssertionError when it fails."""
        done = subprocess.run(
            list(map(str, command)), env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What the controller says of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def start_node(self, name: str, *options: str) -> None:
        """Start a node's daemon; with -b it reports that its machine has restarted."""
        command = ["slurmd", "-D", *options, "-N", name, "-f", str(self.folder / "slurm.conf")]
        self.daemons[name] = self._spawn(*command)

    def kill_node(self, name: str) -> None:
        """Take a node away with all that runs on it, as a power cut does."""
        daemon = self.daemons.pop(name)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none can report the end of another
            for process in _tree(daemon.pid, self.folder / f"spool.{name}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
        daemon.wait(30)

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        log = (self.folder / "daemons.log").open("ab")
        with log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)


def available() -> bool:
    """Whether the packages are installed, and this user may start them."""
    return all(map(shutil.which, PROGRAMS)) and os.geteuid() == 0


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start a cluster of two nodes, and end all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    for name in NODES:
        (folder / f"spool.{name}").mkdir()
    ports = _free_ports(1 + len(NODES))
    host = socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
        for name, port in zip(NODES, ports[1:], strict=True)
    )
    first = random.SystemRandom().randrange(1, 12000)  # scripts/slurm.sh takes its port by the job's number
    text = CONFIG.format(first=first, host=host, ports=ports, folder=folder, nodes=nodes, names=",".join(NODES))
    (folder / "slurm.conf").write_text(text)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    made = Slurm(folder)
    try:
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        munged += [f"--{kind}-file={folder}/munged.{kind}" for kind in ("log", "pid", "seed")]
        made.daemons["munged"] = made._spawn(*munged)
        _until(lambda: (folder / "munge.socket").exists())
        made.daemons["slurmctld"] = made._spawn("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        for name in NODES:
            made.start_node(name)
        _until(lambda: made.run("sinfo", "-h", "-o", "%T").split() == ["idle"])
        yield made
    finally:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            made.run("scancel", "--state=PENDING,RUNNING", "--user=root", timeout=10)
        for name in reversed(list(made.daemons)):
            daemon = made.daemons[name]
            for process in _tree(daemon.pid, folder / f"spool.{name}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            daemon.wait(30)


def _tree(daemon: int, spool: Path) -> list[int]:
    """A daemon, and the step daemons and tasks of its node, which are no children of it."""
    import psutil

    node = spool.suffix[1:]
    log = str(spool.with_name(f"slurmd.{node}.log"))
    results = [daemon]
    for process in psutil.process_iter(["pid", "environ", "cmdline"]):
        environ, line = process.info["environ"] or {}, " ".join(process.info["cmdline"] or ())
        actual = environ.get("SLURM_CONF", "").startswith(str(spool.parent))
        with contextlib.suppress(psutil.Error):
            if (
                str(spool) in line
                or (actual and environ.get("SLURMD_NODENAME") == node)
                # a step's daemon knows its node by the log it writes to
                or ("slurmstepd" in line and log in {file.path for file in process.open_files()})
            ):
                results.append(process.info["pid"])
    for process in psutil.process_iter(["pid"]):
        with contextlib.suppress(psutil.Error):
            if any(parent.pid in results for parent in process.parents()):
                results.append(process.info["pid"])
    return list(dict.fromkeys(results))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _until(holds: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(AssertionError):
            if holds():  # type: ignore[operator]
                return
        assert time.monotonic() < end, "the cluster did not come up"
        time.sleep(0.2)
