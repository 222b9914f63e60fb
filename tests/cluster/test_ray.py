"""Prediction on a Ray cluster of two nodes: what is killed is retried, and every file is done once."""

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.cluster.ray_cluster import RayCluster, ray_cluster
from tests.harness import TOY_ARGS, TOY_FIT, forked, good, zoo
from zoo.audio.io import files
from zoo.runs.inference.predict import read_manifest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: the extra ray"),
]
LETHAL = "007"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained toy whose inference records what it finished, takes its time, and dies at one name."""
    folder = tmp_path_factory.mktemp("trained")
    task = ["--model.class_path=toy_system.faults.DyingTask", "--trainer.max_steps=1"]
    good(forked(*TOY_FIT, *task, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="zoo-ray-", ignore_cleanup_errors=True) as folder,
        ray_cluster(Path(folder), TOY_SECONDS="0.1", TOY_DIES_AT=LETHAL) as cluster,
    ):
        yield cluster


class Driver:
    """`zoo predict --engine ray` in another process, in a folder with `in`."""

    def __init__(self, cluster: RayCluster, run: Path, work: Path) -> None:
        self.output, self.log = work / "out", work / "driver.log"
        options = ["--ckpt_path", run, "--input", "in", "--output", "out", "--engine", "ray"]
        command = [sys.executable, "-m", "zoo", "predict", *TOY_ARGS, *map(str, options)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--ray_address", cluster.address], cwd=work, env=cluster.variables, stdout=log, stderr=log
            )

    def wait_for_files(self, count: int, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while len(list(self.output.rglob("[!.]*.wav"))) < count:
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text(errors="replace")
            time.sleep(0.02)

    def wait(self, code: int, seconds: float = 200) -> None:
        try:
            assert self.process.wait(seconds) == code, self.log.read_text(errors="replace")
        finally:
            self.process.kill()


def write_inputs(work: Path, count: int, lethal: bool = False) -> list[str]:
    """Tones of unequal length; returns their names."""
    names = [f"{number:03d}" for number in range(count) if lethal or f"{number:03d}" != LETHAL]
    for name in names:
        tone = np.full(400 + 40 * (int(name) % 13), 0.25, np.float32)
        files.write(work / "in" / ("even" if int(name) % 2 == 0 else "odd") / f"{name}.wav", tone, 16000)
    return names


def assert_complete(work: Path, names: list[str], repeated: int = 0) -> None:
    """Every file was computed once, but those that a kill interrupted."""
    computed = (work / "finished").read_text().split()
    assert sorted(set(computed)) == names
    assert len(computed) - len(names) <= repeated
    assert sorted(path.stem for path in (work / "out").rglob("*.wav")) == names
    results = sorted(path.name for path in (work / "out").iterdir())
    assert results == ["even", "manifest.jsonl", "odd", "settings.json", "summary.json"]


def assert_equals_ranks(run: Path, work: Path) -> None:
    """Results and rows are those of the plain engine."""
    good(forked("predict", *TOY_ARGS, "--ckpt_path", run, "--input", "in", "--output", "plain", cwd=work))
    rows: list[dict[str, Any]] = []
    for folder in ("out", "plain"):
        manifest = read_manifest(work / folder / "manifest.jsonl")
        rows.append({row["target"]: {key: row[key] for key in row if key != "seconds"} for row in manifest})
    assert rows[0] == rows[1]
    for path in (work / "out").rglob("*.wav"):
        assert path.read_bytes() == (work / "plain" / path.relative_to(work / "out")).read_bytes()


def test_killed_node_loses_nothing(cluster: RayCluster, run: Path, tmp_path: Path) -> None:
    seed = time.time_ns() % 2**32
    print("seed", seed)
    names = write_inputs(tmp_path, 80)
    driver = Driver(cluster, run, tmp_path)
    driver.wait_for_files(random.Random(seed).randrange(5, 50))
    cluster.kill_node(1)
    driver.wait(0)
    assert_complete(tmp_path, names, repeated=1)
    assert_equals_ranks(run, tmp_path)


def test_lethal_file_fails_alone(cluster: RayCluster, run: Path, tmp_path: Path) -> None:
    names = write_inputs(tmp_path, 60, lethal=True)
    driver = Driver(cluster, run, tmp_path)
    driver.wait_for_files(3)
    cluster.start_node()  # joins later, and is used
    for count in (10, 30):
        driver.wait_for_files(count)
        with contextlib.suppress(psutil.Error, IndexError):
            random.choice(cluster.actors()).kill()
    driver.wait(1)
    assert_complete(tmp_path, [name for name in names if name != LETHAL], repeated=2)
    rows = read_manifest(tmp_path / "out" / "manifest.jsonl")
    (failed,) = (row for row in rows if row["status"] == "failed")
    assert len(rows) == 60 and Path(failed["source"]).stem == LETHAL
    assert "3 processes died at this file" in failed["error"]
    assert failed["error"] in driver.log.read_text(errors="replace")


def test_local_cluster_is_started_without_address(run: Path, tmp_path: Path) -> None:
    names = write_inputs(tmp_path, 12)
    options = ["--ckpt_path", run, "--input", "in", "--output", "out", "--engine", "ray", "--ray_workers", 2]
    good(zoo("predict", *TOY_ARGS, *options, cwd=tmp_path, RAY_AUTH_MODE="disabled"))
    assert_complete(tmp_path, names)
