import logging
from pathlib import Path

import pytest
import torch
from PIL import Image

from zoo.flow import ImageData, PooledTransport


def digits(**kwargs: object) -> ImageData:
    data = ImageData(**{"image_resolution": 8, "channels": 1, "batch_size": 4, "max_per_class": 20, **kwargs})
    data.setup("fit")
    return data


def folder(root: Path, cache: Path | None = None, **kwargs: object) -> ImageData:
    caches = None if cache is None else str(cache)
    return ImageData(str(root), **{"image_resolution": 4, "batch_size": 2, "cache": caches, **kwargs})


def write(folder: Path, count: int, value: int) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", (10, 6), (value, i, 255)).save(folder / f"{i:02d}.png")


def afhq(root: Path, val_part: str = "val") -> None:
    for part, count in (("train", 3), (val_part, 2)):
        for name in ("cat", "dog"):
            write(root / part / name, count, 9)


def test_digits_are_scaled_labelled_and_split() -> None:
    data = digits()
    assert (len(data.train_set), len(data.val_set)) == (180, 20) and data.classes == [str(k) for k in range(10)]
    assert data.sample_shape == (1, 8, 8)
    batch = data.train_set.__getitems__([(0, i) for i in range(180)])
    assert batch["label"].bincount().tolist() == [0] + [18] * 10 and batch["label"][0] == 1
    assert float(batch["x1"].min()) == -1 and float(batch["x1"].max()) == 1
    assert not set(data.train_set.indices) & set(data.val_set.indices)


def test_limits_pools_and_flips_are_as_stated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        plain = digits()
    assert "at most the first 20 of each class, by max_per_class" in caplog.text
    for limit in (None, 0):
        everything = digits(max_per_class=limit)
        assert len(everything.train_set) + len(everything.val_set) == 1797
    keys = [(0, i) for i in range(180)]
    pooled, flipped = digits(pooled=PooledTransport()), digits(flips=True)
    batches = [data.train_set.__getitems__(keys) for data in (plain, pooled, flipped)]
    assert not torch.equal(batches[0]["x0"], batches[1]["x0"]) and torch.equal(batches[0]["x1"], batches[1]["x1"])
    assert not torch.equal(batches[0]["x1"], batches[2]["x1"])
    for data in (pooled, flipped):  # training alone
        assert all(torch.equal(plain.val_set[3][key], data.val_set[3][key]) for key in ("x0", "x1"))


def test_train_and_val_folders_are_the_sets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    afhq(tmp_path / "afhq", "validation")
    data = folder(tmp_path / "afhq", tmp_path / "cache")
    with caplog.at_level(logging.INFO):
        data.setup("fit")
    assert (data.train_set.labels.tolist(), data.val_set.labels.tolist()) == ([1, 1, 1, 2, 2, 2], [1, 1, 2, 2])
    assert "6 images (cat 3, dog 3), resized to 4 x 4" in caplog.text and "4 images (cat 2, dog 2)" in caplog.text
    assert len(list((tmp_path / "cache").glob("afhq-*.npy"))) == 2
    write(tmp_path / "afhq" / "validation" / "wild", 1, 9)
    with pytest.raises(ValueError, match=r"has the classes .*'dog'\], .*'wild'\]"):
        data.setup("fit")


def test_a_split_is_two_folders_in_any_case(tmp_path: Path) -> None:
    for name in ("bus", "car", "train"):
        write(tmp_path / "vehicles" / name, 10, 0)
    assert folder_without_cache(tmp_path / "vehicles").classes == ["bus", "car", "train"]
    afhq(tmp_path / "set")
    for name in ("train", "val"):
        (tmp_path / "set" / name).rename(tmp_path / "set" / name.title())
    data = folder_without_cache(tmp_path / "set")
    assert data.classes == ["cat", "dog"] and len(data.train_set) == 6


def folder_without_cache(root: Path) -> ImageData:
    data = folder(root)
    data.setup("fit")
    return data


@pytest.mark.parametrize("cached", [False, True])
def test_a_share_of_broken_images_is_left_out(tmp_path: Path, cached: bool, caplog: pytest.LogCaptureFixture) -> None:
    afhq(tmp_path / "set")
    images, cache = tmp_path / "set" / "train", tmp_path / "cache" if cached else None
    full = folder_without_cache(tmp_path / "set")
    (images / "cat" / "01.png").write_bytes(b"x")
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        data = folder(tmp_path / "set", cache, max_bad_share=0.2)
        data.prepare_data()
        assert "cat/01.png" in caplog.text
        data.setup("fit")
        assert data.train_set.labels.tolist() == [1, 1, 2, 2, 2] and len(data.val_set) == len(full.val_set)
        expected = [full.train_set[0, item]["x1"] for item in (0, 2, 3, 4, 5)]
        assert torch.equal(torch.stack([data.train_set[0, item]["x1"] for item in range(5)]), torch.stack(expected))
    for number in range(3):
        (images / "cat" / f"{number:02d}.png").write_bytes(b"x")
    for share, message in ((0.1, r"3 of 6 images cannot be read, .*cat/00\.png"), (0.9, "no image .* classes cat")):
        with pytest.raises(ValueError, match=message):
            folder(tmp_path / "set", cache, max_bad_share=share).setup("fit")


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "cat", 3, 1)
    write(tmp_path / "empty", 0, 1)
    for make, message in (
        (lambda: ImageData("a", "b/c"), r"only one of root \(a\) and hub \(b/c\)"),
        (lambda: folder(tmp_path).setup("fit"), "so none is for validation"),
        (lambda: folder(tmp_path / "empty").setup("fit"), "has no images"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
