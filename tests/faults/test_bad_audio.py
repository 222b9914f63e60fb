"""Bad audio among good: a few files are named and left out, too many end the run, `predict` reports each."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.audio.bad_audio import BAD, ODD, RATE, corpus
from tests.harness import SMOKE, TOY_ARGS, TOY_FIT, error_line, forked, good
from zoo.audio.corpora.corpus import CorpusOptions
from zoo.audio.io import files
from zoo.hifigan.data import ValidationSplit, VocoderData
from zoo.runs.inference.predict import read_manifest

FIT = [
    "fit", "--config", SMOKE, "--trainer.max_steps=2", "--trainer.limit_val_batches=0", "--checkpoints.monitor=null",
    f"--data.init_args.sample_rate={RATE}",
]  # fmt: skip


def data(root: Path, max_bad_share: float = 0.1, **arguments) -> VocoderData:
    settings = {"sample_rate": RATE, "segment_samples": 2048, "batch_size": 6} | arguments
    options = CorpusOptions(str(root.parent / "cache"), max_bad_share)
    made = VocoderData(root=str(root), split=ValidationSplit(items=2), corpus=options, **settings)
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


def test_twenty_per_cent_bad_files_abort(tmp_path):
    root = corpus(tmp_path / "many", 32, *list(BAD)[:8])
    run = [f"--data.init_args.root={root}", f"--trainer.default_root_dir={tmp_path / 'run'}"]
    result = forked(*FIT, *run, cwd=tmp_path)
    assert result.returncode == 1
    assert "max_bad_share" in error_line(result) and "of 40 audio files are bad" in error_line(result)


def test_predict_reports_each_file_and_computes_the_others(tmp_path):
    good(forked(*TOY_FIT, "--trainer.max_steps=1", f"--trainer.default_root_dir={tmp_path / 'run'}", cwd=tmp_path))
    root = corpus(tmp_path / "in", 5, *BAD, *ODD)
    paths = ["--ckpt_path", tmp_path / "run", "--input", root, "--output", tmp_path / "out"]
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


def assert_states_what_is_left_out(message: str, root: Path) -> None:
    (line,) = [line for line in message.splitlines() if f"{root}: left out " in line]
    links = "1 broken link", f"1 linked folder ({root / 'linked'})"
    assert all(part in line for part in ("1 .aiff", "1 .m4a", "1 .w64", *links, r"\xe9t\xe9.wav"))


def test_fit_names_what_is_left_out(mixed: Path, tmp_path: Path) -> None:
    options = ["--data.init_args.split.items=1", "--data.init_args.batch_size=2", "--trainer.max_steps=1"]
    run = [f"--data.init_args.root={mixed}", f"--trainer.default_root_dir={tmp_path / 'run'}"]
    result = good(forked(*FIT, *options, *run, cwd=tmp_path))
    assert_states_what_is_left_out(result.stderr, mixed)
    assert "2 items to train on" in result.stdout + result.stderr


def test_degrade_names_what_is_left_out_and_a_text_in_another_encoding(mixed: Path, tmp_path: Path) -> None:
    options = ["--copies", 1, "--val_items", 1, "--sample_rate", 16000]
    result = good(forked("degrade", mixed, tmp_path / "out", *options, cwd=tmp_path))
    assert_states_what_is_left_out(result.stderr, mixed)
    assert "done 3" in result.stdout and f"{mixed / 'a.txt'}:1: " in result.stderr
