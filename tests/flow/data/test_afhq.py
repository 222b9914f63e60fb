import logging
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.flow.data import afhq
from zoo.flow.data.datamodule import ImageData
from zoo.flow.data.image_sets import folder
from zoo.flow.data.images import to_values


def make(root: Path, held_out: str = "val", classes: tuple[str, ...] = ("cat", "dog", "wild")) -> Path:
    rng = np.random.default_rng(0)
    for part, count in (("train", 4), (held_out, 2)):
        for name in classes:
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.jpg")
    return root


def prepare(*sources: Path, **kwargs: object) -> dict[str, object]:
    return afhq.prepare(sources, **{"resolution": 8, "cache": None, "progress": False, **kwargs})


def test_the_cache_is_the_one_that_training_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "afhq")
    facts = prepare(root, cache=tmp_path / "cache", eval_folder=tmp_path / "eval")
    assert (facts["version"], facts["train"], facts["val"]) == (
        "unknown",
        "cat 4, dog 4, wild 4",
        "cat 2, dog 2, wild 2",
    )
    assert facts["eval_images"] == 6
    monkeypatch.setattr("zoo.flow.data.image_cache._write", lambda *args: pytest.fail("was built again"))
    data = ImageData(str(root), image_resolution=8, cache=str(tmp_path / "cache"), batch_size=2)
    data.setup("fit")
    with Image.open(tmp_path / "eval" / "dog_00001.png") as image:
        assert torch.equal(to_values(np.array(image)[None])[0], data.val_set[3]["x1"])


@pytest.mark.parametrize("suffix", ["zip", "gztar"])
def test_archives_are_unpacked_and_their_folder_is_found(tmp_path: Path, suffix: str) -> None:
    make(tmp_path / "source" / "afhq_v2", "test")
    archive = Path(shutil.make_archive(str(tmp_path / "afhq_v2"), suffix, tmp_path / "source"))
    facts = prepare(archive, output=tmp_path / "out")
    assert facts["folder"] == str(tmp_path / "out" / "afhq_v2") and facts["val"] == "cat 2, dog 2, wild 2"
    assert prepare(archive, output=tmp_path / "out") == facts == prepare(tmp_path / "out")
    with pytest.raises(ValueError, match="archives and --output"):
        prepare(archive)


def test_versions_are_reported_by_their_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = make(tmp_path / "afhq")
    sets = {part: folder(root / part) for part in ("train", "val")}
    with caplog.at_level(logging.WARNING):
        assert afhq.version(sets) == "unknown"
    assert "found {'train': (4, 4, 4), 'val': (2, 2, 2)}, 18 together; v1 has" in caplog.text
    with pytest.raises(ValueError, match="not the counts of AFHQ"):
        afhq.version(sets, strict=True)
    monkeypatch.setattr(afhq, "V2_TOTAL", 18)
    assert afhq.version(sets, strict=True) == "v2"
    monkeypatch.setattr(afhq, "V1_COUNTS", {"train": (4, 4, 4), "val": (2, 2, 2)})
    assert afhq.version(sets) == "v1"


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected AFHQ's folders train and val"):
        prepare(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        prepare(tmp_path / "nowhere")
    root = make(tmp_path / "afhq")
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match=r"holds 1 other files, e\.g\. mine\.txt"):
        prepare(root, eval_folder=tmp_path / "eval")
    (root / "train" / "dog" / "2.jpg").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"1 of 12 images cannot be read, .*dog/2\.jpg"):
        prepare(root, cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="found cat, dog, foo, wild"):
        prepare(make(tmp_path / "more", classes=("cat", "dog", "foo", "wild")))
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"a\.zip: cut, damaged"):
        prepare(tmp_path / "a.zip", output=tmp_path / "out")


def test_the_script_reports_and_fails_in_one_line(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "afhq")
    script = str(repository / "scripts" / "prepare_afhq.py")
    args = ["prepare_afhq.py", str(root), "--cache", str(tmp_path / "cache"), "--resolution", "8"]
    monkeypatch.setattr(sys, "argv", args)
    runpy.run_path(script, run_name="__main__")
    assert "train: cat 4, dog 4, wild 4\nval: cat 2, dog 2, wild 2\n" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*args, "--strict"])
    with pytest.raises(SystemExit, match=r"^error: .*not the counts of AFHQ"):
        runpy.run_path(script, run_name="__main__")
