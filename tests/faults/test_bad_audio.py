"""Bad audio among good: a few files are named and left out, `predict` reports each."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.audio.bad_audio import BAD, ODD, RATE, corpus
from tests.harness import TOY_ARGS, forked, good
from zoo.audio.corpora.corpus import CorpusOptions
from zoo.audio.io import files
from zoo.hifigan.data import ValidationSplit, VocoderData
from zoo.runs.inference.predict import read_manifest


def data(root: Path, max_bad_share: float = 0.1, items: int = 2, batch_size: int = 6) -> VocoderData:
    options = CorpusOptions(str(root.parent / "cache"), max_bad_share)
    split = ValidationSplit(items=items)
    made = VocoderData(str(root), RATE, segment_samples=2048, split=split, corpus=options, batch_size=batch_size)
    made.prepare_data()
    made.setup("fit")
    return made


def test_bad_files_are_named_and_left_out(tmp_path, caplog):
    root = corpus(tmp_path / "corpus", 19, *BAD)
    for _ in range(2):  # when the cache is written and when it is found
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            made = data(root, max_bad_share=0.5)
        assert all(str(root / name) in caplog.text for name in BAD)
        assert len(made.train_set) == 17
        assert all(torch.isfinite(batch["audio"]).all() for batch in made.train_dataloader())


def test_odd_files_are_trained_on(tmp_path, caplog):
    made = data(corpus(tmp_path / "corpus", 2, *ODD), batch_size=1)
    assert not caplog.records
    assert len(made.train_set) + len(made.val_set) == 2 + len(ODD)
    crops = torch.cat([batch["audio"] for batch in made.train_dataloader()])
    assert torch.isfinite(crops).all()
    assert float(crops.abs().max()) <= 0.951


def test_predict_reports_each_file_and_computes_the_others(reference, tmp_path):
    root = corpus(tmp_path / "in", 5, *BAD, *ODD)
    paths = ["--ckpt_path", reference, "--input", root, "--output", tmp_path / "out"]
    result = forked("predict", *TOY_ARGS, *paths, cwd=tmp_path, timeout=60)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    rows = {Path(row["source"]).name: row for row in read_manifest(tmp_path / "out" / "manifest.jsonl")}
    assert {name for name, row in rows.items() if row["status"] == "failed"} == set(BAD)
    assert all(str(root / name) in rows[name]["error"] and "\n" not in rows[name]["error"] for name in BAD)
    assert all(str(root / name) in result.stderr for name in BAD)
    assert f"failed {len(BAD)}" in result.stdout
    written = [path for path in (tmp_path / "out").rglob("*") if path.suffix == ".wav"]
    assert len(written) == 5 + len(ODD)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Three clips, and beside them what no command reads."""
    for number, name in enumerate(("corpus/a.wav", "corpus/b.wav", "corpus/deep/c.wav", "elsewhere/d.wav")):
        files.write(tmp_path / name, np.random.default_rng(number).normal(0, 0.1, 12000), RATE)
    root = tmp_path / "corpus"
    for name in ("e.m4a", "f.w64", "deep/g.aiff"):
        (root / name).touch()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "broken.wav").symlink_to(tmp_path / "gone.wav")
    (root / "a.txt").write_bytes("café".encode("latin-1"))
    try:
        os.link(root / "a.wav", os.fsencode(root) + b"/\xe9t\xe9.wav")
    except OSError:
        pytest.skip("the file system refuses names that are not UTF-8")
    return root


def test_what_is_left_out_is_named_and_a_text_in_another_encoding(mixed: Path, tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(data(mixed, items=1, batch_size=2).train_set) == 2
    arguments = ["--copies", 1, "--val_items", 1, "--sample_rate", 16000]
    degraded = good(forked("degrade", mixed, tmp_path / "out", *arguments, cwd=tmp_path))
    assert "done 3" in degraded.stdout and f"{mixed / 'a.txt'}:1: " in degraded.stderr
    links = "1 broken link", f"1 linked folder ({mixed / 'linked'})"
    for text in (caplog.text, degraded.stderr):
        (line,) = [line for line in text.splitlines() if f"{mixed}: left out " in line]
        assert all(part in line for part in ("1 .aiff", "1 .m4a", "1 .w64", *links, r"\xe9t\xe9.wav"))
