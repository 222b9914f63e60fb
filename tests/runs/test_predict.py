"""Prediction over files: what is computed again, what is refused, and what kills leave."""

import errno
import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.harness import SERVER, contents
from zoo.common.locks import lock_folder
from zoo.runs.inference import predict_ray
from zoo.runs.inference.base import Inference
from zoo.runs.inference.predict import InputFile, list_input_files, predict_files
from zoo.runs.inference.predict import read_rows as read_parts

SETTINGS = {"checkpoint": "0" * 64, "inference": "tests.Reverse", "options": {"chunk": 3}, "precision": "32-true"}
MEASURED = ("manifest.jsonl", "summary.json")  # have seconds
ERRORS: dict[str, BaseException] = {
    "bad": ValueError("holds nothing good"),
    "full": OSError(errno.ENOSPC, "no space left"),
}


class Reverse(Inference):
    """Writes each text backwards, in two steps; some texts end the call or the process."""

    input_suffixes = (".txt", ".md")
    output_suffix = ".out"

    def __init__(self, seconds: float = 0.0) -> None:
        self.layer = torch.nn.Linear(1, 1)
        self.seconds = seconds
        self.computed: list[str] = []

    def __call__(self, text: str) -> str:
        return text[::-1]

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        text = source.read_text()
        self.computed.append(source.name)
        if text in ERRORS:
            raise ERRORS[text]
        temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
        temporary.write_text(text[:1])
        time.sleep(self.seconds)
        if text == "lethal":
            os.kill(os.getpid(), signal.SIGKILL)
        temporary.write_text(self(text))
        temporary.replace(target)
        return {"audio_seconds": 2.0, "status": "a fact does not hide the outcome"}


def write_inputs(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def write_numbered(folder: Path, count: int) -> Path:
    return write_inputs(folder, **{f"{number:03d}": f"text {number}" for number in range(count)})


def predict(inputs: Path, output: Path, model: Reverse | None = None, **options: Any) -> dict[str, Any]:
    model = model or Reverse()
    files = list_input_files(inputs, output, model.input_suffixes, model.output_suffix)
    settings = options.pop("settings", SETTINGS)
    return predict_files(model, files, output, settings, **options)


def predict_slowly(inputs: Path, output: Path, rank: int = 0, world_size: int = 1) -> None:
    predict(inputs, output, Reverse(seconds=0.01), rank=rank, world_size=world_size)


def start(*args: Any) -> Any:
    process = SERVER.Process(target=predict_slowly, args=args)
    process.start()
    return process


def read_rows(output: Path) -> dict[str, dict[str, Any]]:
    """The manifest by target, without measured times; every line is a row, and no target has two."""
    rows = [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]
    assert len({row["target"] for row in rows}) == len(rows)
    return {row["target"]: {key: value for key, value in row.items() if key != "seconds"} for row in rows}


def assert_same_results(output: Path, expected: Path) -> None:
    assert read_rows(output) == read_rows(expected)
    files = []
    for folder in (output, expected):
        assert json.loads((folder / "summary.json").read_text())["done"] == len(read_rows(folder))
        files.append({name: content for name, content in contents(folder).items() if name not in MEASURED})
    assert files[0] == files[1]


def test_listing_mirrors_the_tree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = "b/2.txt a.b.TXT b/notes.rst b/.hidden.txt .x/y/1.txt c/d/3.md c/d/3.txt v.m4a none out/a.txt"
    for name in names.split():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("x")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "in" / "c")
    (tmp_path / "in" / "file.txt").symlink_to(tmp_path / "in" / "none")
    files = list_input_files(tmp_path / "in", tmp_path / "in" / "out", (".txt", ".md"), ".out")
    assert files[0] == InputFile(str(tmp_path / "in" / "a.b.TXT"), "a.b.out")
    assert [file.target for file in files] == ["a.b.out", "b/2.out", "c/d/3.md.out", "c/d/3.txt.out", "file.out"]
    assert "left out 1 .m4a, 1 .rst, 1 linked folder, 1 without suffix" in caplog.text
    source = tmp_path / "in" / "b" / "2.txt"
    assert list_input_files(source, tmp_path, (".txt",), ".out") == [InputFile(str(source), "2.out")]


@pytest.mark.parametrize(
    ("source", "output", "suffix", "message"),
    [
        ("missing", "out", ".out", "missing"),
        ("in/notes.rst", "out", ".out", r"no file ends in \.txt, \.md"),
        ("in", "in", ".out", "input folder itself"),
        ("in/x/a.txt", "in/x", ".txt", "overwrite an input"),
        ("in/x", "in", ".txt", "overwrite an input"),
        ("in", "in/notes.rst", ".out", "is a file"),
        ("twice", "out", ".txt", "another result"),
        ("reserved", "out", ".jsonl", "another result"),
    ],
)
def test_listing_refuses_to_overwrite(tmp_path: Path, source: str, output: str, suffix: str, message: str) -> None:
    for name in ("x/a.txt", "x/x/a.txt", "notes.rst"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("x")
    write_inputs(tmp_path / "reserved", manifest="x")
    for name in ("a.md", "a.md.txt.md", "a.md.txt"):
        (write_inputs(tmp_path / "twice", a="x") / name).write_text("x")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        list_input_files(tmp_path / source, tmp_path / output, (".txt", ".md"), suffix)


def test_ray_refuses_other_inputs_and_a_folder_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_ray, "connect", lambda address: {})
    monkeypatch.setattr(predict_ray, "map_chunks", lambda *_: pytest.fail("computed"))
    output = tmp_path / "out"
    predict(write_inputs(tmp_path / "one", a="x"), output)
    files = list_input_files(write_inputs(tmp_path / "two", a="y"), output, (".txt",), ".out")
    with pytest.raises(ValueError, match="is the result of"):
        predict_ray.predict_with_ray({"device": "cpu"}, files, output, SETTINGS)
    with lock_folder(output, "predict", part="ray"), pytest.raises(ValueError, match="being written"):
        predict_ray.predict_with_ray({"device": "cpu"}, files, output, SETTINGS, overwrite=True)


def test_rows_record_what_made_the_result(tmp_path: Path) -> None:
    inputs, output = write_inputs(tmp_path / "in", a="ab", b="bad"), tmp_path / "out"
    summary = predict(inputs, output)
    assert (output / "a.out").read_text() == "ba"
    counts = {"done": 1, "failed": 1, "audio_seconds": 2.0}
    assert summary | counts | {"skipped": 0} == summary
    written = json.loads((output / "summary.json").read_text())
    assert written | counts == written
    assert json.loads((output / "settings.json").read_text()) == SETTINGS | {"zoo": zoo.__version__}
    rows, stat = read_rows(output), (inputs / "a.txt").stat()
    assert rows["a.out"] == {
        "source": str(inputs / "a.txt"), "target": "a.out", "status": "done", "error": None, "audio_seconds": 2.0,
        "size": 2, "mtime_ns": stat.st_mtime_ns, "sha256": hashlib.sha256(b"ab").hexdigest(),
    }  # fmt: skip
    assert (rows["b.out"]["status"], rows["b.out"]["error"]) == ("failed", "ValueError: holds nothing good")
    names = sorted(path.name for path in output.iterdir())
    assert names == ["a.out", "manifest.jsonl", "settings.json", "summary.json"]


def test_other_settings_replace_all_results_or_none(tmp_path: Path) -> None:
    inputs, output, changed = write_numbered(tmp_path / "in", 3), tmp_path / "out", SETTINGS | {"checkpoint": "1" * 64}
    predict(inputs, output)
    before = contents(output)
    with pytest.raises(ValueError, match="--overwrite true"):
        predict(inputs, output, settings=changed)
    assert contents(output) == before
    (inputs / "002.txt").unlink()
    assert predict(inputs, output, settings=changed, overwrite=True)["done"] == 2
    assert read_rows(output).keys() == {"000.out", "001.out"}
    assert predict(inputs, output, settings=changed)["skipped"] == 2


def test_of_several_parts_the_one_written_last_counts(tmp_path: Path) -> None:
    row = {"source": "a.txt", "target": "a.out"}
    for age, (part, status) in enumerate([("rank0-of-2", "done"), ("rank2-of-4", "started")]):
        path = tmp_path / f"manifest.{part}.jsonl"
        path.write_text(json.dumps(row | {"status": status}) + "\n")
        os.utime(path, (1000 - age, 1000 - age))
    assert read_parts(tmp_path)["a.out"]["status"] == "done"


def test_second_call_computes_changes(tmp_path: Path) -> None:
    inputs, output = write_numbered(tmp_path / "in", 3), tmp_path / "out"
    predict(inputs, output)
    os.utime(inputs / "000.txt")
    (inputs / "001.txt").write_text("TEXT 1")
    (output / "002.out").unlink()
    model = Reverse()
    summary = predict(inputs, output, model)
    assert (model.computed, summary["skipped"]) == (["001.txt", "002.txt"], 1)
    assert (output / "001.out").read_text() == "1 TXET"
    assert predict(inputs.rename(tmp_path / "moved"), output)["skipped"] == 3


def test_result_of_another_input_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "out"
    predict(write_inputs(tmp_path / "one", a="ab", b="same"), output)
    others = write_inputs(tmp_path / "two", a="cd", b="same")
    with pytest.raises(ValueError, match="the result of"):
        predict(others, output)
    assert (output / "a.out").read_text() == "ba"
    assert predict(others, output, overwrite=True)["done"] == 2


def test_changed_input_that_fails_leaves_no_old_result(tmp_path: Path) -> None:
    inputs, output = write_inputs(tmp_path / "in", a="ab"), tmp_path / "out"
    predict(inputs, output)
    write_inputs(inputs, a="bad")
    for _ in range(2):
        assert predict(inputs, output)["failed"] == 1
        assert not (output / "a.out").exists()


def test_killed_twice_equals_uninterrupted(tmp_path: Path) -> None:
    seed = time.time_ns() % 2**32
    print("seed", seed)
    inputs, output = write_numbered(tmp_path / "in", 60), tmp_path / "out"
    for least in (5, 25):
        process, until = start(inputs, output), least + random.Random(seed + least).randrange(15)
        while len(list(output.glob("*.out"))) < until:
            assert process.is_alive()
            time.sleep(0.001)
        process.kill()
        process.join()
    part = output / "manifest.rank0-of-1.jsonl"
    part.write_bytes(part.read_bytes() + b'{"source": "torn')
    summary = predict(inputs, output)
    assert summary["done"] <= 60 - until + 1
    predict(inputs, tmp_path / "expected")
    assert_same_results(output, tmp_path / "expected")


def test_two_processes_equal_one(tmp_path: Path) -> None:
    inputs, output = write_numbered(tmp_path / "in", 31), tmp_path / "out"
    processes = [start(inputs, output, rank, 2) for rank in range(2)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    predict(inputs, tmp_path / "expected")
    assert_same_results(output, tmp_path / "expected")


def test_a_part_has_one_process(tmp_path: Path) -> None:
    inputs, output = write_numbered(tmp_path / "in", 4), tmp_path / "out"
    with lock_folder(output, "predict", part="rank0-of-2"):
        with pytest.raises(ValueError, match="is being written by `zoo predict`"):
            predict(inputs, output, rank=0, world_size=2)
        assert predict(inputs, output, rank=1, world_size=2)["done"] == 2
    assert predict(inputs, output, rank=0, world_size=2)["done"] == 2
    assert not list(output.glob(".*"))


def test_file_that_kills_three_processes_fails(tmp_path: Path) -> None:
    inputs, output = write_numbered(tmp_path / "in", 3), tmp_path / "out"
    write_inputs(inputs, **{"001": "lethal"})
    for _ in range(3):
        process = start(inputs, output)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    summary = predict(inputs, output)
    assert (summary["done"], summary["failed"]) == (1, 1)
    assert "3 processes died at this file" in read_rows(output)["001.out"]["error"]
    write_inputs(inputs, **{"001": "harmless"})
    assert predict(inputs, output)["done"] == 1


def test_full_disk_ends_the_run(tmp_path: Path) -> None:
    inputs, output = write_inputs(tmp_path / "in", a="a", b="full", c="c"), tmp_path / "out"
    with pytest.raises(OSError, match="no room for"):
        predict(inputs, output)
    write_inputs(inputs, b="b")
    summary = predict(inputs, output)
    assert (summary["done"], summary["skipped"]) == (2, 1)


def test_odd_names_are_kept(tmp_path: Path) -> None:
    inputs, output = tmp_path / "in", tmp_path / "out"
    names = ["a b", "音声 ü", "new\nline", "-q", os.fsdecode(b"latin\xe9"), "quote'\"", "a.b"]
    write_inputs(inputs, **dict.fromkeys(names, "text"))
    (inputs / "a b.md").write_text("other")
    assert predict(inputs, output)["done"] == 8
    assert (output / "a b.txt.out").read_text() == "txet"
    assert (output / "a b.md.out").read_text() == "rehto"
    assert {Path(row["source"]).stem for row in read_rows(output).values()} == set(names)
    assert predict(inputs, output)["skipped"] == 8
