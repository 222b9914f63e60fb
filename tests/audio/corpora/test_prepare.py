import json

import numpy as np
import pytest

from zoo.audio.corpora.cache import CorpusCache
from zoo.audio.corpora.corpus import cache_dir
from zoo.audio.corpora.prepare import prepare
from zoo.audio.corpora.synthetic import write_synthetic_corpus
from zoo.audio.io import files


@pytest.fixture
def corpus(tmp_path):
    write_synthetic_corpus(tmp_path / "in", 20, 16000, seconds=(0.2, 0.3))
    return tmp_path / "in"


def run(corpus, tmp_path, **options):
    return prepare("ljspeech", [corpus], tmp_path / "out", tmp_path / "cache", 16000, **options)


def test_ljspeech_gets_manifest_lists_and_cache(corpus, tmp_path):
    facts = run(corpus, tmp_path, strict=True)
    assert (facts["utterances"], facts["without_text"], facts["bad"]) == (20, 0, 0)
    rows = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    cache = CorpusCache(cache_dir(tmp_path / "cache", corpus, 16000))
    numbers = {name: number for number, name in enumerate(cache.names)}
    assert [row["samples"] for row in rows] == [cache.lengths[numbers[row["path"]]] for row in rows]
    np.testing.assert_array_equal(cache.read(numbers[rows[4]["path"]]), files.read_mono(corpus / rows[4]["path"]))
    train, val = (
        [line.split("|")[0] for line in (tmp_path / "out" / f"{name}.txt").read_text().splitlines()]
        for name in ("train", "val")
    )
    ids = sorted(row["id"] for row in rows)
    assert val == ids[-2:] and train == ids[:-2]


def test_missing_and_bad_files_warn_or_fail(corpus, tmp_path, caplog):
    (corpus / "wavs" / "SP001-0001.wav").unlink()
    (corpus / "wavs" / "SP002-0002.wav").write_bytes(b"")
    assert run(corpus, tmp_path)["utterances"] == 18
    for words in ("1 listed files are missing: SP001", "1 of 19 files are"):
        assert words in caplog.text
    with pytest.raises(ValueError, match="1 of 19"):
        run(corpus, tmp_path, strict=True)
