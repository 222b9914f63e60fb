"""What our vocoders are measured against: HiFi-GAN's training steps as plain loops, and the package vocos.

Written from the papers and the description of the original's script, for the benchmarks only.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from zoo.hifigan.data import VocoderData
from zoo.hifigan.task import HiFiGANTask, mel_l1
from zoo.training.adversarial import Output, adversarial_loss, discriminator_loss, feature_matching_loss


class Step(ABC):
    """One training step without Lightning, on copies of a task's nets with other optimizers.

    Args:
        task: gives nets, front ends, optimizers and loss weights.
        batches: endless batches of the training loader.
    """

    def __init__(self, task: HiFiGANTask, batches: Iterator[dict[str, Tensor]]) -> None:
        if task.mel is None:
            raise ValueError("the baselines condition on mels: model.init_args.mel must not be null")
        self.mel, self.loss_mel, self.weights = task.mel, task.loss_mel, task.loss_weights
        self.generator = copy.deepcopy(task.generator)
        self.discriminators = {name: copy.deepcopy(getattr(task, name)) for name in task.discriminator_names}
        judges = [p for discriminator in self.discriminators.values() for p in discriminator.parameters()]
        self.discriminator_parameters = judges
        self.optimizer_g: Any = task.optimizer_g(list(self.generator.parameters()))
        self.optimizer_d: Any = task.optimizer_d(judges)
        self.batches = batches

    def __call__(self) -> None:
        """Take the next batch and train on it."""
        audio = next(self.batches)["audio"]
        self.train(audio[:, None], self.generator(self.mel(audio)))

    @abstractmethod
    def train(self, real: Tensor, fake: Tensor) -> None:
        """Step discriminators, then generator, on audio (B, 1, T) each."""


class PlainStep(Step):
    """Our order of passes: real and generated audio judged together, discriminators frozen in the generator's phase."""

    def train(self, real: Tensor, fake: Tensor) -> None:
        """Step discriminators, then generator."""
        self.optimizer_d.zero_grad()
        terms = []
        for name, discriminator in self.discriminators.items():
            outputs = discriminator(torch.cat([real, fake.detach()]))
            on_real, on_fake = _halves(outputs, len(real))
            terms.append(self.weights[f"d/{name}"] * discriminator_loss(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_d.step()
        for parameter in self.discriminator_parameters:
            parameter.requires_grad_(False)
        self.optimizer_g.zero_grad()
        terms = [self.weights["g/mel"] * mel_l1(self.loss_mel, fake, real)]
        for name, discriminator in self.discriminators.items():
            with torch.no_grad():
                on_real = discriminator(real)
            on_fake = discriminator(fake)
            terms.append(self.weights[f"g/adv_{name}"] * adversarial_loss(on_fake))
            terms.append(self.weights[f"g/fm_{name}"] * feature_matching_loss(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_g.step()
        for parameter in self.discriminator_parameters:
            parameter.requires_grad_(True)


class OriginalStep(Step):
    """The original's order: real and generated audio judged one after the other, discriminators never frozen.

    So the generator's phase also computes gradients of the discriminators, from generated and from real audio, which
    the next step throws away.
    """

    def train(self, real: Tensor, fake: Tensor) -> None:
        """Step discriminators, then generator."""
        self.optimizer_d.zero_grad()
        terms = []
        for name, discriminator in self.discriminators.items():
            on_real, on_fake = discriminator(real), discriminator(fake.detach())
            terms.append(self.weights[f"d/{name}"] * discriminator_loss(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_d.step()
        self.optimizer_g.zero_grad()
        terms = [self.weights["g/mel"] * mel_l1(self.loss_mel, fake, real)]
        for name, discriminator in self.discriminators.items():
            on_real, on_fake = discriminator(real), discriminator(fake)
            terms.append(self.weights[f"g/adv_{name}"] * adversarial_loss(on_fake))
            terms.append(self.weights[f"g/fm_{name}"] * _attached_feature_matching(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_g.step()


class VocosStep:
    """A step of the package vocos 0.1.0 at 24 kHz: its nets and losses, in the order of its `training_step`.

    Args:
        task: gives optimizers.
        batches: endless batches of the training loader.
    """

    def __init__(self, task: HiFiGANTask, batches: Iterator[dict[str, Tensor]]) -> None:
        from vocos.discriminators import MultiPeriodDiscriminator, MultiResolutionDiscriminator
        from vocos.feature_extractors import MelSpectrogramFeatures
        from vocos.heads import ISTFTHead
        from vocos.loss import DiscriminatorLoss, FeatureMatchingLoss, GeneratorLoss, MelSpecReconstructionLoss
        from vocos.models import VocosBackbone

        net = VocosBackbone(100, 512, 1536, 8), ISTFTHead(512, 1024, 256, "center")
        self.generator = nn.Sequential(MelSpectrogramFeatures(), *net)
        self.discriminators: Any = nn.ModuleList([MultiPeriodDiscriminator(), MultiResolutionDiscriminator()])
        self.mel, self.judge = MelSpecReconstructionLoss(), DiscriminatorLoss()
        self.adversarial, self.matching = GeneratorLoss(), FeatureMatchingLoss()
        self.optimizer_g: Any = task.optimizer_g(list(self.generator.parameters()))
        self.optimizer_d: Any = task.optimizer_d(list(self.discriminators.parameters()))
        self.batches = batches

    def __call__(self) -> None:
        """Take the next batch and train on it; the generator runs once for each side."""
        audio = next(self.batches)["audio"]
        with torch.no_grad():
            fake = self.generator(audio)
        self.optimizer_d.zero_grad()
        for each in self.discriminators:
            (self.judge(*each(audio, fake)[:2])[0] / len(each.discriminators)).backward()
        self.optimizer_d.step()
        self.discriminators.requires_grad_(False)
        self.optimizer_g.zero_grad()
        fake = self.generator(audio)
        loss = 45 * self.mel(fake, audio)
        for each in self.discriminators:
            _, scores, on_real, on_fake = each(audio, fake)
            loss = loss + (self.adversarial(scores)[0] + self.matching(on_real, on_fake)) / len(scores)
        loss.backward()
        self.optimizer_g.step()
        self.discriminators.requires_grad_(True)


def endless_batches(data: VocoderData) -> Iterator[dict[str, Tensor]]:
    """Yield a datamodule's training batches as the trainer draws them, epoch after epoch; it is set up."""
    batches = data.train_dataloader()
    for epoch in count():
        batches.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        yield from batches


def _halves(outputs: Sequence[Output], size: int) -> tuple[list[Output], list[Output]]:
    return (
        [(scores[:size], [each[:size] for each in maps]) for scores, maps in outputs],
        [(scores[size:], [each[size:] for each in maps]) for scores, maps in outputs],
    )


def _attached_feature_matching(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Feature matching whose gradient also flows into the real side."""
    pairs = [pair for (_, a), (_, b) in zip(real, fake, strict=True) for pair in zip(a, b, strict=True)]
    return torch.stack([(map_real - map_fake).abs().mean() for map_real, map_fake in pairs]).sum()
