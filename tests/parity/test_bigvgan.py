"""BigVGAN's nets against what the original code computed."""

import json

import numpy as np
import pytest
import torch

from tests.conftest import SHARED
from zoo.hifigan.convert.rules import to_our_keys
from zoo.hifigan.nets.antialiasing import AntiAliased, Snake, kaiser_sinc
from zoo.hifigan.nets.bigvgan import BigVGAN

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
    filters = {key: value for key, value in state.items() if key.endswith(".filter")}
    ours = to_our_keys({key.replace(".0.", ".", 1) if key.startswith("ups.") and False else key: value for key, value in state.items() if key not in filters})
    ours = {_flat(key): value for key, value in ours.items()}
    net.load_state_dict(ours)
    net.to(dtype)
    for index in range(3):
        close(net(stored[f"in{index}"].to(dtype)), stored, f"out{index}", case)
    taps = {key: seen(net, key.removeprefix("block.").removesuffix(".f32")) for key in stored if key.startswith("block.") and key.endswith(".f32") and ".stage." not in key}
    net(stored["in0"].to(dtype)).square().mean().backward()
    for key, values in taps.items():
        close(values[0], stored, key.removesuffix(".f32"), case)


def _flat(key):
    parts = key.split(".")
    return ".".join(parts[:2] + parts[3:]) if parts[0] == "ups" else key


def seen(net, name):
    values = []
    module = net.get_submodule(_flat(name + ".x").removesuffix(".x") if name.startswith("ups") else name)
    module.register_forward_hook(lambda m, i, o: values.append(o.detach().clone()) and None)
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
