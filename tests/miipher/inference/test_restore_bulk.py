"""`predict` restores folders and shards: broken files are named, done ones are left alone, kills leave no halves."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import soundfile

from tests.faults.bad_audio import BAD, RATE, TONE, corpus
from tests.miipher.stand_ins import LocalEncoder, restorer
from zoo.audio.io import files
from zoo.audio.io.shards import ShardWriter
from zoo.miipher.inference.restore import FeatureExtractor, Restorer
from zoo.runs.bulk import BulkData, plan, read_manifest
from zoo.runs.inference import Inference

BROKEN = ["empty.wav", "html.mp3", "cut_header.wav", "cut.flac", "cut.ogg", "nan.wav", "no_samples.wav"]


class Task(L.LightningModule):
    def __init__(self, inference: Inference) -> None:
        super().__init__()
        self.made = inference

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.trainer.datamodule.process(self.made, batch)


def predict(source: Path, output: Path, inference: Inference) -> BulkData:
    data = BulkData(source, output, inference.input_suffixes, inference.output_suffix)
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer.predict(Task(inference), datamodule=data, return_predictions=False)
    return data


def rows(output: Path) -> dict[str, dict[str, Any]]:
    return {Path(row["source"]).name: row for row in read_manifest(output / "manifest.jsonl")}


pytestmark = pytest.mark.filterwarnings("ignore")


def test_of_a_hundred_files_seven_broken_ones_are_named_and_a_second_run_does_what_is_missing(tmp_path):
    source, output = corpus(tmp_path / "in", 93, *BROKEN), tmp_path / "out"
    data = predict(source, output, restorer())
    found = rows(output)
    assert len(found) == 100
    assert {name for name, row in found.items() if row["status"] == "failed"} == set(BROKEN) <= set(BAD)
    assert all(str(source / name) in found[name]["error"] for name in BROKEN)
    assert data.failed == 7  # what makes `zoo predict` exit with 1
    assert len(list(output.glob("*.wav"))) == 93
    good = found["000.wav"]
    assert good["channels"] == 1 and good["chunks"] == 1 and good["sample_rate"] == 8000
    assert good["audio_seconds"] == files.info(output / "000.wav").samples / 8000 == len(TONE) / RATE
    assert 0 < good["peak"] <= 1 and good["gain"][0] > 0 and good["real_time_factor"] > 0

    (output / "017.wav").unlink()
    (source / "nan.wav").write_bytes((source / "000.wav").read_bytes())
    again = predict(source, output, restorer()).summary
    assert (again["done"], again["failed"], again["skipped"]) == (2, 6, 92)
    assert sum(row["status"] == "done" for row in rows(output).values()) == 94


class Dying(Restorer):
    """Kills its process in the middle of the second chunk of a long file."""

    computed = 0

    def compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        self.computed += valid[0] > RATE
        if self.computed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(chunks, valid)


class DyingWhileWriting(Restorer):
    """Kills its process when a part of the result has been written."""

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        write = files.Writer.write

        def dying(writer: files.Writer, audio: np.ndarray) -> None:
            write(writer, audio)
            if source.stem == "long":
                os.kill(os.getpid(), signal.SIGKILL)

        files.Writer.write = dying  # type: ignore[method-assign]
        return super().process_file(source, target)


def killed(kind: type[Restorer], source: Path, output: Path) -> None:
    model = restorer(chunk_seconds=2.0, overlap_seconds=0.4, chunk_batch=1)
    model.__class__ = kind
    predict(source, output, model)


@pytest.mark.parametrize("kind", [Dying, DyingWhileWriting])
def test_kill_leaves_nothing_half_under_a_final_name(tmp_path, kind):
    source, output = corpus(tmp_path / "in", 3), tmp_path / "out"
    files.write(source / "long.wav", np.tile(TONE, 12), RATE)
    process = multiprocessing.get_context("fork").Process(target=killed, args=(kind, source, output))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert sorted(path.name for path in output.glob("*.wav")) == ["000.wav", "001.wav", "002.wav"]
    assert all(files.read(path)[0].any() for path in output.glob("*.wav"))
    summary = predict(source, output, restorer()).summary
    assert (summary["done"], summary["skipped"]) == (1, 3)
    names = ["000.wav", "001.wav", "002.wav", "long.wav", "manifest.jsonl", "summary.json"]
    assert sorted(path.name for path in output.iterdir()) == names


def encoded(level: float) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, level * TONE, RATE, format="WAV")
    return buffer.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "shards"
    for compress in (False, True):
        with ShardWriter(folder, max_samples=2, compress=compress, prefix="b" if compress else "a") as writer:
            writer.write("x/one", {"speech.wav": encoded(0.1), "degraded_speech.wav": encoded(0.4), "json": b"{}"})
            writer.write("two", {"speech.wav": encoded(0.2)})
            writer.write("three", {"degraded_speech.wav": b"nothing", "speech.wav": encoded(0.2)})
    yield folder


def test_shards_are_folders_of_degraded_recordings(tmp_path, shards):
    output = tmp_path / "out"
    names = [path.name for path in sorted([*shards.glob("*.tar"), *shards.glob("*.tar.gz")])]
    assert [name.partition("-")[0] for name in names] == ["a", "a", "b", "b"]
    data = predict(shards, output, restorer())
    assert data.failed == 2
    for name in names[::2]:
        folder = output / name.partition(".")[0]
        assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.wav")) == ["two.wav", "x/one.wav"]
        levels = [np.abs(files.read_mono(folder / f"{key}.wav")).max() for key in ("x/one", "two")]
        assert levels[0] > levels[1]  # the degraded recording of `one` is the louder one
    failed = [row for row in read_manifest(output / "manifest.jsonl") if row["status"] == "failed"]
    expected = {f"{shards / name}/three.degraded_speech.wav" for name in names[1::2]}
    assert {row["source"] for row in failed} == expected
    assert all(
        row["source"] in row["error"] and "/tmp" not in row["error"].replace(row["source"], "") for row in failed
    )
    assert predict(shards, output, restorer()).summary["skipped"] == 4


def test_one_shard_is_an_input_and_an_empty_or_cut_one_is_refused(tmp_path, shards):
    shard = min(shards.glob("*.tar"))
    jobs = plan(shard, tmp_path / "out", files.AUDIO_SUFFIXES, ".wav")
    assert [job.target.relative_to(tmp_path / "out").as_posix() for job in jobs] == [
        "a-000000/x/one.wav",
        "a-000000/two.wav",
    ]
    assert [job.member for job in jobs] == ["x/one.degraded_speech.wav", "two.speech.wav"]
    with ShardWriter(tmp_path / "text") as writer:
        writer.write("one", {"txt": b"words"})
    with pytest.raises(ValueError, match="no sample holds a recording"):
        plan(tmp_path / "text", tmp_path / "out", files.AUDIO_SUFFIXES, ".wav")
    (tmp_path / "cut.tar").write_bytes(shard.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"cut\.tar: cut"):
        plan(tmp_path / "cut.tar", tmp_path / "out", files.AUDIO_SUFFIXES, ".wav")


def test_a_folder_becomes_feature_files(tmp_path):
    source, output = corpus(tmp_path / "in", 2), tmp_path / "out"
    predict(source, output, FeatureExtractor(LocalEncoder().eval()))
    assert np.load(output / "001.npy", mmap_mode="r").shape == (8, len(TONE) // 320)
    assert rows(output)["001.wav"]["frames"] == len(TONE) // 320
