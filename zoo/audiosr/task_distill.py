"""Distillation of a trained diffusion into a student that needs 1 to 4 steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.losses import DiffusionTerm, Objective
from zoo.audiosr.nets.denoiser import Denoiser, concat
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder
from zoo.audiosr.options import DEFAULT_RESTORE, RestoreOptions
from zoo.audiosr.samplers import DDIM, conditional_predictor, time_grid
from zoo.audiosr.task import DEFAULT_CONDITION, Batch, ConditionOptions, DiffusionTask
from zoo.blocks.autoencoder import posterior_mean
from zoo.common.build import check_state_dict
from zoo.common.checks import check_at_least, check_within
from zoo.runs.frozen_net import FrozenNet
from zoo.training.task import OptimizerCallable


class FrozenDenoiser(FrozenNet):
    """A trained denoiser, averaged weights where its run has them: the teacher of a distillation.

    `config` has the arguments of the UNet as `unet` and, if there is one, those of the encoder as `global_encoder`.
    """

    net_class = net_base = "zoo.audiosr.Denoiser"
    inference = "zoo.audiosr.Restorer"

    @classmethod
    def describe_net(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Descriptions of its nets."""
        classes = {"unet": "zoo.audiosr.UNet", "global_encoder": "zoo.audiosr.GlobalEncoder"}
        return super().describe_net(
            {name: {"class_path": classes[name], "init_args": dict(each)} for name, each in config.items()}
        )

    @property
    def trained_on(self) -> str | None:
        """sha256 of the autoencoder whose latents it was trained on; None where its source does not tell."""
        return self.description.records.get("autoencoder", {}).get("sha256")


class Distillation(Objective):
    """All terms of the loss on one batch, against a target from the teacher and the student itself.

    With the angle phi_t = arctan(sqrt(1 - a_t) / sqrt(a_t)) a deterministic step from t to s is a rotation by
    d = phi_t - phi_s: x_s = cos(d) x_t - sin(d) v_t. Of the teacher's grid t_0 > ... > t_N (t_N is clean data) every
    N / K-th time bounds a segment. At x = x_{t_i} in a segment that ends at e:

        y  = cos(phi_i - phi_{i+1}) x - sin(phi_i - phi_{i+1}) v_teacher(x, t_i)          one step of the teacher
        z  = cos(phi_{i+1} - phi_e) y - sin(phi_{i+1} - phi_e) v_student(y, t_{i+1})      the rest in one, no gradient
        v* = (cos(phi_i - phi_e) x - z) / sin(phi_i - phi_e)

    v* takes x to z in one step; the student's output at x is compared with it. Where t_{i+1} is e, z is y. So in each
    segment all points of a path lead to where the teacher's steps lead, and K steps suffice. K = 1 is consistency
    distillation; N = 2 K with the former student as teacher is progressive distillation.

    Args:
        teacher: frozen.
        times: t_0 to t_N (N + 1,) int64, like `rotations` of `grid_rotations`.
        rotations: cosines and sines of the three angles (N, 3, 2).
        scale: of the teacher's guidance, see `zoo.blocks.image.classifier_free_guidance`.

    Source: Heek et al., "Multistep Consistency Models" (2024), algorithm 1; Song et al., "Consistency Models" (2023),
    algorithm 2, with the student itself for the averaged one as in Song and Dhariwal (2024), section 3.2; v and its
    angle: Salimans and Ho, "Progressive Distillation" (2022), appendix D.
    """

    rotations: Tensor
    times: Tensor

    def __init__(
        self, base: Objective, teacher: FrozenDenoiser, times: Tensor, rotations: Tensor, scale: float
    ) -> None:
        super().__init__(base.net, base.diffusion, base.losses, base.autoencoder, base.features, base.vocoder)
        self.teacher, self.scale = teacher, scale
        self.register_buffer("times", times, persistent=False)
        self.register_buffer("rotations", rotations, persistent=False)

    def predict(
        self, latent: Tensor, condition: Tensor, times: Tensor, noise: Tensor, full_audio: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Run both nets; see `Objective.predict`. `times` (B,) move to the teacher's grid."""
        index = len(self.rotations) - 1 - times * len(self.rotations) // self.diffusion.steps
        times, following = self.times[index], self.times[index + 1].clamp_min(0)
        noisy = self.diffusion.add_noise(latent, noise, times)
        context = self.net.encode_clip(full_audio)
        output = self.net(concat(noisy, condition), times, context=context).float()
        with torch.no_grad():
            step, rest, both = self.rotations[index].unbind(1)
            teacher = self.teacher.net
            teacher_context = teacher.encode_clip(full_audio)
            predict = conditional_predictor(teacher, condition, teacher_context, self.scale)
            next_noisy = _rotate(noisy, predict(noisy, times), step)
            context = None if context is None else context.detach()
            student = self.net(concat(next_noisy, condition), following, context=context).float()
            end = _rotate(next_noisy, student, rest)
            cosine, sine = (each[:, None, None, None] for each in both.unbind(1))
            target = (cosine * noisy - end) / sine
            clean = self.diffusion.to_x0(noisy, target, times)
        return output, target, noisy, clean, times


def grid_rotations(diffusion: CosineDiffusion, teacher_steps: int, steps: int) -> tuple[Tensor, Tensor]:
    """Compute times (N + 1,) int64, the last -1, and rotations of a teacher's grid of equal segments.

    Rotations (N, 3, 2) float32 are cosines and sines of the angles from each time to the next, from the next to its
    segment's end, and from each to its segment's end.
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
    start, following, end = angles[:-1], angles[1:], angles[ends]
    turns = np.stack([start - following, following - end, start - end], axis=1)
    return torch.tensor(times), torch.from_numpy(np.stack([np.cos(turns), np.sin(turns)], axis=2)).float()


def _rotate(x: Tensor, v: Tensor, rotation: Tensor) -> Tensor:
    """Take a deterministic step from images (B, C, H, W): rotate by angles whose cosine and sine are (B, 2)."""
    cosine, sine = (each[:, None, None, None] for each in rotation.unbind(1))
    return cosine * x - sine * v


class DistillationTask(DiffusionTask):
    """Stage 4: a student of a trained diffusion that restores in 1 to 4 steps; see `Distillation`.

    The student begins with the teacher's weights and scale of the latents and learns its guidance: a step is one
    evaluation. `steps` steps of DDIM are its sampler; it is not trained for other numbers. In validation `teacher_mse`
    is the mean squared distance of its latents to the teacher's from the same noise, over the clips that are restored.

    Args:
        net: the student, built like the teacher's net; autoencoder, features and diffusion are the teacher's.
        teacher: frozen: a finished run of `DiffusionTask`, or of this one.
        steps: of the student.
        teacher_steps: of DDIM, whose result is learned; a multiple of `steps`. More are nearer to the teacher's path
            and take longer to learn.
        teacher_guidance: scale of the guidance that is learned.
        condition: as of `DiffusionTask`; conditions are never dropped.
        restore: options of inference; `guidance_scale` must be 1, and its sampler is `steps` steps of DDIM when null.
    """

    times: Tensor
    rotations: Tensor

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
        condition: ConditionOptions = DEFAULT_CONDITION,
        restore: RestoreOptions = DEFAULT_RESTORE,
        **kwargs: Any,
    ) -> None:
        _check_teacher(net, autoencoder, diffusion, teacher, restore.guidance_scale)
        check_at_least(0, teacher_guidance=teacher_guidance)
        self._default_sampler = restore.sampler is None
        restore = replace(restore, sampler=restore.sampler or DDIM(steps))
        super().__init__(
            net, autoencoder, features, diffusion, losses, optimizer, latent_scale=float(teacher.net.latent_scale),
            condition=replace(condition, dropout=0.0), restore=restore, **kwargs,
        )  # fmt: skip
        net.load_state_dict(teacher.net.state_dict())
        self.teacher = teacher
        self.steps, self.teacher_steps = steps, teacher_steps
        self.teacher_guidance = teacher_guidance
        tables = grid_rotations(diffusion, teacher_steps, steps)
        for name, table in zip(("times", "rotations"), tables, strict=True):
            self.register_buffer(name, table, persistent=False)

    def setup(self, stage: str) -> None:
        """Name the default sampler in checkpoints and exports."""
        super().setup(stage)
        if self.specs is not None and self._default_sampler:
            sampler = {"class_path": "zoo.audiosr.DDIM", "init_args": {"steps": self.steps}}
            self.specs["options"]["restore"] = {**self.specs["options"]["restore"], "sampler": sampler}

    def _compiled_modules(self) -> list[nn.Module]:
        return [*super()._compiled_modules(), self.teacher.net.unet]

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Compute the terms at fixed diffusion steps, restore, and measure the distance to the teacher's result."""
        values, count = super().evaluate(batch, batch_idx, stage)
        if batch_idx >= max(self.restore_items, 1):
            return values, count
        high, low = self._mels(batch)
        condition = posterior_mean(self._moments(low)) * self.net.latent_scale
        noise = self._evaluation_noise(batch, batch_idx)
        assert self.validation_sampler is not None  # that of restore, which the constructor sets
        latents = []
        for net, sampler, guidance in (
            (self.net, self.validation_sampler, 1.0),
            (self.teacher.net, DDIM(self.teacher_steps), self.teacher_guidance),
        ):
            context = net.encode_clip(self._full_audio(high, low))
            predict = conditional_predictor(net, condition, context, guidance)
            latents.append(sampler.sample(predict, noise, self.diffusion))
        return {**values, "teacher_mse": (latents[0] - latents[1]).square().mean()}, count

    def _objective(self) -> Objective:
        return Distillation(super()._objective(), self.teacher, self.times, self.rotations, self.teacher_guidance)


def _check_teacher(
    net: Denoiser,
    autoencoder: FrozenAutoencoder,
    diffusion: CosineDiffusion,
    teacher: FrozenDenoiser,
    guidance_scale: float,
) -> None:
    """Compare student and teacher; ValueError where they do not fit."""
    if diffusion.prediction != "v":
        raise ValueError(
            "distillation needs diffusion.prediction v: of pure noise a prediction of the noise says nothing"
        )
    if guidance_scale != 1:
        raise ValueError(
            f"restore.guidance_scale is {guidance_scale:g}; expected 1, as the student has its guidance in the "
            "weights: teacher_guidance sets it"
        )
    check_state_dict(net, teacher.net.state_dict(), "the teacher", "net, which needs the arguments of the teacher's")
    modules = dict(net.named_modules())
    for path, module in teacher.net.named_modules():
        for key in ("heads", "num_heads", "num_groups", "fusion"):  # which no tensor's shape shows
            if (value := getattr(modules.get(path), key, None)) != (taught := getattr(module, key, None)):
                raise ValueError(f"net.{path} has {key} {value}, the teacher's {taught}: give net its arguments")
    process = teacher.build_other("diffusion")
    if process is not None and (process.steps, process.prediction) != (diffusion.steps, diffusion.prediction):
        raise ValueError(
            f"the teacher was trained with {process.steps} steps and prediction {process.prediction}, diffusion has "
            f"{diffusion.steps} and {diffusion.prediction}: give both the same"
        )
    trained = teacher.trained_on
    if trained is not None and trained != autoencoder.fingerprint():
        raise ValueError(
            f"the teacher was trained on the latents of another autoencoder (sha256 {trained[:16]}) than this one "
            f"({autoencoder.fingerprint()[:16]}): name the source that the teacher's run had"
        )
