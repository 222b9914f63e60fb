import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from zoo.audio.corpora.cache import CorpusCache
from zoo.audio.corpora.corpus import cache_folder
from zoo.audio.corpora.ljspeech import check, prepare, split
from zoo.audio.corpora.synthetic import write_corpus
from zoo.audio.io import files


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path / "in", 20, 16000, seconds=(0.2, 0.3))
    return tmp_path / "in"


def ids(path):
    return [line.split("|")[0] for line in path.read_text(encoding="utf-8").splitlines()]


def test_prepare_writes_manifest_lists_and_cache(corpus, tmp_path):
    facts = prepare(corpus, tmp_path / "out", tmp_path / "cache", 16000, expected=20, strict=True, progress=False)
    assert (facts["utterances"], facts["train"], facts["val"], facts["bad"]) == (20, 18, 2, [])
    rows = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    cache = CorpusCache(cache_folder(tmp_path / "cache", corpus, 16000))
    place = {Path(name).stem: index for index, name in enumerate(cache.names)}
    assert [row["samples"] for row in rows] == [cache.lengths[place[row["id"]]] for row in rows]
    np.testing.assert_array_equal(cache.read(place[rows[4]["id"]]), files.read_mono(corpus / rows[4]["path"]))
    train, val = ids(tmp_path / "out" / "train.txt"), ids(tmp_path / "out" / "val.txt")
    assert val == sorted(row["id"] for row in rows)[-2:] and sorted(train + val) == sorted(row["id"] for row in rows)


def test_count_and_missing_files_warn_or_fail(corpus, caplog):
    (corpus / "wavs" / "SP001-0001.wav").unlink()
    (corpus / "wavs" / "SP002-0002.wav").write_bytes(b"")
    assert len(check(corpus)) == 18
    assert "expected 13100 utterances, found 18" in caplog.text
    assert "2 utterances have no sound audio: wavs/SP001-0001.wav or .flac is missing" in caplog.text
    with pytest.raises(ValueError, match="2 utterances"):
        check(corpus, strict=True)


def test_wrong_layouts_are_named(corpus, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metadata\.csv"):
        check(tmp_path)
    metadata = corpus / "metadata.csv"
    text = metadata.read_text()
    for line in ("SP001-0001|again|again\n", "no separator\n", "../up|a|a\n"):
        metadata.write_text(text + line)
        with pytest.raises(ValueError, match=r"metadata\.csv:21"):
            check(corpus)


def test_lists_of_the_original(corpus, tmp_path, caplog):
    entries = check(corpus, expected=20)
    with pytest.raises(FileNotFoundError, match=r"training\.txt"):
        split(entries, tmp_path)
    (tmp_path / "training.txt").write_text("SP001-0001|a|a\nSP002-0002|b|b\nLJ001-0001|c|c\n")
    (tmp_path / "validation.txt").write_text("SP003-0003|d|d\n")
    train, val = split(entries, tmp_path)
    assert [e.id for e in train] == ["SP001-0001", "SP002-0002"] and [e.id for e in val] == ["SP003-0003"]
    assert "1 of its 3 ids" in caplog.text
    (tmp_path / "validation.txt").write_text("SP001-0001|d|d\n")
    with pytest.raises(ValueError, match="share 1 ids"):
        split(entries, tmp_path)


def test_full_set_holds_out_150():
    from zoo.audio.corpora.ljspeech import Entry

    entries = [Entry(f"LJ{i:05d}", "", 1, 22050, "") for i in range(13100)]
    train, val = split(entries)
    assert len(train) == 12950 and len(val) == 150 and val[-1].id == "LJ13099"


@pytest.mark.shared
def test_real_recordings(shared, tmp_path):
    facts = prepare(shared / "data" / "ljspeech", tmp_path, tmp_path / "cache", progress=False)
    rows = (shared / "data" / "ljspeech" / "metadata.csv").read_text(encoding="utf-8").splitlines()
    assert facts["utterances"] == len(rows) and facts["bad"] == []
    cache = CorpusCache(cache_folder(tmp_path / "cache", shared / "data" / "ljspeech", 22050))
    assert cache.sample_rate == 22050 and cache.names[0] == "wavs/LJ001-0001.flac"
    source = files.read_mono(shared / "data" / "ljspeech" / "wavs" / "LJ001-0001.flac")
    np.testing.assert_array_equal(cache.read(0, 8000, 22050), source[8000:30050])


def test_script_reports_and_fails_with_one_line(corpus, tmp_path, repository):
    command = [sys.executable, str(repository / "scripts" / "prepare_ljspeech.py")]
    options = ["--output", str(tmp_path / "out"), "--sample-rate", "16000"]
    done = subprocess.run([*command, str(corpus), *options], capture_output=True, text=True, check=True)
    assert "train: 18" in done.stdout and "expected 13100 utterances, found 20" in done.stderr
    failed = subprocess.run([*command, str(corpus), *options, "--strict"], capture_output=True, text=True)
    assert failed.returncode == 1 and "error: " in failed.stderr and "Traceback" not in failed.stderr


def test_ids_may_have_a_suffix(corpus):
    path = corpus / "metadata.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(line.replace("|", ".wav|", 1) + "\n" for line in lines), encoding="utf-8")
    entries = check(corpus, strict=True, expected=20)
    assert entries[0].id == "SP001-0001" and entries[0].text
