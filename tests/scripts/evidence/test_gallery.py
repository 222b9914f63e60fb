"""The gallery's files from run folders, which are stood in for."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from scripts.evidence import gallery
from tests.harness import REPOSITORY
from zoo.audio.io import files
from zoo.common.reports import encode_gif

CLIPS = {
    "hifigan": (22050, "target", "generated"),
    "miipher": (22050, "input", "generated", "target"),
    "audiosr": (16000, "input", "restored", "target"),
}


def runs(root: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 70000)
    for name, (sample_rate, *clips) in CLIPS.items():
        step = root / name / "media/step_00000010"
        step.mkdir(parents=True)
        for clip in clips:
            files.write(step / f"clip0_{clip}.wav", noise, sample_rate)
    frames = np.zeros((3, 40, 60, 3), np.uint8)
    frames[2] = 255
    for name, animation, *pictures in (
        ("flow", "val_animation", "val_trajectory", "val_samples"),
        ("compressed_ad", "val_episodes", "val_learning"),
    ):
        step = root / name / "media/step_00000010"
        step.mkdir(parents=True)
        (step / f"{animation}.gif").write_bytes(encode_gif(frames, 8))
        for picture in pictures:
            Image.fromarray(frames[1]).save(step / f"{picture}.png")


def test_all_files_are_made_and_are_small(tmp_path: Path) -> None:
    runs(tmp_path / "runs")
    found = gallery.draw(tmp_path / "runs", tmp_path / "docs")
    assert all(each.passed for each in found)
    made = {str(path.relative_to(tmp_path / "docs")) for path in (tmp_path / "docs").rglob("*.*")}
    sounds = {f"gallery/{name}_{clip}.mp3" for name, (_, *clips) in CLIPS.items() for clip in clips}
    moved = {f"gallery/{name}.{kind}" for name in ("flow", "compressed_ad") for kind in ("gif", "png")}
    assert made == {*sounds, *moved, *(f"figures/{name}.png" for name in gallery.DRAWN)}
    for sound in sounds:
        info = soundfile.info(tmp_path / "docs" / sound)
        assert info.channels == 1 and info.frames >= 70000 and info.format == "MP3"
    with Image.open(tmp_path / "docs/gallery/flow.png") as still:  # the last frame
        assert np.asarray(still.convert("L")).min() == 255


def test_another_run_takes_a_place_and_none_is_an_error(tmp_path: Path) -> None:
    runs(tmp_path / "runs")
    found = gallery.draw(tmp_path / "none", tmp_path / "docs", flow=tmp_path / "runs/flow")
    assert [Path(each.name).name for each in found] == ["flow.png", "flow.gif", "flow.png"]
    with pytest.raises(ValueError, match="train them first"):
        gallery.draw(tmp_path / "none", tmp_path / "docs")
    with pytest.raises(ValueError, match="holds no media"):
        gallery.draw(tmp_path / "runs", tmp_path / "docs", audiosr=tmp_path / "none")


def test_trainings_are_of_recipes_and_use_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: dict[str, list[str]] = {}
    monkeypatch.setattr(gallery, "train_once", lambda folder, arguments: trained.update({folder.name: arguments}))
    monkeypatch.setattr(gallery.os, "environ", {})
    monkeypatch.setattr(gallery, "lay_out", lambda folder: trained.update({folder.name: []}))
    gallery.train(tmp_path)
    assert list(trained) == ["audiosr_clips", *gallery.TRAININGS]
    assert not trained.pop("audiosr_clips")
    for arguments in trained.values():
        assert Path(arguments[1].removeprefix("--config=")).is_file()
    assert f"--init_from=[{tmp_path / 'miipher_adapter'},{tmp_path / 'miipher_pretrain'}]" in trained["miipher"]
    assert gallery.os.environ["ZOO_VOCODER"] == str(tmp_path / "audiosr_vocoder")


def test_the_gallery_of_the_documents_is_small() -> None:
    sizes = {path.name: path.stat().st_size / 1000 for path in (REPOSITORY / "docs/gallery").iterdir()}
    sounds = [size for name, size in sizes.items() if name.endswith(".mp3")]
    assert max(sounds) <= gallery.LARGEST_SOUND and sum(sounds) <= 1500
    assert max(sizes.values()) <= gallery.LARGEST_PICTURE
