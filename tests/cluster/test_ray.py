"""Bulk inference on a real Ray cluster of two nodes: what is killed is made up for, and every file is done once."""

import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.cluster.ray_cluster import RayCluster, available, ray_cluster
from tests.harness import TOY_ARGS, TOY_FIT, forked, good, zoo
from zoo.audio.io import files
from zoo.runs.predict.results import read_manifest

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not available(), reason="needs Ray: the extra ray")]
LETHAL = "007"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained toy whose inference notes what it finished, takes its time, and dies at one name."""
    folder = tmp_path_factory.mktemp("trained")
    task = ["--model.class_path=toy_wing.faults.DyingTask", "--trainer.max_steps=1"]
    good(forked(*TOY_FIT, *task, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="zoo-ray-", ignore_cleanup_errors=True) as folder,
        ray_cluster(Path(folder), TOY_SECONDS="0.1", TOY_DIES_AT=LETHAL) as made,
    ):
        yield made


class Driver:
    """`zoo predict --engine ray` in a process of its own.

    Args:
        work: folder with `in`; the command runs there.
    """

    def __init__(self, cluster: RayCluster, run: Path, work: Path, *options: object) -> None:
        self.output = work / "out"
        given = ["--ckpt_path", run, "--input", "in", "--output", "out", "--engine", "ray", *options]
        command = [sys.executable, "-m", "zoo", "predict", *TOY_ARGS, *map(str, given)]
        if "--ray_address" not in options:
            command += ["--ray_address", cluster.address]
        self.log = work / "driver.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=work, env=cluster.variables, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def done(self) -> int:
        return len(list(self.output.rglob("[!.]*.wav")))

    def until(self, count: int, seconds: float = 120) -> None:
        """Wait until so many files are done."""
        end = time.monotonic() + seconds
        while self.done < count:
            assert self.process.poll() is None and time.monotonic() < end, self.said
            time.sleep(0.02)

    def end(self, seconds: float = 120) -> int:
        """Wait for the exit code."""
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()


def write_inputs(work: Path, count: int, lethal: bool = False) -> list[str]:
    """Tones of unequal length; returns their names."""
    names = [f"{number:03d}" for number in range(count) if lethal or f"{number:03d}" != LETHAL]
    for name in names:
        tone = np.full(400 + 40 * (int(name) % 13), 0.25, np.float32)
        files.write(work / "in" / ("even" if int(name) % 2 == 0 else "odd") / f"{name}.wav", tone, 16000)
    return names


def rows_of(output: Path) -> dict[str, dict[str, Any]]:
    """The manifest by source, without what differs between two runs."""
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in read_manifest(output)]
    assert len({row["source"] for row in rows}) == len(rows)
    return {row["source"]: row for row in rows}


def assert_whole(work: Path, names: list[str], again: int = 0) -> None:
    """Every file once: computed, on the disk, in the record; but for those that a kill interrupted."""
    computed = Counter((work / "finished").read_text().split())
    assert sorted(computed) == names
    assert sum(computed.values()) - len(names) <= again
    assert sorted(path.stem for path in (work / "out").rglob("*.wav")) == names
    found = sorted(path.name for path in (work / "out").iterdir())
    assert found == ["even", "manifest.jsonl", "odd", "settings.json", "summary.json"]


def equal_to_ranks(run: Path, work: Path, but: int = 0) -> None:
    """Results and record are those of the plain engine."""
    finished = (work / "finished").read_text()
    good(forked("predict", *TOY_ARGS, "--ckpt_path", run, "--input", "in", "--output", "plain", cwd=work))
    (work / "finished").write_text(finished)
    ours, plain = work / "out", work / "plain"
    expected, found = rows_of(plain / "manifest.jsonl"), rows_of(ours / "manifest.jsonl")
    assert expected.keys() == found.keys()
    unequal = [found[source]["status"] for source in expected if found[source] != expected[source]]
    assert unequal == ["failed"] * but
    for path in ours.rglob("*.wav"):
        assert path.read_bytes() == (plain / path.relative_to(ours)).read_bytes()


def test_killed_node_loses_nothing(cluster: RayCluster, run: Path, tmp_path: Path) -> None:
    seed = time.time_ns() % 2**32
    print("seed", seed)
    names = write_inputs(tmp_path, 80)
    driver = Driver(cluster, run, tmp_path)
    driver.until(random.Random(seed).randrange(5, 50))
    cluster.kill_node(1)
    assert driver.end() == 0, driver.said
    assert_whole(tmp_path, names, again=1)
    equal_to_ranks(run, tmp_path)


@pytest.mark.slow
def test_lethal_file_fails_alone(cluster: RayCluster, run: Path, tmp_path: Path) -> None:
    seed = time.time_ns() % 2**32
    print("seed", seed)
    chance = random.Random(seed)
    names = write_inputs(tmp_path, 60, lethal=True)
    driver = Driver(cluster, run, tmp_path)
    driver.until(3)
    cluster.start_node()  # joins later, and is taken
    for count in (10, 30):
        driver.until(chance.randrange(count, count + 10))
        with contextlib.suppress(psutil.Error, IndexError):
            chance.choice(cluster.actors()).kill()
    assert driver.end(200) == 1, driver.said
    survivors = [name for name in names if name != LETHAL]
    assert_whole(tmp_path, survivors, again=2)
    rows = rows_of(tmp_path / "out" / "manifest.jsonl")
    assert len(rows) == 60
    (failed,) = (row for row in rows.values() if row["status"] == "failed")
    assert Path(failed["source"]).stem == LETHAL
    assert "3 processes died at this file" in failed["error"]
    assert failed["error"] in driver.said
    equal_to_ranks(run, tmp_path, but=1)
    again = forked("predict", *TOY_ARGS, "--ckpt_path", run, "--input", "in", "--output", "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert_whole(tmp_path, names, again=2)
    assert {row["status"] for row in rows_of(tmp_path / "out" / "manifest.jsonl").values()} == {"done"}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopped_driver_ends_its_actors(cluster: RayCluster, run: Path, tmp_path: Path, number: int, code: int) -> None:
    names = write_inputs(tmp_path, 40)
    driver = Driver(cluster, run, tmp_path, "--ray_workers", 1)
    driver.until(5)
    driver.process.send_signal(number)
    assert driver.end(30) == code, driver.said
    end = time.monotonic() + 30
    while cluster.actors():
        assert time.monotonic() < end
        time.sleep(0.2)
    assert driver.done < len(names)
    assert Driver(cluster, run, tmp_path).end() == 0
    assert_whole(tmp_path, names, again=1)
    equal_to_ranks(run, tmp_path)


@pytest.mark.slow
def test_full_disk_ends_with_one_line(cluster: RayCluster, run: Path, tmp_path: Path) -> None:
    names = write_inputs(tmp_path, 60)
    (tmp_path / "out").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(tmp_path / "out")]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a small file system")
    try:
        driver = Driver(cluster, run, tmp_path)
        assert driver.end() == 1, driver.said
        assert "zoo: error: disk full" in driver.said.splitlines()[-1]
        assert "Traceback" not in driver.said
        subprocess.run(["mount", "-o", "remount,size=9m", str(tmp_path / "out")], check=True)
        assert Driver(cluster, run, tmp_path).end() == 0
        assert_whole(tmp_path, names, again=1)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "out")], check=True)


@pytest.mark.slow
def test_without_cluster_one_of_this_machine_is_started(run: Path, tmp_path: Path) -> None:
    names = write_inputs(tmp_path, 12)
    options = ["--ckpt_path", run, "--input", "in", "--output", "out", "--engine", "ray", "--ray_workers", 2]
    good(zoo("predict", *TOY_ARGS, *options, cwd=tmp_path, RAY_AUTH_MODE="disabled"))
    assert_whole(tmp_path, names)
    equal_to_ranks(run, tmp_path)
