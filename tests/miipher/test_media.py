"""What the stages show at validations: which files, of odd clips as well, and that showing changes no weight."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.miipher.parts import backbone, cleaner
from tests.miipher.test_task import SGD, WEIGHTS, batch, loader, trainer, vocoder_task
from zoo.audio.analysis.mel import LogMel
from zoo.audio.io import files
from zoo.cli.main import main
from zoo.common.systems import recipe_root
from zoo.miipher.task import AdapterTask
from zoo.miipher.task_backbone import BackboneTask
from zoo.training.callbacks.samples import Samples
from zoo.training.task import ZooTask

VOCODER = {"clip0_generated.wav", "clip0_input.wav", "clip0_mel.png", "clip0_spectra.png", "clip0_target.wav"}
MADE = {
    "adapter": {"clip0_features.png", "clip0_input.wav", "clip0_target.wav"},
    "pretrain": VOCODER,
    "finetune": VOCODER,
    "backbone": {
        f"clip{clip}_{name}" for clip in (0, 1) for name in ("input.wav", "mel.png", "prediction.wav", "target.wav")
    },
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
    assert results["step_00000002"] == MADE[recipe]
    assert results["step_00000001"] == {name for name in MADE[recipe] if "prediction" not in name}
    clips = {path.name: files.read(path) for path in (tmp_path / "media" / "step_00000002").glob("*.wav")}
    seconds = {name: round(audio.shape[-1] / rate, 1) for name, (audio, rate) in clips.items()}
    assert set(seconds.values()) == {1.0}


def task(stage: str) -> ZooTask:
    torch.manual_seed(0)
    if stage == "adapter":
        return AdapterTask(cleaner(), SGD, WEIGHTS)
    if stage == "backbone":
        mel = LogMel(16000, 512, 160, 512, 20, 0.0, 8000.0)
        return BackboneTask(backbone(layer=1), mel, partial(torch.optim.AdamW, lr=0.01))
    return vocoder_task(cleaner())


def batches(stage: str, *sizes: tuple[int, int]) -> list[dict[str, Tensor]]:
    audio = {"audio": 0.1 * torch.randn(2, 4410)} if stage == "finetune" else {}
    return [{**batch(items, samples, seed), **audio} for seed, (items, samples) in enumerate(sizes)]


def train(task: ZooTask, folder: Path, samples: Samples, steps: list, validation: list) -> ZooTask:
    torch.manual_seed(1)
    settings = {"max_steps": 2, "val_check_interval": 1, "num_sanity_val_steps": 0, "callbacks": [samples]}
    trainer(folder, **settings).fit(task, loader(steps), loader(validation))
    return task


@pytest.mark.parametrize("stage", ["adapter", "backbone", "finetune"])
def test_samples_change_no_weight(stage: str, tmp_path: Path) -> None:
    """Gaps of the backbone are drawn in training and for its samples."""
    steps, validation = batches(stage, (2, 3200), (2, 3200)), batches(stage, (2, 3200))
    ends = []
    for samples in (Samples(every_n_validations=1), Samples(enabled=False)):
        ends.append(train(task(stage), tmp_path / str(samples.enabled), samples, steps, validation).state_dict())
    assert made(tmp_path / "True") and not (tmp_path / "False" / "media").exists()
    for name, value in ends[0].items():
        assert torch.equal(ends[1][name], value), name


@pytest.mark.parametrize(
    ("sizes", "items", "clips"),
    [
        ([(1, 3333)], 5, 1),  # no whole frame at the end, fewer clips than are to be shown
        ([(3, 3201), (3, 2001)], 4, 4),  # several clips a batch, of different lengths
        ([(2, 400)], 1, 1),  # two frames
    ],
)
def test_odd_clips_of_a_backbone(sizes: list[tuple[int, int]], items: int, clips: int, tmp_path: Path) -> None:
    samples = Samples(items=items)
    clean = batches("backbone", *sizes)
    train(task("backbone"), tmp_path, samples, clean * 2, clean)
    assert not samples._failed
    results = made(tmp_path)["step_00000002"]
    assert {name.partition("_")[0] for name in results} == {f"clip{clip}" for clip in range(clips)}


def test_a_vocoder_on_stored_features_shows_no_input(tmp_path: Path) -> None:
    stored = [{"features": torch.randn(2, 32, 10), "audio": 0.1 * torch.randn(2, 4410)}]
    samples = Samples()
    train(task("finetune"), tmp_path, samples, stored * 2, stored)
    assert not samples._failed
    assert made(tmp_path)["step_00000002"] == VOCODER - {"clip0_input.wav", "clip0_spectra.png"}
