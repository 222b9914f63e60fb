"""Clips are identified by their paths: lists, companion files, short clips."""

import os
from pathlib import Path

import numpy as np
import pytest

from zoo.audio.corpora import corpus
from zoo.audio.io import files

RATE = 8000
NAMES = ["a/1.wav", "a/2.wav", "b/1.wav", "wavs/x.0001.flac", "3.wav", "c/3.wav"]


def write_clips(root: Path, *names: str) -> None:
    for name in names:
        files.write(root / name, np.full(1000, 0.1, np.float32), RATE)


def test_entries_name_one_clip_each() -> None:
    entries = ["a/1", "b/1.wav", "2", "x.0001", "x.0001.flac", "3", "c/3"]
    assert corpus.match_entries(entries, NAMES, Path("list")) == [0, 2, 1, 3, 3, 4, 5]


def test_misfits_are_counted_and_named() -> None:
    message = r"^list: 2 of 3 .*'1' \(2 clips: a/1\.wav, b/1\.wav\); 'a/9' \(no such clip\)"
    with pytest.raises(ValueError, match=message):
        corpus.match_entries(["1", "a/1", "a/9"], NAMES, Path("list"))
    with pytest.raises(FileNotFoundError, match=r"^list: 2 of 2 .*gone.*1\.flac"):
        corpus.match_entries(["gone", "a/1.flac"], NAMES, Path("list"))


def test_list_finds_files_inside_outside_and_behind_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_clips(root, "a/1.wav", "b/1.wav")
    write_clips(tmp_path / "other", "1.wav", "2.wav")
    os.symlink(tmp_path / "other", root / "link")
    (tmp_path / "list").write_text(f"a/1|text\n{root}/b/1.wav\n{tmp_path}/other/2\nlink/1\n")
    expected = [root / "a/1.wav", root / "b/1.wav", tmp_path / "other/2.wav", root / "link/1.wav"]
    assert corpus.corpus_files(root, (str(tmp_path / "list"), None)) == sorted(expected)
    os.symlink(root, tmp_path / "alias")
    (tmp_path / "list").write_text(f"{root}/b/1\n")
    assert corpus.corpus_files(tmp_path / "alias", (str(tmp_path / "list"), None)) == [tmp_path / "alias/b/1.wav"]


@pytest.mark.parametrize("line", [b"caf\xe9", b'{"file": "a/1"}', b'{"path": '])
def test_faulty_list_is_named_with_its_line(tmp_path: Path, line: bytes) -> None:
    write_clips(tmp_path / "root", "a/1.wav")
    (tmp_path / "list").write_bytes(b"a/1\n" + line + b"\n")
    with pytest.raises(ValueError, match=r"list:2: "):
        corpus.corpus_files(tmp_path / "root", (str(tmp_path / "list"), None))


def test_stems_and_companions() -> None:
    assert corpus.unique_stems(NAMES) == {"2": 1, "x.0001": 3}
    names = ["wavs/a/1.wav", "wavs/b/1.wav", "wavs/b/2.wav"]
    others = ["wavs/a/1.flac", "wavs/b/2.wav", "wavs/a/1.wav", "wavs/b/1.wav"]
    assert corpus.match_companions(names, others) == [[0, 2], [3], [1]]
    assert corpus.match_companions(names, ["1.wav", "2.wav"]) == [[], [], [1]]
    assert corpus.match_companions(["x.wav"], ["a/x.wav", "b/x.wav"]) == [[]]


def test_short_clips_are_named(caplog: pytest.LogCaptureFixture) -> None:
    lengths, names = np.array([100, 5, 100, 9]), ["a", "b", "c", "d"]
    assert corpus.drop_short_clips(lengths, names, range(4), 10).tolist() == [0, 2]
    assert "2 of 4 clips" in caplog.text and "b, d" in caplog.text
    assert corpus.drop_short_clips(lengths, names, range(4), 5) == range(4)
    with pytest.raises(ValueError, match=r"2 of 2 clips .* d; none is left"):
        corpus.drop_short_clips(lengths, names, [1, 3], 10)


@pytest.mark.parametrize(
    ("count", "items", "held_out"), [(26, 8, 8), (13_100, 150, 150), (26, 150, 2), (6, 150, 1), (3, 2, 2)]
)
def test_validation_is_a_share_of_small_corpora(count, items, held_out, caplog):
    caplog.set_level("INFO")
    train, val = corpus.split_last_items(count, items)
    assert (len(train), len(val), val.stop) == (count - held_out, held_out, count)
    assert (f"data.split.items is {items} for {count} clips" in caplog.text) == (held_out != items)


def test_copies_of_a_recording_are_not_divided(caplog):
    names, lengths = ["a_0.wav", "a_1.wav", "b_0.wav", "b_1.wav", "b_2.wav", "c_0.wav"], [9, 9, 8, 8, 8, 8]
    recordings = corpus.MemoryCorpus(names, [np.zeros(length, np.float32) for length in lengths])
    assert corpus.split_last_recordings(recordings, 2) == (range(2), range(2, 6))
    assert corpus.split_last_recordings(recordings, 1) == (range(5), range(5, 6)) and not caplog.text
    pieces = corpus.MemoryCorpus([f"{name}_{i}.wav" for name in "ab" for i in range(5)], [np.zeros(9, np.float32)] * 10)
    assert corpus.split_last_recordings(pieces, 2) == (range(5), range(5, 10))
    assert "5 clips are for validation in place of 2" in caplog.text


@pytest.mark.parametrize(("count", "items"), [(1, 1), (5, 0)])
def test_empty_sets_are_refused(count, items):
    with pytest.raises(ValueError, match=f"data.split.items is {items} for {count} clips"):
        corpus.split_last_items(count, items)
