import json
from pathlib import Path

import pytest
import torch

from tests.numeric import assert_agrees
from tests.parity.recorded import arrays, close
from zoo.audiosr import DDIM, CosineDiffusion, MelFeatures, UNet
from zoo.audiosr.data.cutoff import share_cutoff, spectrum
from zoo.audiosr.data.simulate import FILTER_TYPES, lowpass
from zoo.audiosr.nets.denoiser import concat
from zoo.audiosr.samplers import time_grid
from zoo.blocks.image import classifier_free_guidance
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.hifigan.nets.generator import Generator

STATED = {"atol": 1e-4, "rtol": 1e-3}  # the wider one holds


def test_schedule_noising_and_target(folder):
    golden = arrays(folder / "set_a" / "io.npz")
    diffusion = CosineDiffusion()
    index = golden["sched_idx"]
    close(diffusion.alpha_bar[index], golden["sched_alphas_cumprod"], 1e-7)
    close(diffusion.signal[index], golden["sched_sqrt_alphas_cumprod"], 1e-7)
    close(diffusion.sigma[index], golden["sched_sqrt_one_minus_alphas_cumprod"], 1e-7)
    before = torch.cat([torch.ones(1), diffusion.alpha_bar[:-1]])
    close((1 - diffusion.alpha_bar / before)[index], golden["sched_betas"], 1e-6)
    assert diffusion.alpha_bar[-1] == 0
    mean = golden["vae_moments"][:, :4]
    close(diffusion.add_noise(mean, golden["noise"], golden["t"]), golden["x_noisy"], 1e-6)
    close(diffusion.target(mean, golden["noise"], golden["t"]), golden["v_target"], 1e-6)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return {key: value.float() for key, value in load_foreign_checkpoint(path).items()}


@pytest.fixture(scope="module")
def unet(folder: Path) -> UNet:
    net = UNet(8, 4, 32, (1, 1), 1, (2,), 16, 2).eval()
    net.load_state_dict(weights(folder / "common" / "audiosr_unet.pt"))
    return net


@torch.no_grad()
def test_audiosrs_own_unet(folder, unet):
    golden = arrays(folder / "common" / "audiosr_unet_ddim.npz")
    x = concat(golden["x_T"], golden["cond"] * golden["scale_factor"].float())
    assert_agrees(lambda net, x: net(x, golden["unet_t"]), unet, x, recorded=golden["unet_out"], **STATED)


@pytest.mark.parametrize(
    ("steps", "eta", "scale"),
    [(10, 0, 1), (10, 1, 1), (10, 1, 3.5), (50, 0, 1)],
)
def test_trajectories(folder, unet, steps, eta, scale):
    golden = arrays(folder / "common" / "audiosr_unet_ddim.npz")
    *times, end = time_grid(steps, "original", 1000)
    assert times[::-1] == golden[f"ddim_timesteps_S{steps}"].tolist()
    assert end == 0
    condition = golden["cond"] * golden["scale_factor"].float()
    nothing = torch.full_like(condition, float(golden["uncond_value"] * golden["scale_factor"]))

    def under(options: torch.Tensor):
        return lambda x, t: unet(torch.cat([x, options], dim=1), t)

    key = f"s{steps}_eta{eta}_g{scale}"
    noises = iter(golden[f"ddim_noise_{key}"]) if eta else None
    options, free = under(condition), under(nothing)

    def predict(x, t):
        return options(x, t) if scale == 1 else classifier_free_guidance(options(x, t), free(x, t), scale)

    x0 = DDIM(steps, eta, "original").sample(predict, golden["x_T"], CosineDiffusion(), noises)
    close(x0, golden[f"ddim_{key}"], 1e-4)


@pytest.mark.parametrize(("variant", "last_slope", "output_padding"), [("audiosr", 0.01, 0), ("projectlily", 0.1, 1)])
def test_vocoder(folder, variant, last_slope, output_padding):
    common = folder / "common"
    config = json.loads((common / "vocoder_config.json").read_text())
    sizes = config.pop("num_mels"), config.pop("upsample_initial_channel")
    generator = Generator(*sizes, **config, last_slope=last_slope, output_padding=output_padding).remove_weight_norm_()
    generator.load_state_dict(weights(common / "vocoder.pt"))
    golden = arrays(common / "vocoder_io.npz")
    expected = golden[f"wav_{variant}"]
    with torch.no_grad():
        wave = generator(golden["mel"])
    assert wave.shape == (1, 1, 12 * 480)
    close(wave, expected[..., : 12 * 480], 1e-4)


def test_features_and_cutoff(folder):
    golden = arrays(folder / "common" / "features.npz")
    wave = golden["wav"]
    for kind, frames in (("audiosr", 100), ("projectlily", 101)):
        features = MelFeatures(kind)
        assert features(wave[None, None]).shape == (1, 1, frames, 256)
        recorded = golden[f"mel_{kind}_first20"]
        assert_agrees(lambda net, x: net(x)[0, 0, :20].T, features, wave[None, None], recorded=recorded, **STATED)
    assert share_cutoff(spectrum(wave.numpy()), 48000) == golden["cutoff_hz"].item()


@pytest.mark.parametrize("filter_type", FILTER_TYPES)
def test_filters(folder, filter_type):
    golden = arrays(folder / "common" / "features.npz")
    for cutoff_hz in (4000, 11025):
        limited = lowpass(golden["wav"].numpy(), 48000, cutoff_hz, filter_type, resample=True)
        close(torch.from_numpy(limited[:12000]), golden[f"lp_{filter_type}_{cutoff_hz}"], 1e-6)
