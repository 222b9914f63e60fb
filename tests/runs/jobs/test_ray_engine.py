"""What the driver and the actors of a Ray cluster do, without a cluster; with one: tests/cluster/test_ray.py."""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import TOY_ARGS, TOY_FIT, forked, good
from zoo import __version__
from zoo.audio.io import files
from zoo.runs.bulk import BulkRun, Job, read_manifest
from zoo.runs.jobs import ray_engine
from zoo.runs.jobs.ray_engine import Model, Pool, Worker, by_length


def make_jobs(folder: Path, sizes: list[int]) -> list[Job]:
    (folder / "in").mkdir(parents=True)
    jobs = []
    for number, size in enumerate(sizes):
        path = folder / "in" / f"{number}.bin"
        path.write_bytes(bytes(size))
        jobs.append(Job(path, folder / "out" / f"{number}.out"))
    return jobs


def make_pool(folder: Path, jobs: list[Job]) -> Pool:
    run = BulkRun(folder / "out")
    run.begin()
    return Pool(jobs, Model("none"), run)


def test_the_longest_come_first_and_a_shard_stays_together(tmp_path: Path) -> None:
    jobs = make_jobs(tmp_path, [10, 300, 0, 90])
    members = [Job(jobs[1].source, tmp_path / "out" / name, name) for name in "abc"]
    order, sizes = by_length([jobs[0], *members, jobs[2], jobs[3], Job(tmp_path / "gone", tmp_path / "x")])
    assert order.tolist() == [1, 2, 3, 5, 0, 4, 6]
    assert sizes.tolist() == [10, 100, 100, 100, 1, 90, 1]


@pytest.mark.parametrize("sizes", [[1] * 1000, list(range(1, 500)), [10**6, *[1] * 100]])
def test_chunks_hold_everything_once_and_become_small(tmp_path: Path, sizes: list[int]) -> None:
    pool = make_pool(tmp_path, make_jobs(tmp_path, sizes))
    pool._hands = dict.fromkeys(range(3))  # beside the one that asks
    chunks: list[list[int]] = []
    while pool._open:
        chunks.append(pool._chunk())
    assert sorted(index for chunk in chunks for index in chunk) == list(range(len(sizes)))
    assert max(map(len, chunks)) <= 64
    assert len(chunks[-1]) == 1
    total = [sum(sizes[index] for index in chunk) for chunk in chunks]
    assert all(len(chunk) == 1 or total[at] <= sum(total[at:]) / 16 for at, chunk in enumerate(chunks))


class Actor:
    """What stands for a dead one."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Ray:
        kill = staticmethod(lambda actor: None)

    return Ray


def test_what_a_lost_actor_had_recorded_is_over_and_the_file_it_died_at_comes_back_alone(
    tmp_path: Path, ray: Any
) -> None:
    jobs = make_jobs(tmp_path, [9, 8, 7, 6])
    pool = make_pool(tmp_path, jobs)
    lost = BulkRun(tmp_path / "out", rank=1)
    lost.process(ray_engine._Lethal(), jobs[0])
    with (tmp_path / "out" / "manifest.rank1.jsonl").open("a") as file:
        file.write('{"source": "torn')
    pool._place = 4
    assert pool._lose(ray, ray_engine._Hand(Actor(), 1, [0, 1, 2, 3]), OSError("gone")) == 1
    assert [pool._chunk(), pool._chunk()] == [[1], [2, 3]]
    for rank in (2, 3):
        assert pool._lose(ray, ray_engine._Hand(Actor(), rank, [1]), OSError("gone")) == (rank == 3)
    assert pool._open == 1
    pool._run.finish()
    rows = {row["target"]: row for row in read_manifest(tmp_path / "out" / "manifest.jsonl")}
    assert rows["1.out"]["status"] == "failed"
    assert "3 processes died at this file" in rows["1.out"]["error"]


def test_actors_that_die_while_they_start_end_the_run(tmp_path: Path, ray: Any) -> None:
    pool = make_pool(tmp_path, make_jobs(tmp_path, [1]))
    with pytest.raises(ChildProcessError, match="4 processes in a row died while they started: no libs"):
        for rank in range(9):
            assert pool._lose(ray, ray_engine._Hand(Actor(), rank), OSError("no  libs")) == 0


def test_an_actor_computes_and_refuses_what_it_does_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good(forked(*TOY_FIT, "--trainer.max_steps=1", f"--trainer.default_root_dir={tmp_path / 'run'}", cwd=tmp_path))
    tone = np.full(1600, 0.25, np.float32)
    files.write(Path("in/a.wav"), tone, 16000)
    Path("in/b.wav").write_text("no sound")
    model = {"path": str(tmp_path / "run"), "packages": (TOY_ARGS[1],), "precision": "bf16-mixed"}
    run = {"output": "out", "overwrite": False, "rank": 3}
    worker = Worker()
    with pytest.raises(ValueError, match="install the same on all nodes"):
        worker.begin(model, run, "cpu", str(tmp_path), "0.0")
    with pytest.raises(ValueError, match="does not share out"):
        worker.begin(model, run, "cpu", str(tmp_path), __version__)
    with pytest.raises(ValueError, match="has no folder"):
        worker.begin(model, run, "cpu", str(tmp_path / "away"), __version__)
    Path("out").mkdir()
    Path("out/manifest.rank3.jsonl").touch()
    worker.begin(model, run, "cpu", str(tmp_path), __version__)
    jobs = [(f"in/{name}.wav", f"out/{name}.wav", None) for name in "ab"]
    (failed,) = worker.process(jobs)
    assert (failed["target"], failed["status"]) == ("b.wav", "failed")
    assert Path("out/a.wav").exists()
    assert len(read_manifest(Path("out/manifest.rank3.jsonl"))) == 2


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield port


def test_a_head_that_does_not_answer_is_told_at_once(silent: int) -> None:
    pytest.importorskip("ray")
    began = time.monotonic()
    with (
        pytest.raises(ConnectionError, match=f"--ray_address 127.0.0.1:{silent}: nothing answers there"),
        ray_engine.connected(f"127.0.0.1:{silent}"),
    ):
        pass
    assert time.monotonic() - began < 15
    with pytest.raises(ValueError, match="expected host:port"), ray_engine.connected("nowhere"):
        pass


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'zoo\[ray\]'"), ray_engine.connected():
        pass


def test_ranks_are_no_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="start the command once"):
        ray_engine.predict(make_jobs(tmp_path, [1]), Model("none"), tmp_path / "out")
