import json
import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.evaluation import evaluate as evaluation
from zoo.audio.evaluation.evaluate import Settings, evaluate
from zoo.audio.evaluation.models import MetricModel
from zoo.audio.evaluation.summary import MetricColumn, failed_rows
from zoo.audio.io import files
from zoo.cli.main import main

RATE = 16000
FAST = Settings(("si_sdr", "lsd"), RATE)
VOICES = SyntheticSpeech(RATE, seconds=(0.5, 0.5))


class Words(MetricModel):
    """Needs no reference; sees the text."""

    measures = (MetricColumn("letters", True),)

    def load(self):
        pass

    def __call__(self, restored, reference, text):
        return {"letters": float(len(text))} if text else {}


def trees(root, count=4):
    rng = np.random.default_rng(0)
    for index in range(count):
        clean = VOICES.utterance(index)
        noise = rng.standard_normal(len(clean)).astype(np.float32)
        for tree, level, suffix in (("clean", 0.0, "flac"), ("degraded", 0.03, "wav"), ("restored", 0.01, "wav")):
            files.write(root / tree / f"s{index % 2}" / f"{index}.{suffix}", clean + level * noise, RATE)
    return {name: root / name for name in ("clean", "degraded", "restored")}


def run(paths, output, settings=FAST, **options):
    restored = {"restored": paths["restored"]}
    return evaluate(paths["clean"], restored, output, paths["degraded"], settings, **options)


def computed(monkeypatch):
    """Record the items that are measured from now on."""
    calls, original = [], evaluation.measure

    def measure(item, settings):
        calls.append((item.system, item.name))
        return original(item, settings)

    monkeypatch.setattr(evaluation, "measure", measure)
    return calls


def test_another_model_or_folder_is_measured_anew(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Weighted(Words):
        weights: Path

    paths, weights = trees(tmp_path, 1), tmp_path / "weights"
    weights.write_text("one")
    settings = Settings(("lsd",), RATE, models=(Weighted(weights),))
    run(paths, tmp_path / "out", settings)
    calls = computed(monkeypatch)
    run(paths, tmp_path / "out", settings)
    assert not calls
    weights.write_text("three")
    run(paths, tmp_path / "out", settings)
    shutil.copytree(paths["restored"], tmp_path / "other")  # with its times
    count = len(calls)
    run(paths | {"restored": tmp_path / "other"}, tmp_path / "out", settings)
    assert count == 3 and [system for system, _ in calls[count:]] == ["restored"]


def test_models_score_the_clean_files_too(tmp_path):
    settings = Settings(("lsd",), RATE, models=(Words(),))
    result = run(trees(tmp_path, 2), tmp_path / "out", settings, texts={"s0/0": "four", "1": "letters"})
    assert [row["letters"] for row in result.rows] == [4.0, 7.0] * 3
    clean = {row["measure"]: row for row in result.summary if row["system"] == "clean"}
    assert clean["letters"]["mean"] == 5.5 and clean["lsd"]["count"] == 0
    assert result.rows[0]["system"] == "clean" and "lsd" not in result.rows[0]


def test_wrong_folders_are_named(tmp_path):
    paths = trees(tmp_path, 2)
    with pytest.raises(ValueError, match="no file has a clean counterpart"):
        run(paths | {"clean": tmp_path / "clean" / "s0"}, tmp_path / "out")
    files.write(paths["clean"] / "s0" / "0.wav", VOICES.utterance(0), RATE)
    with pytest.raises(ValueError, match="have one name"):
        run(paths, tmp_path / "out")


def test_report_shows_the_gain(tmp_path):
    result = run(trees(tmp_path), tmp_path / "out")
    assert not failed_rows(result.rows) and len(result.rows) == 8
    by_measure = {(row["system"], row["measure"]): row for row in result.summary}
    # A third of the noise is 9.54 dB less.
    assert by_measure["restored", "si_sdr"]["gain"] == pytest.approx(20 * math.log10(3), abs=0.05)
    content = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert content["sample_rates"] == {"si_sdr": RATE, "lsd": RATE} and content["failed"] == []
    head, *lines = (tmp_path / "out" / "per_file.csv").read_text().splitlines()
    assert head.startswith("name,system,status,reason,seconds,length_difference_seconds,level_db,si_sdr,lsd")
    assert lines[0].startswith("s0/0,degraded,done,,0.5,0,")
    assert "| restored | 4 |" in (tmp_path / "out" / "report.md").read_text()


def test_a_second_run_does_what_is_missing(tmp_path, monkeypatch):
    paths, output = trees(tmp_path), tmp_path / "out"
    run(paths, output)
    calls = computed(monkeypatch)
    report = (output / "report.md").read_text()
    run(paths, output, workers=0)
    assert calls == [] and (output / "report.md").read_text() == report
    os.utime(paths["restored"] / "s0" / "0.wav", (time.time() + 10,) * 2)
    files.write(paths["clean"] / "s9" / "extra.wav", VOICES.utterance(0), RATE)
    assert run(paths, output).unpaired == 1 and calls == [("restored", "s0/0")]
    calls.clear()
    run(paths, output, Settings(("lsd",), RATE))
    assert len(calls) == 8


def test_bad_files_are_named(tmp_path):
    paths, output = trees(tmp_path, 6), tmp_path / "out"
    broken = paths["restored"]
    (broken / "s0" / "0.wav").write_bytes(b"no audio")
    (broken / "s1" / "1.wav").unlink()
    files.write(broken / "s0" / "2.wav", VOICES.utterance(2)[: RATE // 3], RATE)
    reasons = {row["name"]: row["reason"] for row in failed_rows(run(paths, output).rows)}
    assert "0.wav" in reasons["s0/0"] and "no restored file" in reasons["s1/1"] and "-0.167 s" in reasons["s0/2"]
    assert "3 of 12 rows failed" in (output / "report.md").read_text()
    files.write(broken / "s0" / "0.wav", VOICES.utterance(0), RATE)
    assert len(failed_rows(run(paths, output).rows)) == 2


def test_the_command_compares_systems_and_fails_with_a_row(tmp_path, monkeypatch, capsys):
    trees(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    folders = ("--clean", "clean", "--degraded", "degraded", "--output", "out")
    common = ["evaluate", "miipher", *folders, "--sample_rate", str(RATE)]
    assert main([*common, "--restored.ours", "restored", "--restored.theirs", "degraded"]) == 0
    output = capsys.readouterr().out
    assert "| ours | 2 |" in output and "| theirs | 2 |" in output and "pesq_wb" in output
    (tmp_path / "restored" / "s1" / "1.wav").write_bytes(b"RIFF")
    assert main([*common, "--restored", "restored"]) == 1
    assert "restored/s1/1: AudioFileError" in capsys.readouterr().out
    assert main([*common, "--restored", "restored", "--models.asr_model", "x"]) in (1, 2)
    assert "--models.asr_model and --texts belong together" in capsys.readouterr().err
