"""What the stages show at validations: which files, of odd clips as well, and that showing changes no weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.miipher.parts import cleaner
from tests.miipher.test_task import loader, trainer, vocoder_task
from zoo.audio.io import files
from zoo.cli.main import main
from zoo.common.systems import recipe_root
from zoo.training.callbacks.samples import Samples

VOCODER = {"clip0_generated.wav", "clip0_input.wav", "clip0_mel.png", "clip0_spectra.png", "clip0_target.wav"}
MADE = {
    "adapter": {"clip0_features.png", "clip0_input.wav", "clip0_target.wav"},
    "pretrain": VOCODER,
    "finetune": VOCODER,
    "backbone": {f"clip{clip}_{name}" for clip in (0, 1) for name in ("input.wav", "mel.png", "target.wav")},
}


def fit(recipe: str, folder: Path, *options: str) -> None:
    settings = ("max_steps=2", "val_check_interval=1", f"default_root_dir={folder}", "enable_progress_bar=false")
    config = recipe_root() / "miipher" / f"smoke_{recipe}.yaml"
    assert main(["fit", "--config", str(config), *(f"--trainer.{each}" for each in settings), *options]) == 0


def made(folder: Path) -> dict[str, set[str]]:
    steps = (folder / "media").glob("step_*")
    return {step.name: {path.name for path in step.iterdir()} for step in steps}


@pytest.mark.parametrize("recipe", MADE)
def test_files_of_a_run(recipe: str, tmp_path: Path) -> None:
    fit(recipe, tmp_path)
    results = made(tmp_path)
    assert results == {"step_00000001": MADE[recipe], "step_00000002": MADE[recipe]}
    clips = {path.name: files.read(path) for path in (tmp_path / "media" / "step_00000002").glob("*.wav")}
    seconds = {name: round(audio.shape[-1] / rate, 1) for name, (audio, rate) in clips.items()}
    assert set(seconds.values()) == {1.0}


def test_a_vocoder_on_stored_features_shows_no_input(tmp_path: Path) -> None:
    stored = [{"features": torch.randn(2, 32, 10), "audio": 0.1 * torch.randn(2, 4410)}]
    samples = Samples()
    settings = {"max_steps": 2, "val_check_interval": 1, "num_sanity_val_steps": 0, "callbacks": [samples]}
    trainer(tmp_path, **settings).fit(vocoder_task(cleaner()), loader(stored * 2), loader(stored))
    assert not samples._failed
    assert made(tmp_path)["step_00000002"] == VOCODER - {"clip0_input.wav", "clip0_spectra.png"}
