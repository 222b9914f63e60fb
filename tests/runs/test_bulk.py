from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch

from zoo.runs.bulk import BulkData, BulkRun, Job, plan, read_manifest
from zoo.runs.inference import Inference


class Reverse(Inference):
    """Writes each text file backwards, and notes every computation in a journal."""

    input_suffixes = (".txt",)
    output_suffix = ".out"

    def __init__(self, journal=None, die_at=None):
        self.layer = torch.nn.Linear(1, 1)
        self.journal, self.die_at = journal, die_at

    def __call__(self, text):
        return text[::-1]

    def process_file(self, source, target):
        text = source.read_text()
        if text.startswith("bad"):
            raise ValueError(f"{source}: holds nothing good")
        temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
        temporary.write_text(self(text)[:1])
        if self.die_at == source.stem:
            os.kill(os.getpid(), signal.SIGKILL)
        temporary.write_text(self(text))
        os.replace(temporary, target)
        if self.journal is not None:
            with self.journal.open("a") as file:
                file.write(f"{source.stem}\n")
        if self.die_at == f"after {source.stem}":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"audio_seconds": np.float32(2.0), "length": len(text)}


class Task(L.LightningModule):
    def __init__(self, inference):
        super().__init__()
        self.made = inference

    def predict_step(self, batch, batch_idx):
        return self.trainer.datamodule.process(self.made, batch)


def make_inputs(folder, count=4, bad=()):
    for number in range(count):
        path = folder / ("even" if number % 2 == 0 else "odd") / f"{number:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("bad" if number in bad else f"text {number}")
    return folder


def predict(inputs, outputs, inference, **settings):
    data = BulkData(inputs, outputs, inference.input_suffixes, inference.output_suffix, **settings)
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer.predict(Task(inference), datamodule=data, return_predictions=False)
    return data


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return folder


def targets(jobs, output):
    return [job.target.relative_to(output).as_posix() for job in jobs]


def test_plan_mirrors_the_tree(tmp_path):
    inputs = touch(tmp_path / "in", "b/2.wav", "a.b.WAV", "b/notes.md", "b/.hidden.wav", "c/d/3.flac")
    jobs = plan(inputs, tmp_path / "out", (".wav", ".flac"), ".wav")
    assert targets(jobs, tmp_path / "out") == ["a.b.wav", "b/2.wav", "c/d/3.wav"]
    assert jobs[1] == Job(inputs / "b/2.wav", tmp_path / "out/b/2.wav")


def test_plan_of_one_file(tmp_path):
    inputs = touch(tmp_path / "in", "a.npy", "b.npy")
    assert list(plan(inputs / "a.npy", tmp_path, (".npy",), ".wav")) == [Job(inputs / "a.npy", tmp_path / "a.wav")]


def test_plan_keeps_suffixes_that_tell_sources_apart(tmp_path):
    inputs = touch(tmp_path / "in", "a.wav", "a.flac", "b.wav")
    jobs = plan(inputs, tmp_path / "out", (".wav", ".flac"), ".wav")
    assert targets(jobs, tmp_path / "out") == ["a.flac.wav", "a.wav.wav", "b.wav"]


def test_plan_refuses_two_sources_of_one_target(tmp_path):
    inputs = touch(tmp_path / "in", "a.wav", "a.flac", "a.flac.wav")
    with pytest.raises(ValueError, match="another result"):
        plan(inputs, tmp_path / "out", (".wav", ".flac"), ".wav")


def test_plan_ignores_results_inside_the_input(tmp_path):
    inputs = touch(tmp_path / "in", "a.wav", "out/a.wav", "out/sub/b.wav")
    assert targets(plan(inputs, inputs / "out", (".wav",), ".wav"), inputs / "out") == ["a.wav"]


@pytest.mark.parametrize(
    ("source", "output", "error", "message"),
    [
        ("missing", "out", FileNotFoundError, "missing"),
        ("in/notes.md", "out", ValueError, "notes.md"),
        ("empty", "out", ValueError, r"no file below .*empty ends in \.wav"),
        ("in", "in", ValueError, "input folder itself"),
        ("in/x/a.wav", "in/x", ValueError, "overwrite an input"),
        ("in", "in/notes.md", ValueError, "is a file"),
        ("in/x", "in", ValueError, "overwrite an input"),
    ],
)
def test_plan_errors(tmp_path, source, output, error, message):
    touch(tmp_path / "in", "x/a.wav", "x/x/a.wav", "notes.md")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        plan(tmp_path / source, tmp_path / output, (".wav",), ".wav")


@pytest.mark.filterwarnings("ignore")
def test_predict_writes_results_manifest_and_summary(tmp_path):
    inputs, outputs = make_inputs(tmp_path / "in", bad=(1,)), tmp_path / "out"
    data = predict(inputs, outputs, Reverse())
    assert (outputs / "even/02.out").read_text() == "2 txet"
    assert not (outputs / "odd/01.out").exists()
    rows = {row["target"]: row for row in read_manifest(outputs / "manifest.jsonl")}
    assert list(rows) == ["even/00.out", "even/02.out", "odd/01.out", "odd/03.out"]
    good, bad = rows["even/00.out"], rows["odd/01.out"]
    assert good["source"] == str(inputs / "even/00.txt")
    assert (good["status"], good["error"], good["length"], good["audio_seconds"]) == ("done", None, 6, 2.0)
    assert (bad["status"], bad["error"]) == ("failed", f"ValueError: {inputs / 'odd/01.txt'}: holds nothing good")
    assert data.failed == 1
    assert json.loads((outputs / "summary.json").read_text()) == data.summary
    assert (data.summary["done"], data.summary["failed"], data.summary["skipped"]) == (3, 1, 0)
    assert data.summary["audio_seconds"] == 6.0
    assert 0 < data.summary["real_time_factor"] < 1
    assert sorted(p.name for p in outputs.iterdir()) == ["even", "manifest.jsonl", "odd", "summary.json"]


@pytest.mark.filterwarnings("ignore")
def test_rerun_computes_only_what_is_missing(tmp_path):
    inputs, outputs, journal = make_inputs(tmp_path / "in", bad=(1,)), tmp_path / "out", tmp_path / "journal"
    predict(inputs, outputs, Reverse(journal))
    (inputs / "odd/01.txt").write_text("good now")
    first = {row["source"]: row for row in read_manifest(outputs / "manifest.jsonl") if row["status"] == "done"}
    data = predict(inputs, outputs, Reverse(journal))
    assert journal.read_text().split() == ["00", "02", "03", "01"]
    assert (data.summary["done"], data.summary["failed"], data.summary["skipped"]) == (1, 0, 3)
    rows = {row["source"]: row for row in read_manifest(outputs / "manifest.jsonl")}
    assert [row["status"] for row in rows.values()] == ["done"] * 4
    assert {source: rows[source] for source in first} == first


@pytest.mark.filterwarnings("ignore")
def test_overwrite_computes_again_and_other_inputs_keep_their_rows(tmp_path):
    outputs, journal = tmp_path / "out", tmp_path / "journal"
    predict(make_inputs(tmp_path / "one", 2), outputs / "x", Reverse(journal))
    predict(make_inputs(tmp_path / "one", 2), outputs / "x", Reverse(journal), overwrite=True)
    assert len(journal.read_text().split()) == 4
    predict(touch(tmp_path / "two", "new.txt"), outputs / "x", Reverse(journal))
    assert len(read_manifest(outputs / "x" / "manifest.jsonl")) == 3


def killed_predict(inputs, outputs, journal, die_at):
    process = multiprocessing.get_context("fork").Process(
        target=predict, args=(inputs, outputs, Reverse(journal, die_at))
    )
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and SIGKILL")
def test_killed_twice_each_file_is_computed_once(tmp_path):
    inputs, outputs, journal = make_inputs(tmp_path / "in", 30), tmp_path / "out", tmp_path / "journal"
    assert killed_predict(inputs, outputs, journal, "20") == -signal.SIGKILL
    half = [p for p in outputs.rglob("*") if ".tmp-" in p.name]
    assert [p.read_text() for p in half] == ["0"]
    assert not (outputs / "even/20.out").exists()
    # a kill tears a row, and lands between a result and its row
    with (outputs / "manifest.rank0.jsonl").open("a") as file:
        file.write('{"source": "torn')
    assert killed_predict(inputs, outputs, journal, "after 11") == -signal.SIGKILL
    data = predict(inputs, outputs, Reverse(journal))

    computed = journal.read_text().split()
    assert sorted(computed) == [f"{number:02d}" for number in range(30)]
    for number in range(30):
        found = next(outputs.glob(f"*/{number:02d}.out")).read_text()
        assert found == f"text {number}"[::-1]
    rows = read_manifest(outputs / "manifest.jsonl")
    assert len(rows) == 30
    assert [row["target"] for row in rows if row["status"] != "done"] == ["odd/11.out"]
    assert (data.failed, data.summary["done"]) == (0, 30 - len(computed[: computed.index("11") + 1]))
    assert not [p for p in outputs.rglob("*") if ".tmp" in p.name or ".rank" in p.name]


def test_begin_sweeps_only_temporaries(tmp_path):
    output = touch(tmp_path, "a/.b.wav.tmp-12", ".c.wav.tmp-99", "a/b.wav", "plain.tmp", ".keep")
    BulkRun(output).begin()
    assert sorted(p.name for p in output.rglob("*") if p.is_file()) == [".keep", "b.wav", "plain.tmp"]


class Failing(Reverse):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def process_file(self, source, target):
        if self.error is not None:
            raise self.error
        return {}


def run_one(tmp_path, error):
    inputs = make_inputs(tmp_path / "in", 1)
    run = BulkRun(tmp_path / "out")
    run.begin()
    return run.process(Failing(error), Job(inputs / "even/00.txt", tmp_path / "out/00.out"))


@pytest.mark.parametrize("error", [ValueError("v"), OSError("o"), RuntimeError("r"), torch.OutOfMemoryError("oom")])
def test_an_error_of_one_file_is_recorded(tmp_path, error):
    row = run_one(tmp_path, error)
    assert row["status"] == "failed"
    assert row["error"] == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), TypeError("a bug"), torch.AcceleratorError("x")])
def test_other_errors_end_the_run(tmp_path, error):
    with pytest.raises(type(error)):
        run_one(tmp_path, error)


def test_no_result_is_a_failure(tmp_path):
    row = run_one(tmp_path, None)
    assert row["status"] == "failed"
    assert "wrote no" in row["error"]


def test_full_disk_ends_the_run_and_says_what_to_do(tmp_path):
    with pytest.raises(OSError, match="run the same command again"):
        run_one(tmp_path, OSError(errno.ENOSPC, "No space left on device"))


def test_full_disk_without_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 0))
    with pytest.raises(OSError, match="no room"):
        run_one(tmp_path, OSError("writing failed, is the disk full?"))


def test_facts_cannot_hide_the_record(tmp_path):
    class Lying(Reverse):
        def process_file(self, source, target):
            target.write_text("x")
            return {"status": "failed", "path": Path("p"), "value": torch.tensor(2.0)}

    inputs = make_inputs(tmp_path / "in", 1)
    run = BulkRun(tmp_path / "out")
    run.begin()
    run.process(Lying(), Job(inputs / "even/00.txt", tmp_path / "out/00.out"))
    run.finish()
    (row,) = read_manifest(tmp_path / "out" / "manifest.jsonl")
    assert list(row) == ["source", "target", "status", "error", "seconds", "path", "value"]
    assert (row["status"], row["path"], row["value"]) == ("done", "p", 2.0)


def test_ranks_are_merged(tmp_path):
    inputs = make_inputs(tmp_path / "in", 5)
    jobs = plan(inputs, tmp_path / "out", (".txt",), ".out")
    runs = [BulkRun(tmp_path / "out", rank=rank) for rank in range(2)]
    runs[0].begin()
    for rank, run in enumerate(runs):
        for job in jobs[rank::2]:
            run.process(Reverse(), job)
    assert runs[0].finish()["done"] == 5
    assert len(read_manifest(tmp_path / "out" / "manifest.jsonl")) == 5


def test_bulk_data_needs_a_trainer(tmp_path):
    with pytest.raises(RuntimeError, match="BulkRun without a Trainer"):
        BulkData(make_inputs(tmp_path / "in"), tmp_path / "out", (".txt",), ".out").setup("predict")


def test_inference_knows_its_parts():
    inference = Reverse()
    assert list(inference.parts()) == ["layer"]
    assert inference.to("meta") is inference
    assert inference.device == torch.device("meta")
    assert not inference.eval().layer.training


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path):
    make_inputs(tmp_path / "in", 3, bad=(2,))
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            import lightning as L
            from test_bulk import BulkData, Path, Reverse, Task

            root = Path({str(tmp_path)!r})
            for source in ("in", "in/odd"):  # the second has fewer files than ranks
                output = root / source.replace("in", "out", 1).replace("/", "_")
                data = BulkData(root / source, output, (".txt",), ".out")
                trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False,
                                    enable_progress_bar=False, enable_checkpointing=False)
                trainer.predict(Task(Reverse(root / "journal")), datamodule=data, return_predictions=False)
                with (root / "seen").open("a") as file:
                    file.write(f"{{data.failed}} {{data.summary['done']}}\\n")
            """
        )
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert sorted((tmp_path / "seen").read_text().splitlines()) == ["0 1", "0 1", "1 2", "1 2"]
    assert sorted((tmp_path / "journal").read_text().split()) == ["00", "01", "01"]
    assert len(read_manifest(tmp_path / "out/manifest.jsonl")) == 3
