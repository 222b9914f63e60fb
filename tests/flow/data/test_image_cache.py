import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.harness import run_process
from zoo.flow.data.image_cache import STALE_SECONDS, ImageCache, build
from zoo.flow.data.image_sets import ImageSet
from zoo.flow.data.images import DecodedImages, FileImages, Framing


def pictures(folder: Path, count: int = 5) -> FileImages:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return FileImages(folder, sorted(folder.iterdir()))


def as_set(source: FileImages) -> ImageSet:
    return ImageSet("deep/some set/train", ["a"], [1] * len(source), source)


def make(tmp_path: Path, source: FileImages) -> ImageCache:
    return build(as_set(source), tmp_path / "cache", Framing(4, 3))


def test_cache_serves_what_decoding_gives(tmp_path: Path) -> None:
    source = pictures(tmp_path / "a")
    cache = make(tmp_path, source)
    assert torch.equal(cache([4, 0, 4]), DecodedImages(source, Framing(4, 3))([4, 0, 4]))
    assert cache([1]).shape == (1, 3, 4, 4)
    assert torch.equal(pickle.loads(pickle.dumps(cache))([2]), cache([2]))
    assert len(pickle.dumps(cache)) < 500
    assert cache.path.name.startswith("some-set-train-4x3-") and cache.path.stat().st_size == 128 + 5 * 48


def test_images_are_read_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pictures(tmp_path / "a")
    first = make(tmp_path, source)
    with monkeypatch.context() as patch:
        patch.setattr(FileImages, "open", lambda *args: pytest.fail("was decoded again"))
        assert make(tmp_path, source).checksum == first.checksum
    Image.new("RGB", (9, 7)).save(source.paths[2])
    second = make(tmp_path, source)
    assert second.path != first.path and second.checksum != first.checksum
    assert float(second([2]).max()) == -1 and float(first([2]).max()) > -1
    assert build(as_set(source), tmp_path / "cache", Framing(8, 1))([0]).shape == (1, 1, 8, 8)


def test_a_damaged_cache_is_built_anew(tmp_path: Path) -> None:
    source = pictures(tmp_path / "a")
    first = make(tmp_path, source)
    path, expected = first.path, first([0, 1, 2, 3, 4])
    for damage in (
        lambda: path.write_bytes(path.read_bytes()[:-10]),
        lambda: path.write_bytes(b""),
        lambda: np.save(path, np.zeros((5, 4, 4), dtype=np.uint8)),
        path.with_suffix(".json").unlink,
    ):
        damage()
        with pytest.raises((ValueError, OSError, EOFError)):
            ImageCache(path)
        assert torch.equal(make(tmp_path, source)([0, 1, 2, 3, 4]), expected)


def die_halfway(folder: Path) -> None:
    source = pictures(folder / "a")
    opened = FileImages.pixels

    def pixels(self: FileImages, index: int, *how: object) -> np.ndarray:
        if index == 3:
            time.sleep(0.2)  # until the others are written
            os._exit(9)
        return opened(self, index, *how)

    FileImages.pixels = pixels
    make(folder, source)


def test_a_killed_build_is_no_cache_and_is_swept(tmp_path: Path) -> None:
    exit_code = run_process(die_halfway, tmp_path)
    (left,) = (tmp_path / "cache").iterdir()
    assert exit_code == 9 and left.name.startswith(".some-set-")
    source = FileImages(tmp_path / "a", sorted((tmp_path / "a").iterdir()))
    cache = make(tmp_path, source)
    assert torch.equal(cache([3]), DecodedImages(source, Framing(4, 3))([3]))
    assert left.exists()  # as long as it may belong to another process that builds
    cache.path.unlink()
    os.utime(left, (0, time.time() - 2 * STALE_SECONDS))
    make(tmp_path, source)
    assert not left.exists()
