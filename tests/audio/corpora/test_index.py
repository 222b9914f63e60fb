import os
import pickle
import random
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.audio.corpora import cache, index
from zoo.audio.corpora.cache import CorpusCache, build
from zoo.audio.corpora.corpus import corpus_files
from zoo.audio.corpora.index import Column, FileIndex, Names, headers, write_names
from zoo.audio.corpora.layouts import read_corpus, utterance_files
from zoo.audio.io import files

RATE = 8000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty files are many, in blocks of seven."""
    monkeypatch.setattr(index, "LARGE", 30)
    monkeypatch.setattr(cache, "LARGE", 30)
    monkeypatch.setattr(index, "_BLOCK", 7)


def tree(root: Path, count: int = 120) -> list[Path]:
    seed = secrets.randbits(32)
    print("seed", seed)
    draw = random.Random(seed)
    for number in range(count):
        folder = root / draw.choice(["a", "a-b", "a.b", "é", "s1.wav"]) / draw.choice(["", "x", "x y", "X"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{draw.choice('aZ.ü_')}{number}{draw.choice(['.wav', '.FLAC', '.mp3', '.txt'])}").touch()
    found = (path for path in root.rglob("*") if path.suffix.lower() in files.AUDIO_SUFFIXES and path.name[0] != ".")
    return sorted(path for path in found if path.is_file())


def test_a_long_list_is_that_of_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tree(tmp_path / "in")
    assert files.walk(tmp_path / "in") == expected
    found = corpus_files(tmp_path / "cache", tmp_path / "in")
    assert isinstance(found, FileIndex) and list(found) == expected == [found[i] for i in range(len(found))]
    assert list(found.names) == list(cache.relative_names(expected)) and found[-2:] == expected[-2:]
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == expected and len(pickle.dumps(found)) < 1000
    monkeypatch.setattr(index, "LARGE", 1000)
    short = corpus_files(tmp_path / "other", tmp_path / "in")
    assert short == expected and not (tmp_path / "other").exists()


def test_a_long_list_is_opened_until_a_folder_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "in"
    tree(root)

    def listed() -> FileIndex:
        found = corpus_files(tmp_path / "cache", root)
        assert isinstance(found, FileIndex)
        return found

    first = listed()
    with monkeypatch.context() as patch:
        patch.setattr(files, "scan", lambda *_, **__: pytest.fail("looked through again"))
        assert listed().digest == first.digest
    for change in (
        lambda: (root / "a" / "new.wav").touch(),
        lambda: (root / "é" / "deep" / "er").mkdir(parents=True),
        lambda: (root / "é" / "deep" / "er" / "new.wav").touch(),
        lambda: first[3].unlink(),
        lambda: shutil.rmtree(root / "a.b"),
        lambda: (root / "a").rename(root / "c"),
    ):
        time.sleep(0.02)  # file systems count time in ticks
        change()
        assert list(listed()) == files.walk(root) and listed().digest != first.digest
    (tmp_path / "cache" / first.folder.name / "meta.json").write_text("{")
    assert list(listed()) == files.walk(root)


def test_a_listing_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def find(_: object) -> Iterator[str]:
        yield from (f"/in/{number}.wav" for number in range(50))
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        index.file_list(tmp_path / "list", find)
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".lock")] == []


def test_lists_of_files(tmp_path: Path) -> None:
    root, list_ = tmp_path / "in", tmp_path / "list"
    paths = tree(root)
    names = [path.relative_to(root).as_posix() for path in paths]
    list_.write_text("".join(f"{name}|x\n" for name in [*reversed(names), *names[:5]]))
    held_out = tmp_path / "held out"
    held_out.write_text("\n".join(names[10:13]))
    found = corpus_files(tmp_path / "cache", root, (str(list_), None), without=str(held_out))
    assert isinstance(found, FileIndex) and list(found) == paths[:10] + paths[13:]
    time.sleep(0.02)
    held_out.write_text("\n".join(names[10:14]))
    assert list(corpus_files(tmp_path / "cache", root, (str(list_), None), str(held_out))) == paths[:10] + paths[14:]


def test_utterances_of_a_large_tree_are_in_the_order_of_a_small_one(tmp_path: Path) -> None:
    for name in ("a b/1", "a/1", "a-b/2", "a.b/3", *(f"s/{i}" for i in range(40))):
        (tmp_path / "in" / f"{name}.wav").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / f"{name}.wav").touch()
    found = utterance_files(tmp_path / "in", "auto", tmp_path / "list")
    assert isinstance(found, FileIndex)
    assert list(found) == [each.path for each in read_corpus(tmp_path / "in", "tree")]


@settings(deadline=None, max_examples=40)
@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=40), place=st.integers(0, 40))
def test_names_come_back(names: list[str], place: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("names")
    digest = write_names(folder, names)
    found = Names(folder)
    assert list(found) == names == found[:] and len(found) == len(names)
    assert place >= len(names) or found[place] == names[place]
    write_names(folder, names, "same")
    assert found.equal(Names(folder, "same"))
    changed = [*names, "x"]
    assert write_names(folder, changed, "other") != digest and not found.equal(Names(folder, "other"))


def test_numbers_written_as_they_come(tmp_path: Path) -> None:
    with Column(tmp_path / "a.npy", np.int32) as column:
        for start in range(0, 5000, 7):
            column.extend(range(start, min(start + 7, 5000)))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(5000, dtype=np.int32))


def sounds(root: Path, count: int = 40) -> None:
    draw = np.random.default_rng(0)
    for number in range(count):
        files.write(root / f"s{number % 3}" / f"{number:03d}.wav", draw.uniform(-0.5, 0.5, 100 + number), RATE)


def test_a_cache_that_agreed_with_a_list_is_not_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sounds(tmp_path / "in")

    def built() -> CorpusCache:
        return build(corpus_files(tmp_path / "cache", tmp_path / "in"), tmp_path / "out", RATE, progress=False)

    former = build(files.walk(tmp_path / "in"), tmp_path / "out", RATE, progress=False)  # without a list on disk
    assert former.index is None
    with monkeypatch.context() as patch:
        patch.setattr(cache, "read_mixed", lambda *_: pytest.fail("decoded again"))
        adopted = built()
        assert adopted.key == former.key and adopted.index is not None and adopted.holds_files_of(former)
        patch.setattr(cache, "_key", lambda *_: pytest.fail("compared again"))
        assert built().key == former.key
    time.sleep(0.02)
    (tmp_path / "in" / "s0" / "000.wav").unlink()
    assert len(built()) == 39 and built().names[0] == "s0/003.wav" and not built().holds_files_of(former)


def test_a_split_by_names_is_kept(tmp_path: Path) -> None:
    sounds(tmp_path / "in")
    found = build(files.walk(tmp_path / "in"), tmp_path / "out", RATE, progress=False)
    for _ in range(2):
        train, held_out = found.split("first", lambda name: name.startswith("s0/"))
        assert [found.names[i] for i in held_out] == [name for name in found.names if name.startswith("s0/")]
        assert sorted([*train, *held_out]) == list(range(40))
    assert len(found.split("second", lambda name: name.startswith("s1/"))[1]) == 13
    np.testing.assert_array_equal(found.split("first", lambda _: pytest.fail("asked again"))[0], train)
    with pytest.raises(ValueError, match="0 of 40 clips are for validation"):
        found.split("none", lambda _: False)


def test_headers_are_read_once(tmp_path: Path) -> None:
    sounds(tmp_path / "in")
    found = corpus_files(tmp_path / "cache", tmp_path / "in")
    assert isinstance(found, FileIndex)
    asked: list[Path] = []

    def length(path: Path) -> int:
        asked.append(path)
        return -1 if path.stem == "007" else files.info(path).samples

    for _ in range(2):
        sound = headers(found, RATE, length)
        assert len(sound) == 39 == len(sound.lengths) and "s1/007.wav" not in list(sound.names)
        assert all(sound.lengths[i] == 100 + int(path.stem) for i, path in enumerate(sound))
    assert len(asked) == 40
