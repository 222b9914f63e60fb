"""Trainings on a real SLURM of two nodes lose processes, a node and their time, and end with the same weights."""

import contextlib
import math
import random
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.cluster.slurm import NODES, Slurm, available, slurm
from tests.harness import REPOSITORY, fingerprint, good, newest, zoo
from zoo.runs.checkpoints import parse_step

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not available(), reason="needs root and Debian's slurm-wlm and munge"),
]
FLAGS = ("--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1", "--checkpoints.every_n_steps=3")
STORMY = {  # recipe and steps: enough for all that happens, also where steps are quick
    "hifigan": ("hifigan/smoke", 48),
    "miipher": ("miipher/smoke_pretrain", 48),
    "audiosr": ("audiosr/smoke", 48),
    "flow": ("flow/smoke", 72),
    "compressed_ad": ("compressed_ad/smoke", 72),
    "ci_llm": ("ci_llm/smoke", 72),
}
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
PENDING_SIGUSR1 = 1 << 9  # in /proc/PID/status


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="zoo-slurm-") as folder, slurm(Path(folder) / "s") as made:
        yield made


@dataclass
class Job:
    """A training that was submitted as a user would, on both nodes.

    Args:
        work: the folder it is submitted from.
        flags: of `zoo fit`.
    """

    cluster: Slurm
    work: Path
    recipe: str
    flags: tuple[object, ...] = ()
    number: str = field(init=False)
    released: int = 0

    def __post_init__(self) -> None:
        self.work.mkdir()
        inputs = (f"PYTHONPATH={REPOSITORY}", "MASTER_ADDR=127.0.0.1", "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1")
        options = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0")
        exported = "--export=" + ",".join(("ALL", "ZOO_WAIT=20", *inputs))
        script = (REPOSITORY / "scripts" / "slurm.sh", self.recipe, *FLAGS, *self.flags)
        self.number = self.cluster.run("sbatch", "--parsable", *options, exported, *script, cwd=self.work).strip()

    @property
    def log(self) -> str:
        path = self.work / f"slurm-{self.number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def run(self) -> Path:
        return next(path.parent for path in self.work.glob("runs/*/*/*/step_*.ckpt"))

    def saved(self) -> int:
        """The step of the newest checkpoint; -1 when there is none."""
        return max(map(parse_step, self.work.glob("runs/*/*/*/step_*.ckpt")), default=-1)

    def trained(self) -> int:
        """How many steps metrics.csv knows."""
        text = "\n".join(path.read_text() for path in self.work.glob("runs/*/*/*/metrics.csv"))
        return 1 + max((int(step) for step in re.findall(r"^(\d+),", text, re.MULTILINE)), default=-1)

    def ranks(self) -> list[psutil.Process]:
        """The training processes, not their data workers."""
        results = []
        for process in psutil.process_iter(["environ", "cmdline"]):
            actual = (process.info["environ"] or {}).get("SLURM_JOB_ID") == self.number
            actual = actual and process.info["environ"].get("SLURM_CONF") == self.cluster.environment["SLURM_CONF"]
            if actual and (process.info["cmdline"] or [])[1:4] == ["-m", "zoo", "fit"]:
                with contextlib.suppress(psutil.Error):
                    parent = process.parent()
                    if parent is None or parent.cmdline()[1:4] != ["-m", "zoo", "fit"]:
                        results.append(process)
        return results

    def state(self) -> dict[str, str]:
        """Return the job's state; a job that waits for its restart is released at once: SLURM waits two minutes."""
        state = self.cluster.job(self.number)
        if state["JobState"] == "PENDING" and int(state["Restarts"]) > self.released:
            self.released = int(state["Restarts"])
            self.change("TimeLimit=60")
        if state["JobState"] == "PENDING" and state["Reason"] == "BeginTime":
            self.change("StartTime=now")
        return state

    def change(self, setting: str) -> None:
        with contextlib.suppress(AssertionError):  # it may just have started or ended
            self.cluster.run("scontrol", "update", f"JobId={self.number}", setting)

    def until(self, holds: object, seconds: float = 600) -> None:
        """Wait, letting the job come back meanwhile."""
        end = time.monotonic() + seconds
        while not holds():  # type: ignore[operator]
            state = self.state()
            if time.monotonic() > end or state["JobState"] in ENDS:
                pytest.fail(f"{state}\n{self.log}")
            time.sleep(0.2)

    def end(self) -> dict[str, str]:
        """Wait for the job's good end."""
        end = time.monotonic() + 600
        while (state := self.state())["JobState"] not in ENDS and time.monotonic() < end:
            time.sleep(0.2)
        if state["JobState"] != "COMPLETED":
            pytest.fail(f"{state}\n{self.log}")
        return state


def kill_rank(job: Job, chance: random.Random) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        chance.choice(job.ranks()).kill()


def lose_node(job: Job, chance: random.Random) -> None:
    """Take a node away, and bring it back, before or after SLURM has seen that it is gone."""
    node = chance.choice(NODES)
    job.cluster.kill_node(node)
    time.sleep(chance.uniform(0, 15))
    job.cluster.start_node(node, "-b")


def reach_limit(job: Job, chance: random.Random) -> None:
    """Let the time limit come near; as SLURM looks every 30 s, the ranks stand still until it has sent its signal."""
    ranks = job.ranks()
    for rank in ranks:
        rank.suspend()
    try:
        hours, minutes, seconds = map(int, job.cluster.job(job.number)["RunTime"].split(":"))
        job.change(f"TimeLimit={math.ceil((3600 * hours + 60 * minutes + seconds + 1) / 60) + 1}")
        job.until(lambda: all(_signalled(rank) for rank in ranks), seconds=60)
    finally:
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.resume()


def _signalled(rank: psutil.Process) -> bool:
    try:
        text = Path(f"/proc/{rank.pid}/status").read_text()
    except OSError:  # let on by SLURM itself, and already gone
        return True
    return any(int(mask, 16) & PENDING_SIGUSR1 for mask in re.findall(r"(?:SigPnd|ShdPnd):\s+(\w+)", text))


STORM = (kill_rank, kill_rank, kill_rank, lose_node, reach_limit, reach_limit)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("system", STORMY)
def test_a_storm_changes_nothing(cluster: Slurm, tmp_path: Path, system: str) -> None:
    seed = time.time_ns() % 2**32
    chance = random.Random(seed)
    storm = list(STORM)
    chance.shuffle(storm)
    print(f"\n{system}: seed {seed}:", *(event.__name__ for event in storm))
    recipe, steps = STORMY[system]
    flags = (f"--trainer.max_steps={steps}", "--trainer.val_check_interval=24", "--data.init_args.batch_size=2")
    calm = Job(cluster, tmp_path / "calm", recipe, flags)
    calm.end()
    job = Job(cluster, tmp_path / "stormy", recipe, flags)
    for number, event in enumerate(storm):
        existing = job.saved()
        job.until(lambda existing=existing: job.saved() > existing and len(job.ranks()) == 2)  # type: ignore[misc]
        step = job.trained() + chance.randrange(3)
        job.until(lambda step=step: job.trained() >= step)  # type: ignore[misc]
        event(job, chance)
        job.until(lambda number=number: int(job.cluster.job(job.number)["Restarts"]) == number + 1)  # type: ignore[misc]
    state = job.end()
    message = job.log
    assert fingerprint(newest(calm.run)) == fingerprint(newest(job.run))
    assert state["Restarts"] == str(len(storm)) and message.count("stopped by a signal, checkpoint saved") == 2, message
    assert message.count("a process was lost") in (3, 4), message  # a lost node is seen by SLURM, or first by its ranks
    assert not list(job.work.glob("slurm-*.starts"))


def test_a_killed_rank_comes_back_by_itself(cluster: Slurm, tmp_path: Path) -> None:
    flags = ("--trainer.max_steps=30", "--trainer.val_check_interval=15")
    job = Job(cluster, tmp_path / "job", "flow/smoke", flags)
    job.until(lambda: job.saved() > 0 and len(job.ranks()) == 2)
    kill_rank(job, random.Random(time.time_ns()))
    state = job.end()
    assert state["Restarts"] == "1" and job.log.count("a process was lost") == 1, job.log
    devices = ("--config", "trainer/ddp", "--trainer.devices=2", "--trainer.default_root_dir=calm")
    good(zoo("fit", "--config", "flow/smoke", *devices, *FLAGS, *flags, cwd=tmp_path))
    assert fingerprint(newest(job.run)) == fingerprint(newest(tmp_path / "calm"))
