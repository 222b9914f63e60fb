"""Prediction over files: what is done again, what is refused, and what kills leave."""

import errno
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.runs.inference.base import Inference
from zoo.runs.predict.input_files import InputFile, list_input_files
from zoo.runs.predict.results import open_results, read_manifest
from zoo.runs.predict.run import content_digest, predict_files, result_settings

SPAWN = multiprocessing.get_context("spawn")
SETTINGS = result_settings("0" * 64, "tests.Reverse", {"chunk": 3})
ERRORS: dict[str, BaseException] = {
    "bad": ValueError("holds nothing good"),
    "full": OSError(errno.ENOSPC, "no space left"),
    "interrupt": KeyboardInterrupt(),
}


class Reverse(Inference):
    """Writes each text backwards, in two steps; what a file says may end the call or the process."""

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


def numbered(folder: Path, count: int) -> Path:
    return write_inputs(folder, **{f"{number:03d}": f"text {number}" for number in range(count)})


def predict(inputs: Path, output: Path, model: Reverse | None = None, **options: Any) -> dict[str, Any]:
    model = model or Reverse()
    files, _ = list_input_files(inputs, output, model.input_suffixes, model.output_suffix)
    settings = options.pop("settings", SETTINGS)
    return predict_files(model, files, output, settings, progress=False, **options)


def predict_slowly(inputs: Path, output: Path, rank: int = 0, world_size: int = 1) -> None:
    predict(inputs, output, Reverse(seconds=0.01), rank=rank, world_size=world_size)


def start(*args: Any) -> Any:
    process = SPAWN.Process(target=predict_slowly, args=args)
    process.start()
    return process


def rows_of(output: Path) -> dict[str, dict[str, Any]]:
    """The manifest by target, without what a clock measured; every line is a row, and no target has two."""
    rows = [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]
    assert len({row["target"] for row in rows}) == len(rows)
    return {row["target"]: {key: value for key, value in row.items() if key != "seconds"} for row in rows}


def results_of(output: Path) -> dict[str, bytes]:
    return {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()}


def names_in(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir())


def test_listing_mirrors_the_tree_and_counts_what_is_left_out(tmp_path: Path) -> None:
    names = [
        "b/2.txt",
        "a.b.TXT",
        "b/notes.rst",
        "b/.hidden.txt",
        "c/d/3.md",
        "c/d/3.txt",
        "v.m4a",
        "none",
        "out/a.txt",
    ]
    for name in names:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "in" / "c")
    (tmp_path / "in" / "file.txt").symlink_to(tmp_path / "in" / "none")
    found, left_out = list_input_files(tmp_path / "in", tmp_path / "in" / "out", (".txt", ".md"), ".out")
    assert found[0] == InputFile(str(tmp_path / "in" / "a.b.TXT"), "a.b.out")
    assert [file.target for file in found] == ["a.b.out", "b/2.out", "c/d/3.md.out", "c/d/3.txt.out", "file.out"]
    assert left_out == {".rst": 1, ".m4a": 1, "without suffix": 1, "linked folder": 1}
    one, _ = list_input_files(tmp_path / "in" / "b" / "2.txt", tmp_path, (".txt",), ".out")
    assert one == [InputFile(str(tmp_path / "in" / "b" / "2.txt"), "2.out")]


@pytest.mark.parametrize(
    ("source", "output", "suffix", "error", "message"),
    [
        ("missing", "out", ".out", FileNotFoundError, "missing"),
        ("in/notes.rst", "out", ".out", ValueError, r"no file ends in \.txt, \.md"),
        ("empty", "out", ".out", ValueError, "no file ends in"),
        ("in", "in", ".out", ValueError, "input folder itself"),
        ("in/x/a.txt", "in/x", ".txt", ValueError, "overwrite an input"),
        ("in/x", "in", ".txt", ValueError, "overwrite an input"),
        ("in", "in/notes.rst", ".out", ValueError, "is a file"),
        ("twice", "out", ".txt", ValueError, "another result"),
        ("reserved", "out", ".jsonl", ValueError, "another result"),
    ],
)
def test_listing_refuses_what_would_overwrite(
    tmp_path: Path, source: str, output: str, suffix: str, error: type[Exception], message: str
) -> None:
    for name in ("in/x/a.txt", "in/x/x/a.txt", "in/notes.rst", "twice/a.md", "twice/a.txt", "twice/a.md.txt.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "twice" / "a.md.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    write_inputs(tmp_path / "reserved", manifest="x")
    with pytest.raises(error, match=message):
        list_input_files(tmp_path / source, tmp_path / output, (".txt", ".md"), suffix)


def test_row_says_what_made_the_result(tmp_path: Path) -> None:
    inputs, output = write_inputs(tmp_path / "in", a="ab", b="bad"), tmp_path / "out"
    summary = predict(inputs, output)
    assert (output / "a.out").read_text() == "ba"
    assert {key: summary[key] for key in ("done", "failed", "skipped", "audio_seconds")} == {
        "done": 1, "failed": 1, "skipped": 0, "audio_seconds": 2.0,
    }  # fmt: skip
    assert json.loads((output / "summary.json").read_text()) == summary
    assert json.loads((output / "settings.json").read_text()) == SETTINGS
    rows, facts = rows_of(output), (inputs / "a.txt").stat()
    expected = {
        "source": str(inputs / "a.txt"), "target": "a.out", "status": "done", "error": None, "audio_seconds": 2.0,
        "size": 2, "mtime_ns": facts.st_mtime_ns, "sha256": content_digest(inputs / "a.txt"),
    }  # fmt: skip
    assert {key: value for key, value in rows["a.out"].items() if key != "settings"} == expected
    assert (rows["b.out"]["status"], rows["b.out"]["error"]) == ("failed", "ValueError: holds nothing good")
    assert names_in(output) == ["a.out", "manifest.jsonl", "settings.json", "summary.json"]


@pytest.mark.parametrize(
    "changed",
    [
        result_settings("1" * 64, "tests.Reverse", {"chunk": 3}),
        result_settings("0" * 64, "tests.Reverse", {"chunk": 4}),
        result_settings("0" * 64, "tests.Reverse", {"chunk": 3}, "bf16-mixed"),
        result_settings("0" * 64, "tests.Forward", {"chunk": 3}),
    ],
    ids=["checkpoint", "options", "precision", "class"],
)
def test_other_settings_are_refused_and_change_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    inputs, output = numbered(tmp_path / "in", 3), tmp_path / "out"
    predict(inputs, output)
    before = results_of(output)
    with pytest.raises(ValueError, match="--overwrite true"):
        predict(inputs, output, settings=changed)
    assert results_of(output) == before
    (inputs / "002.txt").unlink()
    model = Reverse()
    assert predict(inputs, output, model, settings=changed, overwrite=True)["done"] == 2
    rows = rows_of(output)
    assert rows["000.out"]["settings"] == rows["001.out"]["settings"] != rows["002.out"]["settings"]
    assert predict(inputs, output, model, settings=changed)["skipped"] == 2
    with pytest.raises(ValueError, match="other settings"):
        predict(inputs, output)


def test_another_version_of_zoo_resumes(tmp_path: Path) -> None:
    inputs, output = numbered(tmp_path / "in", 1), tmp_path / "out"
    predict(inputs, output, settings=SETTINGS | {"zoo": "0.0"})
    assert predict(inputs, output)["skipped"] == 1


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    inputs, output = numbered(tmp_path / "in", 1), write_inputs(tmp_path / "out", other="mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="holds something else"):
            predict(inputs, output, overwrite=overwrite)
    assert names_in(output) == ["other.txt"]


def rewrite(inputs: Path, output: Path) -> None:
    (inputs / "001.txt").write_text("TEXT 1")


def rewrite_within_the_same_time(inputs: Path, output: Path) -> None:
    facts = (inputs / "001.txt").stat()
    (inputs / "001.txt").write_text("a longer text")
    os.utime(inputs / "001.txt", ns=(facts.st_atime_ns, facts.st_mtime_ns))


def delete_result(inputs: Path, output: Path) -> None:
    (output / "001.out").unlink()


def touch(inputs: Path, output: Path) -> None:
    os.utime(inputs / "001.txt")


@pytest.mark.parametrize(
    ("change", "computed"),
    [(rewrite, ["001.txt"]), (rewrite_within_the_same_time, ["001.txt"]), (delete_result, ["001.txt"]), (touch, [])],
)  # fmt: skip
def test_second_call_computes_what_changed(
    tmp_path: Path, change: Callable[[Path, Path], None], computed: list[str]
) -> None:
    inputs, output = numbered(tmp_path / "in", 3), tmp_path / "out"
    predict(inputs, output)
    change(inputs, output)
    model = Reverse()
    summary = predict(inputs, output, model)
    assert (model.computed, summary["skipped"]) == (computed, 3 - len(computed))
    assert (output / "001.out").read_text() == (inputs / "001.txt").read_text()[::-1]
    assert rows_of(output)["001.out"]["mtime_ns"] == (inputs / "001.txt").stat().st_mtime_ns


def test_moved_inputs_are_not_computed_again(tmp_path: Path) -> None:
    output = tmp_path / "out"
    predict(numbered(tmp_path / "in", 3), output)
    assert predict((tmp_path / "in").rename(tmp_path / "moved"), output)["skipped"] == 3
    assert rows_of(output)["001.out"]["source"] == str(tmp_path / "moved" / "001.txt")


def test_replaced_result_of_another_input_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    predict(write_inputs(tmp_path / "one", a="ab"), tmp_path / "out")
    assert predict(write_inputs(tmp_path / "two", a="cd"), tmp_path / "out")["done"] == 1
    assert f"replaces the result of {tmp_path / 'one' / 'a.txt'}" in caplog.text
    assert (tmp_path / "out" / "a.out").read_text() == "dc"


def test_changed_input_that_fails_leaves_no_old_result(tmp_path: Path) -> None:
    inputs, output = write_inputs(tmp_path / "in", a="ab"), tmp_path / "out"
    predict(inputs, output)
    write_inputs(inputs, a="bad")
    assert predict(inputs, output)["failed"] == 1
    assert not (output / "a.out").exists()
    model = Reverse()
    assert predict(inputs, output, model)["failed"] == 1  # tried again
    assert model.computed == ["a.txt"]


def test_killed_twice_and_resumed_equals_undisturbed(tmp_path: Path) -> None:
    seed = time.time_ns() % 2**32
    print("seed", seed)
    inputs, output = numbered(tmp_path / "in", 60), tmp_path / "out"
    for least in (5, 25):
        process, until = start(inputs, output), least + random.Random(seed + least).randrange(15)
        while len(list(output.glob("*.out"))) < until:
            assert process.is_alive()
            time.sleep(0.001)
        process.kill()
        process.join()
    part = output / "manifest.rank0-of-1.jsonl"
    part.write_bytes(part.read_bytes() + b'{"source": "torn')
    model = Reverse()
    summary = predict(inputs, output, model)
    assert len(model.computed) == summary["done"] <= 60 - until + 1
    predict(inputs, tmp_path / "plain")
    assert rows_of(output) == rows_of(tmp_path / "plain")
    expected = results_of(tmp_path / "plain")
    timed = ("manifest.jsonl", "summary.json")
    assert {name: each for name, each in results_of(output).items() if name not in timed} == {
        name: each for name, each in expected.items() if name not in timed
    }


def test_two_processes_equal_one(tmp_path: Path) -> None:
    inputs, output = numbered(tmp_path / "in", 31), tmp_path / "out"
    processes = [start(inputs, output, rank, 2) for rank in range(2)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    predict(inputs, tmp_path / "plain")
    assert rows_of(output) == rows_of(tmp_path / "plain")
    assert names_in(output) == names_in(tmp_path / "plain")
    assert json.loads((output / "summary.json").read_text())["done"] == 31


def test_parts_one_after_the_other_equal_one(tmp_path: Path) -> None:
    inputs, output = numbered(tmp_path / "in", 10), tmp_path / "out"
    first = predict(inputs, output, rank=0, world_size=3)
    assert (first["done"], first["missing"]) == (4, 6)
    predict(inputs, output, rank=2, world_size=3)
    assert not (output / "summary.json").exists()
    assert predict(inputs, output, rank=1, world_size=3)["done"] == 10
    predict(inputs, tmp_path / "plain")
    assert rows_of(output) == rows_of(tmp_path / "plain")
    assert names_in(output) == names_in(tmp_path / "plain")


def test_files_that_no_part_had_are_counted(tmp_path: Path) -> None:
    inputs, output = numbered(tmp_path / "in", 10), tmp_path / "out"
    predict(inputs, output, rank=0, world_size=2)
    write_inputs(inputs, **{"000a": "new"})
    assert predict(inputs, output, rank=1, world_size=2)["missing"] > 0
    assert "missing" not in predict(inputs, output)
    assert len(rows_of(output)) == 11


def test_file_that_kills_its_process_three_times_fails(tmp_path: Path) -> None:
    inputs, output = numbered(tmp_path / "in", 3), tmp_path / "out"
    write_inputs(inputs, **{"001": "lethal"})
    for deaths, done in ((3, 1), (1, 0)):  # a later call tries it once more
        for _ in range(deaths):
            process = start(inputs, output)
            process.join()
            assert process.exitcode == -signal.SIGKILL
        summary = predict(inputs, output)
        assert (summary["done"], summary["failed"]) == (done, 1)
    assert "3 processes died at this file" in rows_of(output)["001.out"]["error"]
    write_inputs(inputs, **{"001": "harmless"})
    assert predict(inputs, output)["done"] == 1


def test_interrupted_file_is_tried_again(tmp_path: Path) -> None:
    inputs, output = write_inputs(tmp_path / "in", a="interrupt"), tmp_path / "out"
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            predict(inputs, output)
    assert read_manifest(output / "manifest.rank0-of-1.jsonl")[-1]["status"] == "interrupted"


def test_full_disk_ends_the_run_and_the_next_goes_on(tmp_path: Path) -> None:
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
    assert {Path(row["source"]).stem for row in rows_of(output).values()} == set(names)
    assert predict(inputs, output)["skipped"] == 8


def test_same_work_twice_is_refused(tmp_path: Path) -> None:
    inputs, output = numbered(tmp_path / "in", 2), tmp_path / "out"
    with open_results(output, SETTINGS, rank=1, world_size=2):
        for rank, world_size in ((1, 2), (0, 1), (1, 3)):
            with pytest.raises(ValueError, match="rank1-of-2"):
                predict(inputs, output, rank=rank, world_size=world_size)
        predict(inputs, output, rank=0, world_size=2)
    assert predict(inputs, output)["skipped"] == 1


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    for folder, text in (("a", "1"), ("b", "1"), ("c", "2")):
        write_inputs(tmp_path / folder, weights=text)
    write_inputs(tmp_path / "b").joinpath("README.md").write_text("a card")
    a, b, c = (content_digest(tmp_path / folder) for folder in "abc")
    assert a == b != c
    assert content_digest(tmp_path / "a" / "weights.txt") == content_digest(tmp_path / "b" / "weights.txt")
