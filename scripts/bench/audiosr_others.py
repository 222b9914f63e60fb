"""What our AudioSR is measured against: a training step in the original's order of work, as a plain loop.

Written anew from the description of the original's script, for the benchmarks only.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from zoo.audiosr.data.cutoff import share_cutoff, spectrum
from zoo.audiosr.data.datamodule import SuperResolutionData
from zoo.audiosr.data.simulate import lowpass
from zoo.audiosr.nets.denoiser import concat
from zoo.audiosr.task import DiffusionTask
from zoo.blocks.autoencoder import AutoencoderKL, posterior_mean, sample_posterior

ORIGINAL_DECAY = 0.999
_CUTOFF_HZ = 1000.0  # the original filters nothing below; here as everywhere there is something to predict


class OriginalStep:
    """A training step in the original's order of work, as a plain loop on copies of a task's nets.

    Each item is filtered and its two mels are computed one by one; the target goes through one autoencoder, the
    condition through another one, both in training mode; every weight there is, trained or not, is clipped, belongs to
    the optimizer, and has an average that is made anew in every step.

    Args:
        task: gives nets, front end, optimizer and schedule.
        data: gives recordings and the size of a batch; is set up.
        clip: largest norm of the gradients.
        checkpointing: compute activations anew in the backward pass, as the original always does in transformers.
    """

    def __init__(self, task: DiffusionTask, data: SuperResolutionData, clip: float, checkpointing: bool) -> None:
        assert task.scheduler is not None and task.vocoder is not None
        self.net = copy.deepcopy(task.net).train()
        self.net.unet.checkpointing = checkpointing
        self.features, self.diffusion = task.features, task.diffusion
        self.autoencoders: list[AutoencoderKL] = [copy.deepcopy(task.autoencoder.net).train() for _ in range(2)]
        vocoders = [copy.deepcopy(task.vocoder.net) for _ in range(2)]
        self.weights = [weight for each in (self.net, *self.autoencoders, *vocoders) for weight in each.parameters()]
        for weight in self.weights:
            weight.requires_grad_(True)
        self.average = [weight.detach().clone() for weight in self.weights]
        self.optimizer = task.optimizer(self.weights)
        self.scheduler = task.scheduler(self.optimizer)
        self.clip = clip
        self.data = data
        self.rng = np.random.default_rng(0)
        self.loss = float("nan")

    def __call__(self) -> None:
        """Train on one batch."""
        high, low = self.mels()
        with torch.no_grad():
            first, second = (each.encode(mel) for each, mel in zip(self.autoencoders, (high, low), strict=True))
            target, condition = (
                sample_posterior(each, torch.randn_like(posterior_mean(each))) for each in (first, second)
            )
        t = torch.randint(self.diffusion.steps, (len(target),))
        noise = torch.randn_like(target)
        context = None if self.net.global_encoder is None else self.net.encode_clip(high)
        output = self.net(concat(self.diffusion.add_noise(target, noise, t), condition), t, context=context)
        loss = nn.functional.mse_loss(output, self.diffusion.target(target, noise, t))
        self.loss = loss.item()
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.update_average()
        self.optimizer.zero_grad()

    def mels(self) -> tuple[Tensor, Tensor]:
        """Log-mels (B, 1, F, n_mels) of a batch and of its filtered copy, item by item."""
        crops = self.data.train_set
        pairs = []
        for index in self.rng.choice(crops.indices, self.data.batch_size):
            room = max(crops.recordings.length(index) - crops.samples, 0)
            audio, _ = crops.recordings.read(index, int(self.rng.integers(room + 1)), crops.samples)
            high = np.pad(audio, (0, crops.samples - len(audio)))
            cutoff_hz = float(
                np.clip(share_cutoff(spectrum(high), crops.sample_rate), _CUTOFF_HZ, 0.45 * crops.sample_rate)
            )
            low = lowpass(high, crops.sample_rate, round(cutoff_hz, -2), order=8, resample=True)
            pairs.append([self.features(torch.from_numpy(each)[None, None]) for each in (high, low)])
        highs, lows = zip(*pairs, strict=True)
        return torch.cat(highs), torch.cat(lows)

    @torch.no_grad()
    def update_average(self) -> None:
        """Average all weights; each average is a new tensor."""
        self.average = [
            ORIGINAL_DECAY * average + (1 - ORIGINAL_DECAY) * weight
            for average, weight in zip(self.average, self.weights, strict=True)
        ]
