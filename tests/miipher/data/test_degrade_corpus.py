import json
import multiprocessing
import signal
import time

import numpy as np
import pytest

from tests.harness import contents, forked
from zoo.audio.augment.degrade import Degrader
from zoo.audio.io import files
from zoo.miipher.data import degrade_corpus

RATE = 16000
BAD = "ann/bad.wav"


@pytest.fixture
def corpus(tmp_path):
    root = tmp_path / "clean"
    for i, name in enumerate(("ann/a.wav", "ann/b.flac", "bob/c.wav", "bob/d.wav", "bob/e.wav")):
        audio = 0.5 * np.sin(np.arange(2000 + 100 * i) * 0.1 * (i + 1))
        files.write(root / name, audio, 24000 if i == 1 else RATE)
    return root


def degrade(corpus, output, **options):
    noise, rir = corpus.parent / "noise", corpus.parent / "rir"
    if not rir.is_dir():
        files.write(noise / "n.wav", np.random.default_rng(0).normal(0, 0.1, 3000), RATE)
        files.write(rir / "r.wav", np.array([1.0, 0.5, 0.25], np.float32), RATE)
    settings = {"copies": 2, "sample_rate": RATE, "val_items": 2, "cache": corpus.parent / "cache"}
    settings["degrader"] = Degrader(steps=["noise", "reverb", "clipping"])
    return degrade_corpus.degrade(corpus, output, noise, rir, **{**settings, **options})


def manifest(output):
    return [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]


def test_mirrored_trees(corpus, tmp_path):
    out = tmp_path / "out"
    assert degrade(corpus, out) == {"done": 10, "failed": 0, "skipped": 0, "bad_files": 0}
    for split, count in {"train": 6, "val": 4}.items():
        clean, twins = (files.find_audio_files(out / split / part) for part in ("clean", "degraded"))
        assert len(clean) == len(twins) == count
        for path, twin in zip(clean, twins, strict=True):
            assert path.relative_to(out / split / "clean") == twin.relative_to(out / split / "degraded")
            (a, rate), (b, twin_rate) = files.read(path), files.read(twin)
            assert rate == twin_rate == RATE and a.shape == b.shape and not np.allclose(a, b, atol=1e-3)
    row = next(row for row in manifest(out) if row["key"] == "bob/c_0")
    assert (row["source"], row["speaker"], row["samples"]) == ("bob/c.wav", "bob", 2200)
    assert row["degradation"]["steps"] == ["noise", "reverb", "clipping"]
    both = [contents(out)[f"{row['split']}/degraded/bob/c_{copy}.wav"] for copy in (0, 1)]
    assert both[0] != both[1]


def test_result_does_not_depend_on_workers_or_on_what_was_there(corpus, tmp_path):
    degrade(corpus, tmp_path / "a", val_items=0)
    degrade(corpus, tmp_path / "b", val_items=0, workers=2)
    complete = contents(tmp_path / "a")
    assert contents(tmp_path / "b") == complete
    for name in list(complete)[::3]:
        if name.endswith(".wav"):
            (tmp_path / "b" / name).unlink()
    assert degrade(corpus, tmp_path / "b", val_items=0)["done"] == 10
    assert contents(tmp_path / "b") == complete
    assert degrade(corpus, tmp_path / "b", val_items=0)["skipped"] == 10


def test_a_recording_that_changed_is_degraded_anew(corpus, tmp_path):
    out = tmp_path / "out"
    degrade(corpus, out)
    files.write(corpus / "bob/c.wav", np.full(5000, 0.1, np.float32), RATE)
    assert degrade(corpus, out) == {"done": 10, "failed": 0, "skipped": 8, "bad_files": 0}
    (path,) = out.glob("*/degraded/bob/c_0.wav")
    assert files.info(path).samples == 5000


def test_bad_files_are_named_and_tried_again(corpus, tmp_path, caplog):
    (corpus / BAD).write_bytes(b"RIFF")
    counts = degrade(corpus, tmp_path / "out")
    assert counts == {"done": 10, "failed": 2, "skipped": 0, "bad_files": 1} and "bad.wav" in caplog.text
    assert [row["source"] for row in manifest(tmp_path / "out") if row["status"] == "failed"] == [BAD, BAD]
    files.write(corpus / BAD, np.full(1000, 0.1), RATE)
    assert degrade(corpus, tmp_path / "out") == {"done": 12, "failed": 0, "skipped": 10, "bad_files": 0}


@pytest.mark.parametrize("peak_db", [-10, -80])
def test_quiet_recordings_keep_their_precision(tmp_path, peak_db):
    loud = np.random.default_rng(0).uniform(-1, 1, 8000)
    for name in ("a", "b"):
        files.write(tmp_path / "clean" / f"{name}.wav", loud * 10 ** (peak_db / 20), RATE, "FLOAT")
    degrade(tmp_path / "clean", tmp_path / "out", val_items=1)
    source = files.read_mono(tmp_path / "clean" / "a.wav").astype(np.float64)
    for path in (tmp_path / "out").glob("*/clean/*.wav"):
        error = files.read_mono(path) - source
        assert 10 * np.log10(np.sum(source**2) / max(np.sum(error**2), 1e-30)) >= 80


def test_wrong_calls_are_refused(corpus, tmp_path):
    degrade(corpus, tmp_path / "out")
    for match, output, options in (
        ("other settings: seed", tmp_path / "out", {"seed": 1}),
        ("lies in the corpus", corpus / "out", {}),
        ("holds something else", tmp_path / "noise", {}),
        ("leaves nothing", tmp_path / "new", {"val_items": 5}),
    ):
        with pytest.raises(ValueError, match=match):
            degrade(corpus, output, **options)
    files.write(tmp_path / "one" / "a.wav", np.full(2000, 0.1), RATE)
    with pytest.raises(ValueError, match="one utterance"):
        degrade(tmp_path / "one", tmp_path / "new", val_items=None)
    assert degrade(tmp_path / "one", tmp_path / "new", val_items=0)["done"] == 2


def test_command(corpus, tmp_path):
    (corpus / BAD).write_bytes(b"")
    args = ["--sample_rate", RATE, "--val_items", 2, "--copies", 1, "--degrader.steps", "[reverb, noise]"]
    done = forked("degrade", corpus, tmp_path / "out", *args, "--cache", tmp_path / "cache", cwd=tmp_path)
    assert done.returncode == 1 and "done 5, failed 1, skipped 0, bad_files 1" in done.stdout, done.stderr
    assert "bad.wav: is empty" in done.stderr and "Traceback" not in done.stderr


def test_kill_leaves_nothing_half_written(tmp_path):
    corpus = tmp_path / "clean"
    for i in range(40):
        files.write(corpus / f"{i:02d}.wav", 0.3 * np.sin(np.arange(16000) * 0.05 * (i + 1)), RATE)
    out = tmp_path / "out"
    process = multiprocessing.get_context("spawn").Process(target=degrade, args=(corpus, out))
    process.start()
    while process.is_alive() and not list(out.glob("train/degraded/*.wav")):
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for path in out.rglob("[!.]*.wav"):
        files.read(path)
    counts = degrade(corpus, out)
    assert counts["done"] == 80 and 0 < counts["skipped"] < 80
    degrade(corpus, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
