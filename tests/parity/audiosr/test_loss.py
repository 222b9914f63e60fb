"""The diffusion's loss and its gradients against ProjectLily's modelV1."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.numeric import assert_agrees
from tests.parity.recorded import arrays
from zoo.audiosr import CosineDiffusion, Denoiser, FrozenAutoencoder, GlobalEncoder, Latent, MelFeatures, UNet
from zoo.audiosr.losses import Objective
from zoo.common.safe_load import load_foreign_checkpoint

PREFIX = "model.diffusion_model."


def test_loss_and_gradients(folder: Path) -> None:
    io, meta = arrays(folder / "set_a" / "io.npz"), json.loads((folder / "set_a" / "meta.json").read_text())
    weights = load_foreign_checkpoint(folder / "set_a" / "step_7.pt")["state_dict"]
    unet = UNet(8, 4, 32, (1, 1), 1, (2,), 16, fusion="replace", context_channels=16)
    net = Denoiser(unet, GlobalEncoder(context_channels=16)).eval()
    reference = {key.removeprefix(PREFIX): value.float() for key, value in weights.items() if key.startswith(PREFIX)}
    state = {key if key.startswith("global_encoder.") else f"unet.{key}": value for key, value in reference.items()}
    net.load_state_dict({**state, "latent_scale": torch.tensor(1.0)})
    # the loss on latents needs neither; modelV1's latents come from the recorded moments
    unused = {"in_channels": 1, "out_channels": 1, "block_out_channels": [8], "layers_per_block": 1}
    unused |= {"norm_num_groups": 4, "latent_channels": 16}
    objective = Objective(
        net, CosineDiffusion(), nn.ModuleDict({"latent": Latent()}), FrozenAutoencoder(config=unused),
        MelFeatures(sample_rate=16000, n_fft=512, hop_length=160, n_mels=32), None,
    )  # fmt: skip
    mean, condition, noise, clip, t = (io[key] for key in ("vae_moments", "cond_mean", "noise", "ge_in", "t"))

    def evaluate(objective: Objective, mean: Tensor, condition: Tensor, noise: Tensor, clip: Tensor) -> Any:
        sums = objective(mean.chunk(2, 1)[0], condition, t, noise, torch.zeros(2), clip.mT)
        loss = sums["latent"].sum() / 2
        names, parameters = zip(*objective.net.named_parameters(), strict=True)
        gradients = zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True)
        return loss, {name: each for name, each in gradients if each is not None}

    loss, gradients = assert_agrees(evaluate, objective, mean, condition, noise, clip)
    norms = {name: float(each.norm()) for name, each in gradients.items()}
    assert loss.item() == pytest.approx(meta["loss"], rel=1e-5)
    total = sum(value**2 for value in norms.values()) ** 0.5
    assert total == pytest.approx(meta["grad_norm_total"], rel=1e-4)
    for name, norm in meta["grad_norms_sample"].items():
        actual = name.removeprefix(PREFIX)
        results = norms.get(actual if actual.startswith("global_encoder.") else f"unet.{actual}", 0.0)
        assert results == pytest.approx(norm, rel=1e-3, abs=1e-7), name
