"""Bulk runs in parts, in shards and under kills: nothing twice, nothing missing, whatever the names."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.io.shards import ShardReader
from zoo.common.locks import locked
from zoo.runs import bulk
from zoo.runs.bulk import BulkRun, Shard, plan, read_manifest, writing
from zoo.runs.inference import Inference
from zoo.runs.jobs import order
from zoo.runs.jobs.manifest import RANK_MANIFESTS, Record, merge
from zoo.runs.jobs.tars import key_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, SIGKILL and names of any bytes")
ODD_NAMES = [
    "a\nb",
    "ü €",
    "with space",
    "q\"'\\",
    "per%2Ecent",
    "dots.in.name",
    "x:y",
    os.fsdecode(b"byte\xff"),
    "~_0",
]


class Copy(Inference):
    """Copies text files; notes each computation; may be slow."""

    input_suffixes = (".txt",)
    output_suffix = ".out"

    def __init__(self, journal=None, seconds=0.0):
        self.layer = torch.nn.Linear(1, 1)
        self.journal, self.seconds = journal, seconds

    def __call__(self, text):
        return text

    def process_file(self, source, target):
        time.sleep(self.seconds)
        temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
        temporary.write_bytes(source.read_bytes())
        os.replace(temporary, target)
        if self.journal is not None:
            with self.journal.open("ab") as file:
                file.write(os.fsencode(str(source)) + b"\0")
        return {"audio_seconds": 1.0}


@pytest.fixture
def rng():
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def make_inputs(folder, names):
    for name in names:
        path = folder / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))
    return folder


def compute(inputs, output, inference=None, shard=None, world=1, fanout=None, tar=None):
    """What `BulkData` does, with the ranks one after the other."""
    whole = plan(inputs, output, (".txt",), ".out", fanout)
    mine = whole if shard is None else whole[shard.number - 1 :: shard.total]
    runs = [BulkRun(output, False, rank, shard, tar) for rank in range(world)]
    with writing(output, "predict", shard):
        runs[0].begin(mine)
        for rank, run in enumerate(runs):
            for job in run.owed(mine[rank::world]):
                run.process(inference or Copy(), job)
            run.close()
        return runs[0].finish()


def forked(*args, **options):
    process = multiprocessing.get_context("fork").Process(target=compute, args=args, kwargs=options)
    process.start()
    return process


def assert_all(output, names, tar=False):
    """Every source has one row and one result with its bytes."""
    rows = read_manifest(output / "manifest.jsonl")
    assert sorted(Path(row["source"]).name for row in rows) == sorted(f"{Path(name).name}.txt" for name in names)
    if tar:
        folders = [folder for folder in output.glob("tars.*") if any(folder.glob("*.tar"))]
        samples = {each.key: each.members["out"] for each in ShardReader(folders)}
        count = sum(1 for _ in ShardReader(folders))
        assert samples == {key_of(f"{name}.out"): os.fsencode(name) for name in names} and count == len(names)
        assert {row["status"] for row in rows} == {"done"}
    else:
        for row in rows:
            wanted = Path(row["source"]).read_bytes()
            assert (output / row["target"]).read_bytes() == wanted
        assert len([path for path in output.rglob("*.out")]) == len(names)
    left = [path.name for path in output.rglob("*") if ".tmp-" in path.name or (".rank" in path.name and not tar)]
    assert left == []
    assert not (output / ".zoo.locks").exists()


# --- order and plan


def test_many_items_are_ordered_through_a_file(monkeypatch, rng, tmp_path):
    monkeypatch.setattr(order, "_RUN_ITEMS", 50)
    monkeypatch.setattr(order, "_BLOCK_ITEMS", 7)
    for count in (0, 1, 49, 50, 51, 1234):
        items = [(rng.randrange(100), str(rng.random()), rng.randbytes(3)) for _ in range(count)]
        assert list(order.in_order(iter(items), tmp_path)) == sorted(items)
    assert list(tmp_path.iterdir()) == []


def test_digests_are_a_set(rng):
    names = [rng.randbytes(5) for _ in range(3000)]
    known, none = order.Digests(), order.Digests()
    for name in [*names, *names[:7], names[0]]:
        known.add(name)
    repeated = known.repeated()
    assert all(name in known for name in names) and b"other" not in known and b"other" not in none
    assert [name in repeated for name in names[:8]] == [True] * 7 + [False] and len(repeated) == 7
    assert known.many(2) == {order.digest(names[0]): 3}
    assert len(none.repeated()) == 0 and none.many(1) == {}


def test_a_plan_is_a_sequence_of_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(order, "_RUN_ITEMS", 100)
    names = [f"{number % 7}/{number:04d}" for number in range(700)]
    inputs = make_inputs(tmp_path / "in", names)
    jobs = plan(inputs, tmp_path / "out", (".txt",), ".out")
    expected = sorted(inputs.rglob("*.txt"))
    assert [job.source for job in jobs] == expected
    assert len(jobs) == jobs.whole == 700 and jobs[699].source == expected[-1] and jobs[-1] == jobs[699]
    with pytest.raises(IndexError):
        jobs[700]
    assert [job.source for job in jobs[1::3][2::4]] == expected[1::3][2::4]
    assert [job.source for job in jobs.only(np.array([5, 600]))] == [expected[5], expected[600]]
    assert [entry.name for entry in jobs[::50].entries()] == [job.name for job in jobs[::50]]
    assert jobs.digest == jobs[::3].digest == plan(inputs, tmp_path / "other", (".txt",), ".out").digest
    assert jobs.digest != plan(inputs, tmp_path / "out", (".txt",), ".npy").digest
    make_inputs(inputs, ["3/new"])
    assert jobs.digest != plan(inputs, tmp_path / "out", (".txt",), ".out").digest


@linux
def test_odd_names(tmp_path):
    inputs = make_inputs(tmp_path / "in", [*ODD_NAMES, *(f"sub\n{name}/{name}" for name in ODD_NAMES)])
    jobs = plan(inputs, tmp_path / "out", (".txt",), ".out")
    assert [job.source for job in jobs] == sorted(inputs.rglob("*.txt"))
    compute(inputs, tmp_path / "out")
    assert_all(tmp_path / "out", [*ODD_NAMES, *(f"sub\n{name}/{name}" for name in ODD_NAMES)])


def test_fanout_bounds_folders_by_name_alone(tmp_path):
    wide, narrow = [f"wide/{number}" for number in range(300)], [f"narrow/{number}" for number in range(20)]
    inputs = make_inputs(tmp_path / "in", [*wide, *narrow])
    first = {job.source: job.target for job in plan(inputs, tmp_path / "out", (".txt",), ".out", 40)}
    places = [target.relative_to(tmp_path / "out").parent for target in first.values()]
    assert {len(place.parts) for place in places if place.parts[0] == "wide"} == {2}
    assert {place.name for place in places} == {"narrow", *(f"_{digit}" for digit in "0123456789abcdef")}
    assert max(places.count(place) for place in set(places)) <= 40
    make_inputs(inputs, ["wide/later"])
    again = {job.source: job.target for job in plan(inputs, tmp_path / "out", (".txt",), ".out", 40)}
    assert {source: again[source] for source in first} == first
    compute(inputs, tmp_path / "out", fanout=40)
    assert_all(tmp_path / "out", [*wide, *narrow, "wide/later"])
    assert compute(inputs, tmp_path / "out", fanout=40)["skipped"] == 321


def test_fanout_refuses_what_meets_a_real_folder(tmp_path):
    names = [f"{number}" for number in range(30)]
    inputs = make_inputs(tmp_path / "in", names)
    target = next(iter(plan(inputs, tmp_path / "out", (".txt",), ".out", 10))).target
    make_inputs(inputs, [str(target.relative_to(tmp_path / "out").with_suffix(""))])
    with pytest.raises(ValueError, match="another result"):
        plan(inputs, tmp_path / "out", (".txt",), ".out", 10)


# --- record


def test_a_torn_line_costs_no_other_row(tmp_path):
    row = {"source": "b", "target": "b", "status": "done"}
    path = tmp_path / RANK_MANIFESTS.replace("*", "0")
    path.write_text('{"source": "torn')
    record = Record(path)
    record.append(row)
    record.close()
    assert read_manifest(path) == [row]


def test_merge_keeps_the_computation_and_the_order(monkeypatch, tmp_path, rng):
    monkeypatch.setattr(order, "_RUN_ITEMS", 64)
    expected, parts = {}, [tmp_path / "manifest.rank0.jsonl", tmp_path / "manifest.rank1.jsonl"]
    for path in (tmp_path / "manifest.jsonl", *parts):
        record = Record(path)
        for number in rng.sample(range(200), 150):
            status = rng.choice(["done", "failed", "skipped"])
            source = f"{number}{os.fsdecode(bytes([0x80 + number % 100]))}"
            row = {"source": source, "target": "t", "status": status, "from": path.name, "at": rng.random()}
            old = expected.get(source, row)
            expected[source] = old if (old["status"], status) == ("done", "skipped") else row
            record.append(row)
        record.close()
    merge(tmp_path / "manifest.jsonl", parts)
    assert read_manifest(tmp_path / "manifest.jsonl") == [expected[source] for source in sorted(expected)]


# --- parts of the work


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "1/3/4", "-1/3", ""])
def test_shard_names(text):
    with pytest.raises(ValueError, match="i-th of n"):
        Shard.parse(text)
    assert Shard.parse("3/8") == Shard(3, 8)


@pytest.mark.parametrize("tar", [None, 4])
def test_shards_and_ranks_add_up(tmp_path, rng, tar):
    names = [f"{number % 3}/{number}" for number in range(rng.randrange(20, 60))]
    inputs, output, journal = make_inputs(tmp_path / "in", names), tmp_path / "out", tmp_path / "journal"
    total = rng.randrange(2, 6)
    shards = [Shard(number, total) for number in range(1, total + 1)]
    rng.shuffle(shards)
    for shard in shards:
        assert not (output / "manifest.jsonl").exists()
        compute(inputs, output, Copy(journal), shard, world=rng.randrange(1, 4), tar=tar)
    assert len(journal.read_bytes().split(b"\0")) - 1 == len(names)
    assert_all(output, names, tar is not None)
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["done"], summary["audio_seconds"]) == (len(names), float(len(names)))
    # a shard once more, then a whole run: nothing left to do, and no row is lost
    compute(inputs, output, Copy(journal), shards[0], tar=tar)
    assert compute(inputs, output, Copy(journal), tar=tar)["skipped"] == len(names)
    assert {row["status"] for row in read_manifest(output / "manifest.jsonl")} == {"done"}
    assert len(journal.read_bytes().split(b"\0")) - 1 == len(names)
    assert not list(output.glob("*shard*.json*"))


def test_a_shard_with_another_list_is_refused(tmp_path):
    inputs, output = make_inputs(tmp_path / "in", "abcd"), tmp_path / "out"
    compute(inputs, output, shard=Shard(1, 2))
    make_inputs(inputs, "e")
    with pytest.raises(ValueError, match=r"shard 2/2 would do another list .* 5 files in 2 .* 4 in 2"):
        compute(inputs, output, shard=Shard(2, 2))
    with pytest.raises(ValueError, match="5 files in 3"):
        compute(inputs, output, shard=Shard(1, 3))
    (inputs / "e.txt").unlink()
    compute(inputs, output, shard=Shard(2, 2))
    make_inputs(inputs, "e")  # all are done: another round may begin, in other parts
    for number in (3, 1, 2):
        compute(inputs, output, shard=Shard(number, 3))
    assert_all(output, "abcde")
    compute(inputs, output, shard=Shard(1, 2))
    assert compute(inputs, output)["skipped"] == 5  # a whole run ends the round
    assert not list(output.glob("*shard*.json*"))


def test_locks_keep_the_same_work_apart(tmp_path):
    with writing(tmp_path, "predict", Shard(1, 2)), writing(tmp_path, "predict", Shard(2, 2)):
        with pytest.raises(ValueError, match=r"predict --shard 1/2"), writing(tmp_path, "predict", Shard(1, 2)):
            pass
        with pytest.raises(ValueError, match=r"shard-1-of-2, shard-2-of-2"), writing(tmp_path, "predict"):
            pass
    with writing(tmp_path, "predict"):
        with pytest.raises(ValueError, match="run without --shard"), writing(tmp_path, "predict", Shard(1, 2)):
            pass
        with pytest.raises(ValueError, match="`zoo predict`"), writing(tmp_path, "predict"):
            pass
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path, "fit"), pytest.raises(ValueError, match="without --shard"):
        writing(tmp_path, "predict", Shard(1, 2)).__enter__()


def test_a_shard_sweeps_only_alone(tmp_path):
    inputs, output = make_inputs(tmp_path / "in", "abcd"), tmp_path / "out"
    with writing(output, "predict", Shard(2, 2)):
        half = output / ".b.out.tmp-1"
        half.write_text("in use")
        compute(inputs, output, shard=Shard(1, 2))
        assert half.exists()
    compute(inputs, output, shard=Shard(2, 2))
    assert_all(output, "abcd")


# --- kills


@linux
@pytest.mark.parametrize("tar", [None, 5])
def test_killed_at_random_moments(tmp_path, rng, tar):
    names = [f"{number % 3}/{number:03d}" for number in range(90)]
    inputs, output, journal = make_inputs(tmp_path / "in", names), tmp_path / "out", tmp_path / "journal"
    options = {"inference": Copy(journal, 0.002), "tar": tar, "world": 2}
    for _ in range(4):
        process = forked(inputs, output, **options)
        time.sleep(rng.uniform(0.05, 0.35))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    compute(inputs, output, **options)
    assert_all(output, names, tar is not None)
    computed = len(journal.read_bytes().split(b"\0")) - 1
    # a kill costs the file under way, in shards also what waits for one
    assert computed <= len(names) + 4 * (tar or 1)


@linux
@pytest.mark.parametrize("tar", [None, 3])
def test_three_shards_of_different_speed_are_killed(tmp_path, rng, tar):
    names = [f"{number:03d}" for number in range(60)]
    inputs, output = make_inputs(tmp_path / "in", names), tmp_path / "out"
    paces = {Shard(1, 3): 0.0, Shard(2, 3): 0.004, Shard(3, 3): 0.015}
    options = {shard: {"inference": Copy(None, pace), "shard": shard, "tar": tar} for shard, pace in paces.items()}
    running = {shard: forked(inputs, output, **options[shard]) for shard in paces}
    for _ in range(4):
        time.sleep(rng.uniform(0.02, 0.15))
        shard = rng.choice(list(running))
        if running[shard].is_alive():
            os.kill(running[shard].pid, signal.SIGKILL)
        running[shard].join()
        if running[shard].exitcode != 0:
            running[shard] = forked(inputs, output, **options[shard])
    for shard, process in running.items():
        process.join()
        if process.exitcode != 0:
            compute(inputs, output, **options[shard])
    assert_all(output, names, tar is not None)


@linux
def test_kills_inside_the_writing_of_a_shard(tmp_path, monkeypatch):
    names = [f"{number:02d}" for number in range(10)]
    inputs = make_inputs(tmp_path / "in", names)

    def dies(*args, **options):
        os.kill(os.getpid(), signal.SIGKILL)

    places = {  # before the rows, between the tar and its entry, between the entry and the record
        "rows": "zoo.runs.jobs.tars.write_atomic",
        "index": "zoo.audio.io.shards.write_atomic",
        "record": "zoo.runs.jobs.manifest.Record.append",
    }
    for name, place in places.items():
        output = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(place, dies)
            killed = forked(inputs, output, tar=4)
            killed.join()
        assert killed.exitcode == -signal.SIGKILL, name
        compute(inputs, output, tar=4)
        assert_all(output, names, tar=True)


# --- shards as results


def test_a_tar_holds_what_stands_beside_the_result_and_a_lost_one_is_made_again(tmp_path):
    class Two(Copy):
        def process_file(self, source, target):
            target.with_suffix(".png").write_bytes(b"picture")
            return super().process_file(source, target)

    inputs, output = make_inputs(tmp_path / "in", ["a", "b", "c"]), tmp_path / "out"
    assert compute(inputs, output, Two(), tar=2)["done"] == 3
    (folder,) = output.glob("tars.*")
    assert [(each.key, sorted(each.members)) for each in ShardReader(folder)] == [(k, ["out", "png"]) for k in "abc"]
    rows = read_manifest(output / "manifest.jsonl")
    assert [row["target"].split("/", 1)[1] for row in rows] == [
        "results-000000.tar/a.out", "results-000000.tar/b.out", "results-000001.tar/c.out",
    ]  # fmt: skip
    (folder / "results-000001.tar").unlink()
    with pytest.raises(ValueError, match=r"delete .*tars\.rank0 to have it computed again"):
        compute(inputs, output, Two(), tar=2)
    for path in folder.iterdir():
        path.unlink()
    assert compute(inputs, output, Two(), tar=2)["done"] == 3
    with pytest.raises(ValueError, match="name another --output"):
        BulkRun(output, True, tar=2)
    with pytest.raises(ValueError, match="at least 1"):
        BulkRun(output, tar=0)


@linux
def test_keys_of_odd_names(tmp_path):
    assert len({key_of(f"{name}.out") for name in ODD_NAMES}) == len(ODD_NAMES)
    inputs, output = make_inputs(tmp_path / "in", ODD_NAMES), tmp_path / "out"
    compute(inputs, output, tar=4)
    assert_all(output, ODD_NAMES, tar=True)
    assert compute(inputs, output, tar=4)["skipped"] == len(ODD_NAMES)


# --- what changes meanwhile


def test_files_vanish_and_appear_and_results_are_deleted(tmp_path):
    inputs, output = make_inputs(tmp_path / "in", "abcd"), tmp_path / "out"
    jobs = plan(inputs, output, (".txt",), ".out")
    (inputs / "b.txt").unlink()
    make_inputs(inputs, "e")
    run = BulkRun(output)
    run.begin()
    assert [run.process(Copy(), job)["status"] for job in jobs] == ["done", "failed", "done", "done"]
    run.finish()
    (output / "c.out").unlink()
    summary = compute(inputs, output)
    assert (summary["done"], summary["skipped"], summary["failed"]) == (2, 2, 0)
    rows = {Path(row["source"]).name: row["status"] for row in read_manifest(output / "manifest.jsonl")}
    assert rows == {"a.txt": "done", "b.txt": "failed", "c.txt": "done", "d.txt": "done", "e.txt": "done"}


def test_a_finished_round_is_merged_once(tmp_path, monkeypatch):
    inputs, output = make_inputs(tmp_path / "in", "abcdef"), tmp_path / "out"
    merged = []
    real = bulk.manifest.merge
    monkeypatch.setattr(bulk.manifest, "merge", lambda target, parts: (merged.append(target.name), real(target, parts)))
    for number in (1, 2, 3):
        compute(inputs, output, shard=Shard(number, 3))
    assert merged.count("manifest.jsonl") == 1
