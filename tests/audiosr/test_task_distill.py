"""Distillation: its target by two other ways, what a student takes over, what does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.audiosr.task_parts import AUTOENCODER, UNET, Data, Save, denoiser, trainer
from tests.audiosr.task_parts import task as build_task
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.losses import DiffusionStep, DiffusionTerm
from zoo.audiosr.nets.denoiser import UNCONDITIONAL, Denoiser, concat
from zoo.audiosr.nets.frozen import FrozenAutoencoder
from zoo.audiosr.options import RestoreOptions
from zoo.audiosr.samplers import time_grid
from zoo.audiosr.task_distill import DistillationTask, FrozenDenoiser
from zoo.blocks.image import classifier_free_guidance
from zoo.runs.checkpoints import load_checkpoint
from zoo.training.callbacks.checkpoint_contents import CheckpointContents
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.rng import RNGState

ENCODER = {"n_mels": 32, "channels": 8, "heads": 2, "layers": 1, "context_channels": 8, "positions": 16}
FUSED = {"unet": {**UNET, "fusion": "residual", "context_channels": 8}, "global_encoder": ENCODER}


def teacher(config: Any = None, seed: int = 5) -> FrozenDenoiser:
    made = FrozenDenoiser(config=config or {"unet": UNET})
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():  # the last layers begin at zero
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    made.net.latent_scale.fill_(0.7)
    return made


def student(net: Denoiser | None = None, **settings: Any) -> DistillationTask:
    defaults = {"teacher": teacher(), "steps": 2, "teacher_steps": 8, "restore": RestoreOptions(guidance_scale=1.0)}
    return build_task(net, DistillationTask, **{**defaults, **settings})


class StepRecorder(DiffusionTerm):
    """Keeps the step."""

    def forward(self, step: DiffusionStep) -> Tensor:
        self.step = step
        return step.output.sum() * 0


@pytest.mark.parametrize("config", [None, FUSED], ids=["plain", "residual"])
def test_target_is_what_steps_of_ddim_lead_to(config: Any) -> None:
    remaining = StepRecorder()
    task = student(
        denoiser("residual" if config else "none"),
        teacher=teacher(config),
        losses={"kept": remaining},
        teacher_guidance=2.5,
    ).eval()
    torch.nn.init.normal_(task.net.unet.out[-1].weight)  # no longer the teacher
    latent, condition, noise = torch.randn(3, 8, 2, 8, 16, generator=torch.Generator().manual_seed(1))
    mel = None if config is None else torch.randn(8, 1, 16, 32)
    task._objective()(latent, condition, torch.arange(8) * 125, noise, torch.zeros(8), mel)
    grid, diffusion = time_grid(8, "trailing", 1000), task.diffusion
    assert remaining.step.times.tolist() == grid[:-1][::-1]
    for row, index in enumerate(reversed(range(8))):
        one = slice(row, row + 1)
        clip = None if mel is None else mel[one]
        now, following = torch.tensor([grid[index]]), grid[index + 1]
        end = grid[4 if index < 4 else 8]
        x = diffusion.add_noise(latent[one], noise[one], now)
        nothing = torch.full_like(condition[one], UNCONDITIONAL * 0.7)
        with torch.no_grad():
            guided = classifier_free_guidance(
                *(task.teacher.net(concat(x, each), now, clip) for each in (condition[one], nothing)), 2.5, 0
            )
            signal, sigma = diffusion.levels(following)
            y = signal * diffusion.to_x0(x, guided, now) + sigma * diffusion.to_noise(x, guided, now)
            if following != end:
                present = torch.tensor([following])
                output = task.net(concat(y, condition[one]), present, clip)
                signal, sigma = diffusion.levels(end)
                y = signal * diffusion.to_x0(y, output, present) + sigma * diffusion.to_noise(y, output, present)
        signal, sigma = diffusion.levels(end)
        own_signal, own_sigma = diffusion.levels(grid[index])
        ratio = sigma / own_sigma
        aim = (y - ratio * x) / (signal - ratio * own_signal)  # Salimans and Ho, appendix G
        torch.testing.assert_close(remaining.step.latent[one], aim, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(remaining.step.target[one], (own_signal * x - aim) / own_sigma, rtol=1e-3, atol=1e-3)


def test_student_begins_as_the_teacher_and_brings_its_sampler(tmp_path: Path) -> None:
    made = teacher()
    task = student(teacher=made)
    task.specs = {"components": {}, "options": {"restore": {"sampler": None, "seed": 3}}}
    for name, value in made.net.state_dict().items():
        assert torch.equal(task.net.state_dict()[name], value), name
    assert float(task.net.latent_scale) == pytest.approx(0.7)
    before = {name: value.clone() for name, value in task.teacher.state_dict().items()}
    run = trainer(tmp_path, max_steps=3, limit_val_batches=1.0)
    run.fit(task, datamodule=Data())
    assert all(torch.equal(value, before[name]) for name, value in task.teacher.state_dict().items())
    assert any(not torch.equal(value, before[f"net.{name}"]) for name, value in task.net.state_dict().items())
    assert float(task.net.latent_scale) == pytest.approx(0.7)  # not measured again
    assert task.specs["options"]["restore"] == {
        "sampler": {"class_path": "zoo.audiosr.DDIM", "init_args": {"steps": 2}}, "seed": 3
    }  # fmt: skip
    assert task.restore.sampler.steps == 2 and task.validation_sampler is task.restore.sampler


def test_resume_goes_on_bit_for_bit(tmp_path: Path) -> None:
    results = []
    for name, resumed in (("whole", None), ("resumed", str(tmp_path / "whole" / "2.ckpt"))):
        (tmp_path / name).mkdir()
        callbacks = [EMA(["net"], 0.9), CheckpointContents(), RNGState(), Save(tmp_path / name)]
        task = student(denoiser("residual"), teacher=teacher(FUSED), teacher_guidance=2.0)
        run = trainer(tmp_path / name, max_steps=4, callbacks=callbacks)
        run.fit(task, datamodule=Data(), ckpt_path=resumed)
        results.append(load_checkpoint(tmp_path / name / "4.ckpt"))
    assert not any(key.startswith("teacher.") for key in results[0]["state_dict"]) and "teacher" in results[0]["frozen"]
    for key in ("state_dict", "optimizer_states", "ema"):
        torch.testing.assert_close(results[1][key], results[0][key], rtol=0, atol=0)


def test_copy_of_a_teacher_knows_the_autoencoder(tmp_path: Path) -> None:
    made, autoencoder = teacher(), FrozenAutoencoder(config=AUTOENCODER)
    record = {"source": None, "folder": None, "revision": None, "sha256": autoencoder.fingerprint()}
    made.description = made.description._replace(records={"autoencoder": record})
    made.save_source(tmp_path)
    copied = FrozenDenoiser(str(tmp_path))
    assert copied.fingerprint() == made.fingerprint()
    assert student(teacher=copied, autoencoder=autoencoder).teacher is copied
    with pytest.raises(ValueError, match="on the latents of another autoencoder"):
        student(teacher=copied, autoencoder=FrozenAutoencoder(config=AUTOENCODER, seed=1))


def teacher_of_noise() -> FrozenDenoiser:
    made = teacher()
    process = {"class_path": "zoo.audiosr.CosineDiffusion", "init_args": {"prediction": "noise"}}
    made.description = made.description._replace(others={"diffusion": process})
    return made


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher": teacher_of_noise()}, "prediction noise, diffusion has 1000 and v"),
        ({"diffusion": CosineDiffusion(prediction="noise")}, "diffusion.prediction"),
        ({"restore": RestoreOptions(guidance_scale=2.0)}, "guidance_scale"),
        ({"teacher_steps": 7}, "teacher_steps"),
        ({"net": denoiser("residual")}, "do not fit net"),
        ({"net": denoiser(norm_groups=2)}, "num_groups"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        student(**settings)
