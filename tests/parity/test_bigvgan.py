"""BigVGAN's nets against what the original code computed."""

import json
import math
import re
import zlib

import numpy as np
import pytest
import torch

from tests.conftest import SHARED
from zoo.audio.analysis.spectral import MultiScaleMel
from zoo.hifigan.convert.rules import to_legacy_keys, to_our_keys
from zoo.hifigan.nets.antialiasing import AntiAliased, Snake, kaiser_sinc
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator
from zoo.hifigan.nets.spectral_discriminators import (
    MultiBandDiscriminator,
    MultiOctaveDiscriminator,
    MultiResolutionDiscriminator,
)
from zoo.training.adversarial import adversarial_loss, discriminator_loss, feature_matching_loss

GOLDEN = SHARED / "golden" / "bigvgan"
META = json.loads((GOLDEN / "meta.json").read_text())["cases"] if GOLDEN.is_dir() else {}
GENERATORS = [name for name in META if name.startswith("gen_")]
pytestmark = pytest.mark.shared


def generator(folder):
    h = json.loads((folder / "config.json").read_text())
    return BigVGAN(
        h["num_mels"], h["upsample_initial_channel"], h["upsample_rates"], h["upsample_kernel_sizes"], h["resblock"],
        h["resblock_kernel_sizes"], h["resblock_dilation_sizes"], h["activation"], h["snake_logscale"],
        h.get("use_tanh_at_final", True), h.get("use_bias_at_final", True),
    )  # fmt: skip


def arrays(name):
    return {key: torch.from_numpy(value) for key, value in np.load(GOLDEN / name).items()}


def close(found, stored, name, case):
    """In float64 up to the rounding of float32 constants, in float32 within 20 times the recording's rounding."""
    facts = META[case]["arrays"].get(f"{name}.f32", {})
    scale = max(float(stored[f"{name}.f32"].abs().max()), 1e-3)
    if found.dtype == torch.float64 and f"{name}.f64" in stored:
        torch.testing.assert_close(found, stored[f"{name}.f64"], rtol=0, atol=1e-6 * scale)
        return
    bound = max(20 * facts.get("max_abs_diff_to_f64", 0.0), 1e-6 * scale)
    torch.testing.assert_close(found.float(), stored[f"{name}.f32"], rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", GENERATORS)
def test_generators(case, dtype):
    folder = GOLDEN / case
    net, stored = generator(folder), arrays(f"{case}/io.npz")
    state = torch.load(folder / "bigvgan_generator.pt", weights_only=True)["generator"]
    ours = to_our_keys({_flat(key): value for key, value in state.items() if not key.endswith(".filter")})
    net.load_state_dict(ours)
    net.to(dtype)
    for index in range(3):
        close(net(stored[f"in{index}"].to(dtype)), stored, f"out{index}", case)
    names = [key.removesuffix(".f32") for key in stored if key.startswith("block.") and key.endswith(".f32")]
    taps = {name: seen(net, name.removeprefix("block.")) for name in names if ".stage." not in name}
    net(stored["in0"].to(dtype)).square().mean().backward()
    for name, values in taps.items():
        close(values[0], stored, name, case)
    parameters = to_legacy_keys(dict(net.named_parameters()))
    for name in (key[5:-4] for key in stored if key.startswith("grad.") and key.endswith(".f32")):
        close(parameters[_flat(name)].grad, stored, f"grad.{name}", case)
    found = net.float().fuse_()(stored["in0"])
    torch.testing.assert_close(found, stored["out0_fused.f32"], rtol=0, atol=1e-4)
    assert not any("parametrizations" in key for key in net.state_dict())


def _flat(key):
    return re.sub(r"^(ups\.\d+)\.0\b", r"\1", key)


def seen(net, name):
    values = []
    net.get_submodule(_flat(name)).register_forward_hook(lambda _, __, output: values.append(output.detach().clone()))
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations(dtype):
    stored = arrays("activation1d.npz")
    for name, value in stored.items():
        if name.startswith("filter_"):
            cutoff, width, taps = name.split("_")[1:]
            found = kaiser_sinc(float(cutoff), float(width), int(taps))
            torch.testing.assert_close(found, value.flatten(), rtol=0, atol=1e-7)
    for case, options in ((f"act{i}", META["activation1d"][f"act{i}"]) for i in range(4)):
        snake = Snake(options["channels"], options["kind"] == "snakebeta", options["logscale"])
        for name, parameter in snake.named_parameters():
            parameter.data.copy_(stored[f"{case}.{name}"])
        module = AntiAliased(snake, options["up_ratio"], options["up_kernel"], options["down_kernel"]).to(dtype)
        for length in (key.rpartition("_T")[2] for key in stored if key.startswith(f"{case}.in_T")):
            x = stored[f"{case}.in_T{length}"].to(dtype)
            close(module(x), stored, f"{case}.out_T{length}", "activation1d")
            close(module.up(x), stored, f"{case}.up_T{length}", "activation1d")
            close(module.down(x), stored, f"{case}.down_T{length}", "activation1d")
            close(snake(x), stored, f"{case}.snake_T{length}", "activation1d")


def to_ours(state):
    """Names of the original's discriminators as ours."""
    skipped = (".window", "resample.kernel", "cqt_transform.")
    return to_our_keys({key: value for key, value in state.items() if not any(each in key for each in skipped)})


CASES = {
    "mpd": lambda: MultiPeriodDiscriminator((2, 3), channels=(1, 5, 20, 40, 40)),
    "mrd": lambda: MultiResolutionDiscriminator(((128, 15, 75), (256, 30, 150), (64, 7, 30)), 0.04),
    "mrd_sn": lambda: MultiResolutionDiscriminator(((128, 15, 75), (256, 30, 150), (64, 7, 30)), 0.1, True),
    "mbd_small": lambda: MultiBandDiscriminator((256,), channels=5),
    "mbd_formula": lambda: MultiBandDiscriminator((512, 128)),
    "cqtd": lambda: MultiOctaveDiscriminator(16000, (128, 64), (7, 6), (6, 8), 4, (1, 2, 4)),
    "cqtd_early": lambda: MultiOctaveDiscriminator(16000, (256,), (4,), (7,), 3, (1, 2), True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_discriminators(case, dtype):
    net, stored = CASES[case](), arrays(f"{case}.npz")
    if (GOLDEN / f"{case}.pt").exists():
        state = to_ours(torch.load(GOLDEN / f"{case}.pt", weights_only=True))
        whole = all(key.startswith("disc") for key in state)
        net.load_state_dict(state if whole else {f"discriminators.0.{key}": value for key, value in state.items()})
    else:
        fill(net)
    net.to(dtype).eval()
    real, fake = (net(stored[name].to(dtype)) for name in ("real", "fake"))
    for index, (scores, maps) in enumerate(real):
        close(scores, {k: v.flatten(1) if "score" in k else v for k, v in stored.items()}, f"score_real.{index}", case)
        assert len(maps) == META[case]["fmaps_per_sub"][index]
        for number, found in enumerate(maps):
            name = f"fmap_real.{index}.{number}"
            if f"{name}.f32" in stored:
                close(found, stored, name, case)
            else:
                close(statistics(found), stored, f"fmap_real_stat.{index}.{number}", case)
    suffix = "f64" if dtype == torch.float64 else "f32"
    losses = {
        "disc": discriminator_loss(real, fake),
        "gen": adversarial_loss(fake),
        "fm": 2 * feature_matching_loss(real, fake),
    }
    for name, loss in losses.items():
        wanted = stored[f"loss.{name}.{suffix}"].double()
        torch.testing.assert_close(loss.double(), wanted, rtol=1e-4 if case == "mrd_sn" else 2e-6, atol=0)


def fill(net, rename=lambda name: name):
    """Weights by the formula on the original's names."""
    names = to_legacy_keys({name: name for name, _ in net.named_parameters()})
    for legacy, name in names.items():
        original = rename(legacy)
        parameter = net.get_parameter(name)
        number = zlib.crc32(original.encode())
        a, b = 0.37 + 0.001 * (number % 1000), 0.01 * ((number // 1000) % 628)
        wave = torch.sin(a * torch.arange(1, parameter.numel() + 1, dtype=torch.float64) + b).reshape(parameter.shape)
        if "emb" in original:
            wave = 0.1 * wave
        elif original.endswith("bias"):
            wave = 0.01 * wave
        elif original.endswith("weight_g"):
            wave = 1 + 0.1 * wave
        else:
            wave = wave / math.sqrt(parameter[0].numel())
        parameter.data.copy_(wave)


def statistics(x):
    return torch.stack([x.mean(), x.std(), x.abs().max(), x.flatten()[0], x.flatten()[-1]]).detach()


def test_multi_scale_mel():
    stored = arrays("losses.npz")
    options = {
        "default": {}, "pow2_mag1": {"power": 2.0, "magnitude_weight": 1.0},
        "two_scales": {"windows": (1024, 256), "bands": (80, 30), "f_min": (0, 50), "f_max": (None, 8000)},
    }  # fmt: skip
    for case, arguments in options.items():
        fake = stored["fake"].clone().requires_grad_()
        loss = MultiScaleMel(24000, **arguments)(fake, stored["real"])
        loss.backward()
        close(loss.detach(), stored, f"msmel.{case}", "losses")
        close(fake.grad[..., ::10], stored, f"msmel_grad.{case}", "losses")


def test_dac():
    stored = arrays("dac.npz")
    net = MultiBandDiscriminator((256, 128), match_stride=True, every_map=True)
    fill(net, lambda name: re.sub(r"(band_convs\.\d+\.\d+)", r"\1.0", name))
    for index, (scores, maps) in enumerate(net(stored["real"])):
        spectrum = net.discriminators[index].spectrum(stored["real"][:1])
        torch.testing.assert_close(spectrum, stored[f"stft_real.{index}.f32"], rtol=0, atol=2e-5)
        torch.testing.assert_close(scores, stored[f"score_real.{index}.f32"].flatten(1), rtol=0, atol=1e-6)
        assert len(maps) == 26
