"""Distillation of a trained diffusion into a student that needs 1 to 4 steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.audiosr.diffusion.samplers import DDIM, Sampler, conditioned, time_grid
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.losses import DiffusionTerm, Known, Objective
from zoo.audiosr.nets.denoiser import Denoiser, concat
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenDenoiser
from zoo.audiosr.task import Batch, DiffusionTask
from zoo.blocks.autoencoder import posterior_mean
from zoo.common.checks import check_at_least, check_within
from zoo.training.task import OptimizerCallable, compile_module


class Distillation(Objective):
    """All terms of the loss on one batch, towards a target that a teacher and the student itself make.

    With the angle phi_t = arctan(sqrt(1 - a_t) / sqrt(a_t)) a deterministic step from t to s is a rotation by
    d = phi_t - phi_s: x_s = cos(d) x_t - sin(d) v_t. Of the teacher's grid t_0 > ... > t_N (t_N is clean data) every
    N / K-th time bounds a segment. At x = x_{t_i} in a segment that ends at e:

        y  = cos(phi_i - phi_{i+1}) x - sin(phi_i - phi_{i+1}) v_teacher(x, t_i)          one step of the teacher
        z  = cos(phi_{i+1} - phi_e) y - sin(phi_{i+1} - phi_e) v_student(y, t_{i+1})      the rest in one, no gradient
        v* = (cos(phi_i - phi_e) x - z) / sin(phi_i - phi_e)

    v* is what takes x to z in one step; the student's output at x is compared with it. Where t_{i+1} is e, z is y. So
    in each segment all points of a path come to lead to where the teacher's steps lead, and K steps do. K = 1 is
    consistency distillation; N = 2 K with the former student as teacher is progressive distillation.

    Args:
        teacher: frozen.
        times: t_0 to t_N (N + 1,) int64, like `turns` of `grid_turns`.
        turns: cosines and sines of the three angles (N, 3, 2).
        scale: of the teacher's guidance, like `rescale` as of `zoo.blocks.image.classifier_free_guidance`.

    Source: Heek et al., "Multistep Consistency Models" (2024), algorithm 1; Song et al., "Consistency Models" (2023),
    algorithm 2, with the student itself for the averaged one as in Song and Dhariwal (2024), section 3.2; v and its
    angle: Salimans and Ho, "Progressive Distillation" (2022), appendix D.
    """

    turns: Tensor
    times: Tensor

    def __init__(
        self, plain: Objective, teacher: FrozenDenoiser, times: Tensor, turns: Tensor, scale: float, rescale: float
    ) -> None:
        super().__init__(plain.net, plain.diffusion, plain.losses, plain.autoencoder, plain.features, plain.vocoder)
        self.teacher, self.scale, self.rescale = teacher, scale, rescale
        self.register_buffer("times", times, persistent=False)
        self.register_buffer("turns", turns, persistent=False)

    def forward(
        self,
        latent: Tensor,
        condition: Tensor,
        t: Tensor,
        noise: Tensor,
        place: Tensor,
        full_audio: Tensor | None,
        known: Known | None = None,
    ) -> dict[str, Tensor]:
        """Run both nets and compare; see `Objective.forward`. `t` (B,) is brought to the teacher's grid."""
        index = len(self.turns) - 1 - t * len(self.turns) // self.diffusion.steps
        t, following = self.times[index], self.times[index + 1].clamp_min(0)
        noisy = self.diffusion.noised(latent, noise, t)
        encoded = None if full_audio is None else self.net.encode_clip(full_audio)
        output = self.net(concat(noisy, condition), t, encoded=encoded).float()
        with torch.no_grad():
            step, rest, whole = self.turns[index].unbind(1)
            given = None if full_audio is None else self.teacher.net.encode_clip(full_audio)
            guided = conditioned(self.teacher.net, condition, given, self.scale, self.rescale)
            there = _turned(noisy, guided(noisy, t), step)
            held = None if encoded is None else (encoded[0].detach(), encoded[1].detach())
            end = _turned(there, self.net(concat(there, condition), following, encoded=held).float(), rest)
            cosine, sine = (each[:, None, None, None] for each in whole.unbind(1))
            target = (cosine * noisy - end) / sine
            aim = self.diffusion.to_x0(noisy, target, t)
        return self.compared(output, target, noisy, aim, t, place, known)


def grid_turns(diffusion: CosineDiffusion, teacher_steps: int, steps: int) -> tuple[Tensor, Tensor]:
    """Times and rotations of a teacher's grid that is cut into `steps` segments.

    Returns:
        Times (N + 1,) int64, the last -1; cosines and sines (N, 3, 2) float32 of the angles from each time to the next,
        from the next to its segment's end, and from each to its segment's end.

    Raises:
        ValueError: when the segments are not equal or the process has too few steps.
    """
    check_at_least(1, steps=steps)
    check_within(1, diffusion.steps, teacher_steps=teacher_steps)
    if teacher_steps % steps:
        raise ValueError(f"teacher_steps {teacher_steps} is no multiple of steps {steps}: segments must be equal")
    times, length = time_grid(teacher_steps, "trailing", diffusion.steps), teacher_steps // steps
    if times[::length] != time_grid(steps, "trailing", diffusion.steps):
        raise ValueError(f"teacher_steps {teacher_steps} of {diffusion.steps} do not hold the student's {steps} steps")
    ends = (np.arange(teacher_steps) // length + 1) * length
    signals, sigmas = np.array([diffusion.levels(t) for t in times]).T
    angles = np.arctan2(sigmas, signals)
    here, following, end = angles[:-1], angles[1:], angles[ends]
    turned = np.stack([here - following, following - end, here - end], axis=1)
    return torch.tensor(times), torch.from_numpy(np.stack([np.cos(turned), np.sin(turned)], axis=2)).float()


def _turned(x: Tensor, v: Tensor, turn: Tensor) -> Tensor:
    """Images (B, C, H, W) after a deterministic step: rotated by angles whose cosine and sine are (B, 2)."""
    cosine, sine = (each[:, None, None, None] for each in turn.unbind(1))
    return cosine * x - sine * v


class DistillationTask(DiffusionTask):
    """Stage 4: a student of a trained diffusion that restores in 1 to 4 steps; see `Distillation`.

    The student begins with the teacher's weights and takes its scale of the latents and its guidance over, so that it
    needs one evaluation per step where the guided teacher needs two. `steps` steps of DDIM are its sampler, in
    validation and inference alike; more or fewer are not what it was trained for.

    Validation is that of `DiffusionTask` with the terms of this loss. For the clips that are restored, at least one,
    `teacher_mse` is the mean squared distance of the student's latents to those of the teacher's `teacher_steps` steps
    from the same noise, in units of the net's latents.

    Args:
        net: the student, built like the teacher's net.
        autoencoder: frozen, the teacher's.
        features: audio to log-mels, the teacher's.
        diffusion: the teacher's, which predicts v.
        losses: terms by name, such as `latent`.
        teacher: frozen: a finished run of `DiffusionTask`, or of this one.
        steps: of the student.
        teacher_steps: of DDIM, whose result is learned; a multiple of `steps`. More are nearer to the teacher's path
            and take longer to learn.
        teacher_guidance: scale of the guidance that is learned.
        teacher_rescale: see `guidance_rescale` of `DiffusionTask`, likewise learned.
        sampler: an option of inference; `steps` steps of DDIM when null.
        restore_sampler: of validation; `sampler` when null.
        guidance_scale: an option of inference; 1, since the guidance is in the weights.

    Raises:
        ValueError: when teacher and student do not fit.
    """

    times: Tensor
    turns: Tensor

    def __init__(
        self,
        net: Denoiser,
        autoencoder: FrozenAutoencoder,
        features: MelFeatures,
        diffusion: CosineDiffusion,
        losses: dict[str, DiffusionTerm],
        optimizer: OptimizerCallable,
        teacher: FrozenDenoiser,
        *,
        steps: int = 4,
        teacher_steps: int = 60,
        teacher_guidance: float = 1.0,
        teacher_rescale: float = 0.0,
        sampler: Sampler | None = None,
        restore_sampler: Sampler | None = None,
        guidance_scale: float = 1.0,
        **kwargs: Any,
    ) -> None:
        _check(net, autoencoder, diffusion, teacher, guidance_scale)
        check_at_least(0, teacher_guidance=teacher_guidance)
        check_within(0, 1, teacher_rescale=teacher_rescale)
        self._own_sampler = sampler is None
        sampler = sampler or DDIM(steps)
        super().__init__(
            net, autoencoder, features, diffusion, losses, optimizer, latent_scale=float(teacher.net.latent_scale),
            condition_dropout=0.0, sampler=sampler, restore_sampler=restore_sampler or sampler,
            guidance_scale=guidance_scale, **kwargs,
        )  # fmt: skip
        net.load_state_dict(teacher.net.state_dict())
        self.teacher = teacher
        self.grid = (teacher_steps, steps)
        self.guidance = (teacher_guidance, teacher_rescale)
        for name, table in zip(("times", "turns"), grid_turns(diffusion, *self.grid), strict=True):
            self.register_buffer(name, table, persistent=False)

    def setup(self, stage: str) -> None:
        """Name the sampler where no recipe does, so that checkpoints and exports bring it."""
        super().setup(stage)
        if self.specs is not None and self._own_sampler:
            sampler = {"class_path": "zoo.audiosr.DDIM", "init_args": {"steps": self.grid[1]}}
            self.specs["options"]["sampler"] = sampler

    def on_fit_start(self) -> None:
        """Compile the teacher, too."""
        super().on_fit_start()
        if self.compile_modules and not self._replicas:
            compile_module(self.teacher.net.unet, *self.compile_options)

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The terms at fixed diffusion steps, what restoring gives, and the distance to the teacher's result."""
        values, count = super().evaluate(batch, batch_idx, stage)
        if batch_idx >= max(self.restore_items, 1):
            return values, count
        high, low = self._mels(batch)
        scale, (guidance, rescale) = self.net.latent_scale, self.guidance
        condition = posterior_mean(self._moments(low, self.condition_autoencoder)) * scale
        clip = self._full_audio(high, low)
        first = (batch_idx * self.trainer.world_size + self.trainer.global_rank) * count
        noise = batch["noise"] if "noise" in batch else self._validation_noise(batch, range(first, first + count))
        noise = noise.to(condition.device)
        found = []
        for net, sampler, strength in (
            (self.net, self.restore_sampler, (1.0, 0.0)),
            (self.teacher.net, DDIM(self.grid[0]), (guidance, rescale)),
        ):
            predict = conditioned(net, condition, None if clip is None else net.encode_clip(clip), *strength)
            found.append(sampler.sample(predict, noise, self.diffusion))
        return {**values, "teacher_mse": (found[0] - found[1]).square().mean()}, count

    def _objective(self) -> Objective:
        return Distillation(super()._objective(), self.teacher, self.times, self.turns, *self.guidance)


def _check(
    net: Denoiser,
    autoencoder: FrozenAutoencoder,
    diffusion: CosineDiffusion,
    teacher: FrozenDenoiser,
    guidance_scale: float,
) -> None:
    """Compare student and teacher."""
    if diffusion.prediction != "v":
        raise ValueError(
            "distillation needs diffusion.prediction v: of pure noise a prediction of the noise says nothing"
        )
    if guidance_scale != 1:
        raise ValueError(
            f"guidance_scale is {guidance_scale:g}: a student has its guidance in the weights, so it is 1; "
            "teacher_guidance sets what is learned"
        )
    own, theirs = ({name: tuple(each.shape) for name, each in one.state_dict().items()} for one in (net, teacher.net))
    if own != theirs:
        name = next(name for name in [*theirs, *own] if own.get(name) != theirs.get(name))
        raise ValueError(
            f"the student is built otherwise than its teacher: {name} is {own.get(name, 'missing')}, the teacher's is "
            f"{theirs.get(name, 'missing')}; give net the arguments of the teacher's recipe"
        )
    trained = teacher.trained_on
    if trained is not None and trained != autoencoder.fingerprint():
        raise ValueError(
            f"the teacher was trained on the latents of another autoencoder (sha256 {trained[:16]}) than this one "
            f"({autoencoder.fingerprint()[:16]}): name the source that the teacher's run had"
        )
