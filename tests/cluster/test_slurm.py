"""A training on a real SLURM of two nodes loses processes, goes on by itself, and ends with the same weights."""

import contextlib
import random
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.slurm import Slurm, available, slurm
from tests.harness import REPOSITORY
from zoo.runs.checkpoints import find_checkpoints, load_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="needs root and Debian's slurm-wlm and munge"),
]
BATCHES = 120
FLAGS = ("--trainer.accelerator", "cpu", "--trainer.max_steps", BATCHES, "--checkpoints.every_n_batches", 10)
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="zoo-slurm-") as folder, slurm(Path(folder) / "s") as made:
        yield made


def submit(cluster: Slurm, work: Path, *flags: object) -> str:
    """Submit the drill as a user would, on both nodes."""
    work.mkdir()
    variables = f"ALL,PYTHONPATH={REPOSITORY},MASTER_ADDR=127.0.0.1,CUDA_VISIBLE_DEVICES=,OMP_NUM_THREADS=1,ZOO_WAIT=20"
    options = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0", f"--export={variables}"]
    script = REPOSITORY / "scripts" / "slurm.sh"
    return cluster.run("sbatch", "--parsable", *options, script, "flow/smoke", *FLAGS, *flags, cwd=work).strip()


def ranks(job: str) -> list[psutil.Process]:
    """The training processes of a job, not their data workers."""
    found = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        line = process.info["cmdline"] or []
        if (process.info["environ"] or {}).get("SLURM_JOB_ID") == job and line[1:4] == ["-m", "zoo", "fit"]:
            with contextlib.suppress(psutil.Error):
                if process.parent() is None or process.parent().cmdline()[1:4] != ["-m", "zoo", "fit"]:
                    found.append(process)
    return found


def logged(work: Path, job: str) -> str:
    return (work / f"slurm-{job}.log").read_text(errors="replace")


def test_killed_ranks_come_back_by_themselves(cluster: Slurm, tmp_path: Path) -> None:
    calm = submit(cluster, tmp_path / "calm")
    assert cluster.wait(calm, *ENDS, seconds=300)["JobState"] == "COMPLETED", logged(tmp_path / "calm", calm)

    seed = time.time_ns() % 2**32
    print("seed", seed)
    chance = random.Random(seed)
    work = tmp_path / "stormy"
    job = submit(cluster, work)
    end, kills, known = time.monotonic() + 900, 0, -1
    while (state := cluster.job(job))["JobState"] not in ENDS:
        assert time.monotonic() < end, logged(work, job)
        if state["JobState"] == "PENDING" and state["Restarts"] != "0":  # SLURM itself waits two minutes
            with contextlib.suppress(AssertionError):
                cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        steps = [int(step) for step in re.findall(r"step_(\d+)\.ckpt", " ".join(map(str, work.rglob("*.ckpt"))))]
        if kills < 3 and max(steps, default=-1) > known and len(ranks(job)) == 2:
            time.sleep(chance.uniform(0, 2))
            with contextlib.suppress(psutil.Error, IndexError):
                chance.choice(ranks(job)).kill()
                kills, known = kills + 1, max(steps)
        time.sleep(0.3)
    said = logged(work, job)
    assert (state["JobState"], kills, state["Restarts"]) == ("COMPLETED", 3, "3"), said
    assert said.count("a process was lost") == 3
    assert said.count("lost contact with another process") >= 1 or "Force Terminated" in said
    first, second = (find_checkpoints(next((tmp_path / name).glob("runs/*/*/*")))[0] for name in ("calm", "stormy"))
    ours, theirs = (load_checkpoint(path)["state_dict"] for path in (first, second))
    assert ours.keys() == theirs.keys()
    assert all(ours[key].equal(theirs[key]) for key in ours)
