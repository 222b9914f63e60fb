import logging
import pickle
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from zoo.flow.data import image_sets
from zoo.flow.data.images import Framing


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def test_folders_are_classes_in_sorted_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("dog/b.JPG", "dog/a.png", "cat/deep/er/x.jpeg", "dog/._a.png", "dog/notes/y.webp"):
        touch(tmp_path / name) if not name.endswith("._a.png") else (tmp_path / name).write_bytes(b"resource fork")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "readme.txt").write_text("x")
    with caplog.at_level(logging.WARNING):
        found = image_sets.folder(tmp_path)
    assert found.classes == ["cat", "dog"] and found.labels == [1, 2, 2, 2]
    assert [found.source.name(i) for i in range(4)] == ["cat/deep/er/x.jpeg", "dog/a.png", "dog/b.JPG",
                                                           "dog/notes/y.webp"]  # fmt: skip
    assert found.counts() == {"cat": 1, "dog": 3}
    assert "skipped folders without images: .hidden, empty" in caplog.text
    assert image_sets.folder(tmp_path, limit=1).counts() == {"cat": 1, "dog": 1}


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        image_sets.folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no folder with images"):
        image_sets.folder(tmp_path)


def test_digits_are_scikit_learns() -> None:
    found = image_sets.digits()
    assert len(found.labels) == 1797 and found.classes == [str(k) for k in range(10)]
    pixels = found.source.pixels(0, Framing(8, 1))
    assert pixels.max() <= 255 and found.labels[0] == 1
    assert set(image_sets.digits(5).counts().values()) == {5}


def test_npz_files(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    path = tmp_path / "a.npz"
    np.savez(path, images=images, labels=[7, 3, 3, 7, 3, 7])
    found = image_sets.npz(path, limit=2)
    assert found.classes == ["3", "7"] and found.labels == [2, 1, 1, 2]
    assert np.array_equal(found.source.images, images[:4])
    np.savez(path, images=images[..., 0], labels=np.array([0, 2, 2, 0, 0, 0], dtype=np.uint8), classes=["a", "b", "c"])
    found = image_sets.npz(path)
    assert found.classes == ["a", "b", "c"] and found.labels == [1, 3, 3, 1, 1, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": [1, 2]}, "found none"),
        ({"images": np.zeros((2, 4, 4)), "labels": [1, 2]}, r"found \(2, 4, 4\) float64"),
        ({"images": np.zeros((2, 4, 4, 2), dtype=np.uint8), "labels": [1, 2]}, r"\(2, 4, 4, 2\)"),
        ({"images": np.zeros((2, 4, 4), dtype=np.uint8)}, "labels with one whole number per image, found none"),
        ({"images": np.zeros((2, 4, 4), dtype=np.uint8), "labels": [1.0, 2.0]}, "float64"),
        ({"images": np.zeros((2, 4, 4), dtype=np.uint8), "labels": [1]}, r"found \(1,\)"),
        ({"images": np.zeros((1, 4, 4), dtype=np.uint8), "labels": [3], "classes": ["a"]}, "labels run from 3 to 3"),
        ({"images": np.array([[["x", object]]], dtype=object), "labels": [3]}, "cannot be read as npz"),
    ],
)
def test_wrong_npz_files_are_explained(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=rf"a\.npz: .*{message}"):
        image_sets.npz(tmp_path / "a.npz")


def test_broken_npz_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 4, 4), dtype=np.uint8), labels=[1, 2])
    whole = (tmp_path / "a.npz").read_bytes()
    for content in (b"", b"nothing", whole[: len(whole) // 2]):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz: cannot be read"):
            image_sets.npz(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"b\.npz"):
        image_sets.npz(tmp_path / "b.npz")


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_held_out_items_are_as_many_of_each_class(seed: int | None) -> None:
    labels = [1 + (i % 3) for i in range(300)]
    chosen = image_sets.held_out(labels, 5, seed)
    assert [sum(c for c, label in zip(chosen, labels, strict=True) if label == k) for k in (1, 2, 3)] == [20, 20, 20]
    assert chosen == image_sets.held_out(labels, 5, seed)
    assert (chosen == image_sets.held_out(labels, 5, 2)) is False
    if seed is None:
        assert [i for i, c in enumerate(chosen) if c][:4] == [12, 13, 14, 27]


class ClassLabel:
    names = ("cat", "dog")


class Rows:
    """Stands in for a Dataset of the package datasets."""

    def __init__(self, labels: list[int], label: object) -> None:
        self.features = {"image": type("Image", (), {})(), "label": label}
        self.labels = labels

    def __getitem__(self, key: int | str) -> object:
        if isinstance(key, str):
            return self.labels
        return {"image": Image.new("RGB", (5, 5), (key, 0, 0)), "label": self.labels[key]}


def install(monkeypatch: pytest.MonkeyPatch, splits: dict[str, Rows]) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = lambda name: splits
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_sets_of_the_hub_have_two_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"train": Rows([0, 1, 1, 1], ClassLabel()), "test": Rows([1, 0], ClassLabel())})
    train, held = image_sets.hub("user/name", limit=2)
    assert train.classes == ["cat", "dog"] and train.labels == [1, 2, 2] and held.labels == [2, 1]
    assert train.source.pixels(2, Framing(4, 3))[0, 0].tolist() == [2, 0, 0]
    assert len(image_sets.hub("user/name")[0].source) == 4
    install(monkeypatch, {"train": Rows([0], ClassLabel())})
    assert len(image_sets.hub("user/name")) == 1


def test_the_package_datasets_gives_what_is_expected_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for name, grey in (("cat", 50), ("dog", 200)):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8), (grey + number,) * 3).save(tmp_path / "set" / split / name / f"{number}.png")
    datasets = pytest.importorskip("datasets")  # the extra images
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    train, held = image_sets.hub(str(tmp_path / "set"), limit=2)
    assert train.classes == held.classes == ["cat", "dog"] and train.labels == held.labels == [1, 1, 2, 2]
    pixels = [int(train.source.pixels(index, Framing(8, 1)).flatten()[0]) for index in range(4)]
    assert [abs(found - grey) < 60 for found, grey in zip(pixels, (50, 50, 200, 200), strict=True)] == [True] * 4
    assert train.source.stamp(0) != held.source.stamp(0)


def test_what_the_hub_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install zoo\[images\]"):
        image_sets.hub("user/name")
    install(monkeypatch, {"all": Rows([0], ClassLabel())})
    with pytest.raises(ValueError, match="no split train, but all"):
        image_sets.hub("user/name")
    install(monkeypatch, {"train": Rows([0], 3)})
    with pytest.raises(ValueError, match=r"found image \(Image\), label \(int\)"):
        image_sets.hub("user/name")
    install(monkeypatch, {"train": Rows([0, -1], ClassLabel())})
    with pytest.raises(ValueError, match="images without class"):
        image_sets.hub("user/name")


def test_cifar10_in_its_binary_version(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (12, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(12) % 2
    for number, part in enumerate([*(f"data_batch_{each}" for each in range(1, 6)), "test_batch"]):
        rows[2 * number : 2 * number + 2].tofile(tmp_path / f"{part}.bin")
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\n\n")
    train, test = image_sets.cifar10(tmp_path)
    assert (len(train.labels), len(test.labels)) == (10, 2) and train.classes == ["airplane", "automobile"]
    assert train.labels[:3] == [1, 2, 1]
    pixels = np.asarray(train.source.open(3))
    assert pixels.shape == (32, 32, 3) and pixels[1, 2, 0] == rows[3, 1 + 32 + 2] and pixels[1, 2, 2] == rows[3, 2083]
    assert [len(each.labels) for each in image_sets.cifar10(tmp_path, 1)] == [2, 2]
    (tmp_path / "data_batch_2.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"data_batch_2.bin: 3 bytes, no multiple of 3073"):
        image_sets.cifar10(tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"no data_batch_2\.bin"):
        image_sets.cifar10(tmp_path)


def batch(path, count, side=4, first=0, save=np.savez, **changes):
    rows = np.random.default_rng(count).integers(0, 256, (count, 3 * side * side), dtype=np.uint8)
    save(path, **{"data": rows, "labels": 1 + (first + np.arange(count)) % 3, "mean": rows.mean(0), **changes})
    return rows


def test_downsampled_imagenet(tmp_path):
    first, second = (
        batch(tmp_path / "train_data_batch_1.npz", 5),
        batch(tmp_path / "train_data_batch_2.npz", 7, first=5),
    )
    (train,) = image_sets.imagenet(tmp_path)
    batch(tmp_path / "val_data.npz", 3, save=np.savez_compressed)
    train, held = image_sets.imagenet(tmp_path)
    assert train.classes == held.classes == [str(number) for number in range(1, 1001)]
    assert train.labels == [1 + i % 3 for i in range(12)] and held.labels == [1, 2, 3]
    assert all(isinstance(rows, np.memmap) for rows in train.source._rows)
    for source in (train.source, pickle.loads(pickle.dumps(train.source))):
        for number, row in enumerate([*first, *second]):
            pixels = source.pixels(number, Framing(4, 3))
            assert np.array_equal(pixels, row.reshape(3, 4, 4).transpose(1, 2, 0))
    assert len(pickle.dumps(train.source)) < 1000
    assert [train.source.name(i) for i in (4, 5)] == [
        "train_data_batch_1.npz, image 4",
        "train_data_batch_2.npz, image 0",
    ]
    assert len({train.source.stamp(i) for i in range(12)}) == 12
    few = image_sets.imagenet(tmp_path, 2)[0]
    assert few.labels == [1, 2, 3, 1, 2, 3] and few.source.name(5) == "train_data_batch_2.npz, image 0"
    alone = image_sets.npz(tmp_path / "val_data.npz")
    assert alone.labels == held.labels and np.array_equal(
        alone.source.pixels(1, Framing(4, 3)), held.source.pixels(1, Framing(4, 3))
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.arange(4)}, "labels run from 0 to 3, expected 1 to 1000"),
        ({"labels": [1, 2, 3, 1001]}, "labels run from 1 to 1001, expected 1 to 1000"),
        ({"labels": [1, 2, 3]}, r"one whole number per image, found \(3,\) int64"),
        ({"labels": np.ones(4)}, "float64"),
        ({"labels": np.array([1, 2, 3, "x"], dtype=object)}, "cannot be read as npz"),
        ({"data": np.zeros((4, 48))}, r"\(N, 3 \* side \* side\) uint8, found \(4, 48\) float64"),
        ({"data": np.zeros((4, 3, 4, 4), np.uint8)}, r"found \(4, 3, 4, 4\) uint8"),
        ({"data": np.zeros((4, 50), np.uint8)}, r"of one side, found \[50\] values a row"),
        ({"data": np.zeros((0, 48), np.uint8), "labels": np.zeros(0, int)}, r"found \(0, 48\) uint8"),
        ({"data": np.array([[print]], dtype=object)}, "cannot be read as npz .*Object arrays"),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_wrong_batches_of_imagenet_are_explained(tmp_path, changes, message, save):
    batch(tmp_path / "train_data_batch_1.npz", 4, save=save, **changes)
    with pytest.raises(ValueError, match=rf"train_data_batch_1\.npz: .*{message}"):
        image_sets.imagenet(tmp_path)


def test_batches_of_imagenet_belong_together(tmp_path):
    batch(tmp_path / "train_data_batch_1.npz", 4)
    batch(tmp_path / "train_data_batch_3.npz", 4)
    with pytest.raises(FileNotFoundError, match=r"no train_data_batch_2\.npz, but 1, 3"):
        image_sets.imagenet(tmp_path)
    batch(tmp_path / "train_data_batch_2.npz", 4, side=8)
    with pytest.raises(ValueError, match=r"found \[48, 192\] values a row"):
        image_sets.imagenet(tmp_path)
    whole = (tmp_path / "train_data_batch_1.npz").read_bytes()
    (tmp_path / "train_data_batch_2.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"train_data_batch_2\.npz: cannot be read"):
        image_sets.imagenet(tmp_path)


@pytest.mark.parametrize("shape", [(2**40, 48), (4, 47)])
def test_an_array_longer_or_shorter_than_its_file_is_refused(tmp_path, shape):
    rows = np.zeros((4, 48), np.uint8)
    with zipfile.ZipFile(tmp_path / "train_data_batch_1.npz", "w") as archive, archive.open("data.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.write(rows.tobytes())
    with pytest.raises(ValueError, match=r"train_data_batch_1\.npz: .*has another size"):
        image_sets.imagenet(tmp_path)
