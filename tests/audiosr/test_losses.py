"""Loss terms: values, what is decoded, weights."""

from typing import Any

import pytest
import torch

from tests.audiosr.task_parts import AUTOENCODER, VOCODER, features
from zoo.audio.analysis.spectral import multi_resolution_stft
from zoo.audiosr import losses
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder


def step(t: list[int], error: float, **changes: Any) -> losses.DiffusionStep:
    """A step whose prediction is off by `error` everywhere."""
    torch.manual_seed(0)
    diffusion = CosineDiffusion()
    latent, noise, times = torch.randn(len(t), 2, 12, 16), torch.randn(len(t), 2, 12, 16), torch.tensor(t)
    target = diffusion.target(latent, noise, times)
    parts: dict[str, Any] = {
        "output": (target + error).requires_grad_(),
        "target": target,
        "noisy": diffusion.add_noise(latent, noise, times),
        "latent": latent,
        "times": times,
        "positions": torch.zeros(len(t)),
        "diffusion": diffusion,
        "scale": torch.tensor(2.0),
        "autoencoder": FrozenAutoencoder(config=AUTOENCODER),
        "features": features(),
        "vocoder": FrozenVocoder(config=VOCODER),
    }
    return losses.DiffusionStep(**{**parts, **changes})


def test_latent_distances_and_those_of_clean_latents() -> None:
    """Clean latents count v by the share of noise."""
    made = step([3, 500, 900], error=0.5)
    assert losses.Latent()(made).item() == pytest.approx(0.25, abs=1e-6)
    assert losses.Latent("l1")(made).item() == pytest.approx(0.5, abs=1e-6)
    shares = [made.diffusion.levels(t)[1] ** 2 for t in (3, 500, 900)]
    assert losses.CleanLatent()(made).item() == pytest.approx(0.25 * sum(shares) / 3, rel=1e-4)


def test_sound_of_little_noise_only_on_a_crop_decoded_once() -> None:
    made = step([10, 500, 99, 100], error=1.0, positions=torch.tensor([0.0, 0.0, 1.0, 0.0]))  # rounded up
    mel, stft = losses.MelL1(0.1, 8), losses.MultiResolutionSTFT(0.1, 8)
    total = mel(made) + stft(made)
    predicted, true = made.waveforms(0.1, 8)
    assert made.waveforms(0.1, 8)[0] is predicted
    assert predicted.shape == (2, 1, 8 * 160)
    last = made.vocoder(made.autoencoder.decode(made.latent[2:3, :, -4:] / 2))
    torch.testing.assert_close(true[1:], last)
    assert stft(made).item() == pytest.approx(multi_resolution_stft(predicted, true).item() * 2 / 4, rel=1e-5)
    total.backward()
    assert [bool(row.any()) for row in made.output.grad] == [True, False, True, False]
    assert not made.output.grad[0, :, 5:].any()


def test_autoencoder_terms() -> None:
    mean, logvar = torch.full((2, 3, 4, 4), 2.0), torch.zeros(2, 3, 4, 4)
    made = losses.AutoencoderStep(torch.zeros(2, 1, 8, 8), torch.full((2, 1, 8, 8), 3.0), torch.cat([mean, logvar], 1))
    assert losses.Reconstruction()(made).item() == 3 and losses.Reconstruction("l2")(made).item() == 9
    assert losses.KL()(made).item() == 2  # mu^2 / 2


def test_weights() -> None:
    weights = {"a": 2.0, "b": 0.0, "c": 0.5}
    terms = losses.validate_losses({name: losses.Latent(weight=weight) for name, weight in weights.items()})
    assert list(terms) == ["a", "c"]
    assert losses.weighted_sum({"a": torch.tensor(1.0), "c": torch.tensor(4.0)}, terms).item() == 4
    with pytest.raises(ValueError, match="no term has a weight"):
        losses.validate_losses({"a": losses.Latent(weight=0.0)})
