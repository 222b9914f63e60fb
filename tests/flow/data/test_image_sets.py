import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from zoo.flow import rendering
from zoo.flow.data import image_sets
from zoo.flow.data.images import Framing


def test_folders_are_classes_in_sorted_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["cat/deep/er/x.jpeg", "dog/a.png", "dog/b.JPG", "dog/notes/y.webp"]
    for name in [*reversed(names), ".thumbnails/x.png", "cat/.cache/y.png"]:
        rendering.write_png(tmp_path / name, np.zeros((4, 4, 3), np.uint8))
    (tmp_path / "dog" / "._a.png").write_bytes(b"resource fork")
    (tmp_path / "empty").mkdir()
    (tmp_path / "readme.txt").write_text("x")
    with caplog.at_level(logging.WARNING):
        result = image_sets.folder(tmp_path)
    assert result.classes == ["cat", "dog"] and result.labels == [1, 2, 2, 2]
    assert [result.source.name(i) for i in range(4)] == names
    assert "skipped folders without images: empty" in caplog.text
    assert image_sets.folder(tmp_path, limit=1).counts() == {"cat": 1, "dog": 1}
    unlabelled = image_sets.folder(tmp_path / "dog" / "notes")
    assert (unlabelled.classes, unlabelled.labels) == ([], [0])


@pytest.mark.parametrize("seed", [None, 0])
def test_held_out_items_are_as_many_of_each_class(seed: int | None) -> None:
    labels = [1 + (i % 3) for i in range(300)]
    chosen = image_sets.holdout_mask(labels, 5, seed)
    assert [sum(c for c, label in zip(chosen, labels, strict=True) if label == k) for k in (1, 2, 3)] == [20, 20, 20]
    assert chosen == image_sets.holdout_mask(labels, 5, seed)
    assert (chosen == image_sets.holdout_mask(labels, 5, 2)) is False
    if seed is None:
        assert [i for i, c in enumerate(chosen) if c][:4] == [12, 13, 14, 27]


class ClassLabel:
    names = ("cat", "dog")


class Rows(dict[str, list[int]]):
    """Stands in for a Dataset of the package datasets."""

    def __init__(self, labels: list[int], label: object) -> None:
        super().__init__(label=labels)
        self.features = {"image": type("Image", (), {})(), "label": label}


def test_the_package_datasets_gives_what_is_expected_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for name, grey in (("cat", 50), ("dog", 200)):
            for number in range(count):
                pixels = np.full((4, 4, 3), grey + number, np.uint8)
                rendering.write_png(tmp_path / "set" / split / name / f"{number}.png", pixels)
    datasets = pytest.importorskip("datasets")  # the extra images
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    train, held_out = image_sets.hub(str(tmp_path / "set"), limit=2)
    assert train.classes == held_out.classes == ["cat", "dog"] and train.labels == held_out.labels == [1, 1, 2, 2]
    pixels = [int(train.source.pixels(index, Framing(8, 1)).flatten()[0]) for index in range(4)]
    assert [abs(result - grey) < 60 for result, grey in zip(pixels, (50, 50, 200, 200), strict=True)] == [True] * 4
    assert train.source.stamp(0) != held_out.source.stamp(0)


def test_what_the_hub_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for splits, message in (
        ({"all": Rows([0], ClassLabel())}, "no split train, but all"),
        ({"train": Rows([0], 3)}, "columns of type Image and ClassLabel"),
        ({"train": Rows([0, -1], ClassLabel())}, "images without class"),
    ):
        module = SimpleNamespace(load_dataset=lambda name, splits=splits: splits)
        monkeypatch.setitem(sys.modules, "datasets", module)
        with pytest.raises(ValueError, match=message):
            image_sets.hub("user/name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install zoo\[images\]"):
        image_sets.hub("user/name")
