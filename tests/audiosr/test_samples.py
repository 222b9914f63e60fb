"""What the stages show of themselves at validations: sounds, spectra and mels in `media/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.audiosr.task_parts import VOCODER, Data, denoiser, task, trainer
from zoo.audiosr.diffusion.samplers import DDIM, DPMSolver
from zoo.audiosr.nets.frozen import FrozenVocoder
from zoo.audiosr.options import RestoreOptions
from zoo.cli.main import main
from zoo.common.systems import recipe_root
from zoo.runs.checkpoints import find_checkpoints, load_checkpoint
from zoo.training.callbacks.samples import Samples

SOUNDS = {f"clip0_{kind}.wav" for kind in ("input", "restored", "target", "ceiling")}


def shown(folder: Path) -> dict[str, set[str]]:
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
    assert shown(tmp_path) == {"step_00000002": files, "step_00000004": files}


def test_samples_change_no_weight(tmp_path: Path) -> None:
    states = []
    for enabled in ("true", "false"):
        folder = tmp_path / enabled
        fit("smoke_vae", folder, **{"samples.enabled": enabled, "samples.every_n_validations": 1})
        states.append(load_checkpoint(find_checkpoints(folder, "step_*.ckpt")[0])["state_dict"])
    assert shown(tmp_path / "true") and not shown(tmp_path / "false")
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())


@pytest.mark.parametrize(("items", "files"), [(1, 1), (9, 2)])
@pytest.mark.parametrize(
    "settings",
    [
        {"restore": RestoreOptions(guidance_scale=1.0), "validation_sampler": DPMSolver(2)},
        {"net": "residual", "vocoder": FrozenVocoder(config=VOCODER), "validation_sampler": DDIM(2, eta=1.0)},
    ],
    ids=["no vocoder", "no clip to restore"],
)
def test_mels_are_drawn_where_no_clip_becomes_sound(
    settings: dict[str, Any], items: int, files: int, tmp_path: Path
) -> None:
    model = task(denoiser(settings.get("net", "none")), **{k: v for k, v in settings.items() if k != "net"})
    # 17 frames: one of them is cut off
    run = trainer(tmp_path, max_steps=1, val_check_interval=1, limit_val_batches=1.0, callbacks=[Samples(items=items)])
    run.fit(model, datamodule=Data(samples=2720))
    assert shown(tmp_path) == {"step_00000001": {f"clip{number}_mel.png" for number in range(files)}}


def test_no_more_clips_are_kept_than_restored(tmp_path: Path) -> None:
    settings = {"vocoder": FrozenVocoder(config=VOCODER), "restore_items": 1, "validation_sampler": DPMSolver(1)}
    restore = RestoreOptions(guidance_scale=1.0, chunk_seconds=0.32, overlap_seconds=0.08)
    model = task(restore=restore, **settings)
    run = trainer(tmp_path, max_steps=1, val_check_interval=1, limit_val_batches=1.0, callbacks=[Samples(items=9)])
    run.fit(model, datamodule=Data(samples=2720))
    assert shown(tmp_path) == {"step_00000001": SOUNDS | {"clip0_spectra.png"}}
