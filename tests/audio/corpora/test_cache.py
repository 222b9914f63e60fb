import multiprocessing
import os
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.audio.corpora.cache import CorpusCache, build_cache
from zoo.audio.corpora.corpus import read_normalized
from zoo.audio.io import files

RATE = 16000


def corpus(folder, count=5, rate=RATE, samples=1000):
    rng = np.random.default_rng(0)
    paths = [folder / "in" / f"sub{i % 2}" / f"é{i:03d}.wav" for i in range(count)]
    for i, path in enumerate(paths):
        files.write(path, rng.uniform(-0.8, 0.8, samples + 10 * i), rate)
    return paths


def entries(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    paths = corpus(folder)
    return paths, build_cache(paths, folder / "out", RATE)


def test_index(built):
    paths, built_cache = built
    assert len(built_cache) == 5 and built_cache.sample_rate == RATE and built_cache.unreadable == {}
    assert list(built_cache.names) == [path.relative_to(paths[0].parents[1]).as_posix() for path in paths]
    assert built_cache.names[-1] == "sub0/é004.wav" and built_cache.names[1:3] == ["sub1/é001.wav", "sub0/é002.wav"]
    assert built_cache.lengths.tolist() == [1000, 1010, 1020, 1030, 1040]
    for i, path in enumerate(paths):
        assert built_cache.peaks[i] == np.abs(files.read_mono(path)).max()
    assert entries(built_cache.folder.parent) == ["in", "out"]


@given(data=st.data())
def test_read_equals_the_slice_of_the_source(built, data):
    paths, built_cache = built
    index = data.draw(st.integers(0, 4))
    source = files.read_mono(paths[index])
    start = data.draw(st.integers(0, len(source) - 1))
    samples = data.draw(st.integers(-1, 2000))
    piece = built_cache.read(index, start, samples)
    assert piece.dtype == np.float32
    np.testing.assert_array_equal(piece, source[start:] if samples == -1 else source[start : start + samples])


def test_pickles_small_and_reads_after_fork(built):
    data = pickle.dumps(built[1])
    assert len(data) < 1000
    np.testing.assert_array_equal(pickle.loads(data).read(2), built[1].read(2))
    child = os.fork()
    if child == 0:
        os._exit(0 if len(built[1].read(1)) == 1010 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_built_once_and_again_when_something_changes(tmp_path):
    paths = corpus(tmp_path)
    first = build_cache(paths, tmp_path / "out", RATE)
    written = (tmp_path / "out" / "audio.i16").stat()
    assert build_cache(paths, tmp_path / "out", RATE).key == first.key
    assert (tmp_path / "out" / "audio.i16").stat().st_ino == written.st_ino
    of_first = pickle.dumps(first)
    assert build_cache(paths, tmp_path / "out", 8000).sample_rate == 8000
    with pytest.raises(ValueError, match="anew, of other files"):
        pickle.loads(of_first)  # as a worker gets it
    files.write(paths[0], np.full(7, 0.25), RATE)
    os.utime(paths[0], ns=(1, 1))
    assert build_cache(paths, tmp_path / "out", RATE).lengths[0] == 7
    (tmp_path / "out" / "audio.i16").write_bytes(b"")
    with pytest.raises(ValueError):
        CorpusCache(tmp_path / "out")
    assert build_cache(paths, tmp_path / "out", RATE).lengths[0] == 7


def test_kill_9_leaves_nothing_and_the_next_build_is_whole(tmp_path):
    paths = corpus(tmp_path, 40, samples=200000)
    child = multiprocessing.get_context("spawn").Process(target=build_cache, args=(paths, tmp_path / "out", RATE))
    child.start()
    journal = tmp_path / ".out.partial" / "journal.jsonl"
    while not journal.is_file() or journal.read_text().count("\n") < 5:
        assert child.is_alive()
        time.sleep(0.001)
    child.kill()
    child.join()
    assert not (tmp_path / "out").exists()
    built_cache = build_cache(paths, tmp_path / "out", RATE)
    for index, path in enumerate(paths):
        np.testing.assert_array_equal(built_cache.read(index), files.read_mono(path))


def test_bad_files_are_left_out_up_to_a_share_that_counts_anew(tmp_path, caplog):
    paths = corpus(tmp_path, 20)
    paths[3].write_bytes(paths[3].read_bytes()[:500])
    files.write(paths[7], np.ones(1), 192000)
    built_cache = build_cache(paths, tmp_path / "out", RATE)
    assert len(built_cache) == 18 and list(built_cache.unreadable) == ["sub1/é003.wav", "sub1/é007.wav"]
    assert "cut" in built_cache.unreadable["sub1/é003.wav"] and "é003.wav" in caplog.text
    assert "too short for one sample at" in built_cache.unreadable["sub1/é007.wav"]
    np.testing.assert_array_equal(built_cache.read(3), files.read_mono(paths[4]))
    for folder in ("out", "new"):
        with pytest.raises(ValueError, match=r"\d of 20 .*é003\.wav"):
            build_cache(paths, tmp_path / folder, RATE, max_bad_share=0.04)
    assert entries(tmp_path) == ["in", "out"]


@pytest.mark.parametrize(("peak_db", "subtype"), [(-50, "PCM_24"), (-80, "FLOAT"), (8, "FLOAT")])
def test_quiet_files_and_those_beyond_full_scale_keep_level_and_precision(tmp_path, peak_db, subtype):
    loud = np.random.default_rng(1).uniform(-1, 1, RATE)
    files.write(tmp_path / "a.wav", loud / np.abs(loud).max() * 10 ** (peak_db / 20), RATE, subtype)
    corpus = build_cache([tmp_path / "a.wav"], tmp_path / "out", RATE)
    source = files.read_mono(tmp_path / "a.wav").astype(np.float64)  # what the file itself holds
    peak = np.abs(source).max()
    np.testing.assert_allclose(corpus.read(0), source, atol=3e-5 * peak)
    assert corpus.peaks[0] == pytest.approx(peak, rel=3e-5)
    assert read_normalized(corpus, 0, False, 0, -1).abs().max() == pytest.approx(min(peak, 1), rel=1e-4)
    audio = read_normalized(corpus, 0, True, 0, -1).numpy().astype(np.float64)
    expected = source / peak * 0.95
    assert 10 * np.log10(np.sum(expected**2) / np.sum((audio - expected) ** 2)) >= 80


def test_other_folders_are_refused(tmp_path):
    paths = corpus(tmp_path, 1)
    with pytest.raises(ValueError, match="not a corpus cache"):
        build_cache(paths, tmp_path / "in", RATE)
    with pytest.raises(FileNotFoundError, match="no corpus cache"):
        CorpusCache(tmp_path)
