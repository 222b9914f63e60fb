"""What the stages show of themselves at validations: sounds, spectra and mels in `media/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.audiosr.task_parts import VOCODER, Data, task, trainer
from zoo.audiosr.diffusion import DPMSolver
from zoo.audiosr.nets.frozen import FrozenVocoder
from zoo.audiosr.options import RestoreOptions
from zoo.cli.main import main
from zoo.common.systems import recipe_root
from zoo.training.callbacks.samples import Samples

SOUNDS = {f"clip0_{kind}.wav" for kind in ("input", "restored", "target", "ceiling")}


def displayed(folder: Path) -> dict[str, set[str]]:
    """Names of the files of each step."""
    return {step.name: {path.name for path in step.iterdir()} for step in sorted((folder / "media").glob("*"))}


def fit(recipe: str, folder: Path, **settings: Any) -> None:
    settings = {"trainer.max_steps": 4, "trainer.val_check_interval": 2, **settings}
    options = [f"--{key}={value}" for key, value in settings.items()]
    call = ["fit", f"--config={recipe_root() / 'audiosr' / recipe}.yaml", f"--trainer.default_root_dir={folder}"]
    assert main([*call, *options]) == 0


@pytest.mark.parametrize(
    ("recipe", "files"), [("smoke", SOUNDS | {"clip0_spectra.png"}), ("smoke_vae", {"clip0_mel.png"})]
)
def test_a_fit_of_a_smoke_recipe_leaves_samples(recipe: str, files: set[str], tmp_path: Path) -> None:
    fit(recipe, tmp_path, **{"samples.every_n_validations": 1})
    assert displayed(tmp_path) == {"step_00000002": files, "step_00000004": files}


def test_no_more_clips_are_kept_than_restored(tmp_path: Path) -> None:
    settings = {"vocoder": FrozenVocoder(config=VOCODER), "restore_items": 1, "validation_sampler": DPMSolver(1)}
    restore = RestoreOptions(guidance_scale=1.0, chunk_seconds=0.32, overlap_seconds=0.08)
    model = task(restore=restore, **settings)
    run = trainer(tmp_path, max_steps=1, val_check_interval=1, limit_val_batches=1.0, callbacks=[Samples(items=9)])
    run.fit(model, datamodule=Data(samples=2720))
    assert displayed(tmp_path) == {"step_00000001": SOUNDS | {"clip0_spectra.png"}}
