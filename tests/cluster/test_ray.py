"""Bulk inference on a real Ray cluster of two nodes: what is killed is made up for, and every file is done once."""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.ray_cluster import RayCluster, available, ray_cluster
from tests.harness import TOY_ARGS, TOY_FIT, forked, good
from zoo.audio.io import files
from zoo.runs.bulk import read_manifest

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
    assert found == ["even", "manifest.jsonl", "odd", "summary.json"]


def equal_to_ranks(run: Path, work: Path) -> None:
    """Results and record are those of the plain engine."""
    code = forked("predict", *TOY_ARGS, "--ckpt_path", run, "--input", "in", "--output", "plain", cwd=work).returncode
    assert code == 0
    ours, plain = work / "out", work / "plain"
    for path in plain.rglob("*.wav"):
        assert path.read_bytes() == (ours / path.relative_to(plain)).read_bytes()
    expected, found = rows_of(plain / "manifest.jsonl"), rows_of(ours / "manifest.jsonl")
    assert expected.keys() == found.keys()
    # between a result and its row an actor may be killed: the next one finds it there
    skipped = [row for row in found.values() if row["status"] == "skipped"]
    assert len(skipped) <= 1
    assert all(found[source] in (row, *skipped) for source, row in expected.items())


def test_a_node_killed_in_the_middle_loses_nothing(cluster: RayCluster, run: Path, tmp_path: Path) -> None:
    seed = time.time_ns() % 2**32
    print("seed", seed)
    names = write_inputs(tmp_path, 80)
    driver = Driver(cluster, run, tmp_path)
    driver.until(random.Random(seed).randrange(5, 50))
    cluster.kill_node(1)
    assert driver.end() == 0, driver.said
    assert "was lost with" in driver.said or "was lost while it started" in driver.said
    assert_whole(tmp_path, names, again=1)
    equal_to_ranks(run, tmp_path)
