import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.audiosr.lily import UNET
from tests.numeric import assert_agrees, exactly
from zoo.audiosr.convert.autoencoder_names import to_zoo_autoencoder
from zoo.audiosr.nets.denoiser import Denoiser, GlobalEncoder, concat
from zoo.audiosr.nets.unet import UNet, timestep_embedding
from zoo.blocks.autoencoder import AutoencoderKL, kl_divergence, posterior_mean, sample_posterior
from zoo.common.safe_load import load_foreign_checkpoint

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def state(shared: Path) -> dict[str, Tensor]:
    weights = load_foreign_checkpoint(shared / "golden" / "audiosr" / "set_a" / "step_7.pt")["state_dict"]
    return {key: value.float() if value.dtype == torch.float16 else value for key, value in weights.items()}


@pytest.fixture(scope="module")
def io(shared: Path) -> dict[str, Tensor]:
    with np.load(shared / "golden" / "audiosr" / "set_a" / "io.npz") as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays}


@pytest.fixture
def autoencoder(state) -> AutoencoderKL:
    net = AutoencoderKL(1, 1, (32, 32), layers_per_block=1, latent_channels=4)
    return loaded(net, to_zoo_autoencoder(under(state, "first_stage_model.")))


@pytest.fixture
def denoiser(state) -> Denoiser:
    net = Denoiser(UNet(**UNET, fusion="replace", context_channels=16), GlobalEncoder(context_channels=16))
    weights = under(state, "model.diffusion_model.")
    encoder = under(weights, "global_encoder.")
    loaded(net.global_encoder, encoder)
    loaded(net.unet, {key: value for key, value in weights.items() if not key.startswith("global_encoder.")})
    return net.eval()


def under(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def loaded(net: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    net.load_state_dict(state)
    return net.eval()


def transpose_kernels(net: nn.Module) -> None:
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.data = layer.weight.data.transpose(-1, -2).contiguous()


STATED = {"atol": 1e-4, "rtol": 1e-3}  # the wider one holds


@torch.no_grad()
def test_autoencoder(io, autoencoder):
    def evaluate(autoencoder, io):
        moments = autoencoder.encode(io["ge_in"])
        mean = posterior_mean(moments)
        condition = posterior_mean(autoencoder.encode(io["lr_in"]))
        divergence = kl_divergence(moments) / mean[0].numel()
        decoded = autoencoder.decode(mean)
        return {"vae_moments": moments, "vae_kl": divergence, "vae_dec": decoded, "cond_mean": condition}

    recorded = {name: io[name] for name in ("vae_moments", "vae_kl", "vae_dec", "cond_mean")}
    exact = assert_agrees(evaluate, autoencoder, io, recorded=recorded, **STATED)
    mean = posterior_mean(exact["vae_moments"])
    assert torch.equal(sample_posterior(exact["vae_moments"], torch.zeros_like(mean)), mean)


@torch.no_grad()
def test_global_encoder(io, denoiser):
    recorded = io["ge_global"], io["ge_sequence"]
    assert_agrees(lambda net, mel: net(mel), denoiser.global_encoder, io["ge_in"], recorded=recorded, **STATED)


@torch.no_grad()
def test_denoiser_with_and_without_the_clip(io, denoiser):
    # modelV1 norms an image that is the same everywhere, which multiplies rounding errors by 1000: in float64 the net
    # is 1e-4 away from its own recording
    def evaluate(net, io):
        conditions = [concat(io["x_noisy"], io[name]) for name in ("cond_mean", "cond_small")]
        options = [net(x, io["t"], io["ge_in"].mT) for x in conditions]
        return timestep_embedding(io["temb_t"], 32), net(conditions[0], io["t"]), *options

    names = "temb", "unet_out_noglobal", "unet_out_global", "wrapper_out_small_cond"
    assert_agrees(evaluate, denoiser, io, recorded=tuple(io[name] for name in names), **STATED)


@torch.no_grad()
def test_the_nets_run_time_first_with_transposed_kernels(io, autoencoder, denoiser):
    def evaluate(autoencoder, denoiser, mel, x, clip):
        moments = autoencoder.encode(mel)
        return moments, autoencoder.decode(posterior_mean(moments)), denoiser(x, io["t"], clip)

    x, clip = concat(io["x_noisy"], io["cond_small"]), io["ge_in"].mT
    frequency_first = exactly(evaluate, autoencoder, denoiser, io["ge_in"], x, clip)
    transpose_kernels(autoencoder)
    transpose_kernels(denoiser.unet)
    for actual, expected in zip(
        exactly(evaluate, autoencoder, denoiser, clip, x.mT, clip), frequency_first, strict=True
    ):
        torch.testing.assert_close(actual.mT, expected, atol=1e-10, rtol=0)


@torch.no_grad()
def test_audiosrs_own_unet(shared):
    folder = shared / "golden" / "audiosr" / "common"
    config = json.loads((folder / "audiosr_unet_config.json").read_text())
    net = UNet(
        in_channels=config["in_channels"],
        out_channels=config["out_channels"],
        channels=config["model_channels"],
        multipliers=config["channel_mult"],
        blocks=config["num_res_blocks"],
        attention_factors=config["attention_resolutions"],
        head_channels=config["num_head_channels"],
    )
    weights = load_foreign_checkpoint(folder / "audiosr_unet.pt")
    loaded(net, {key: value.float() for key, value in weights.get("state_dict", weights).items()})
    with np.load(folder / "audiosr_unet_ddim.npz") as arrays:
        io = {key: torch.from_numpy(arrays[key]) for key in ("scale_factor", "cond", "x_T", "unet_t", "unet_out")}
    x = concat(io["x_T"], io["cond"] * io["scale_factor"].float())
    assert_agrees(lambda net, x: net(x, io["unet_t"]), net, x, recorded=io["unet_out"], **STATED)
