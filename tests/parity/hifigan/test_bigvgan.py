"""BigVGAN's nets against what the original code computed."""

import json
import re
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from tests.conftest import reference_folder
from tests.parity.hifigan.test_training import formula_weights
from tests.parity.recorded import Recorded
from zoo.audio.analysis.spectral import MultiScaleMel
from zoo.common.build import build
from zoo.hifigan import MultiBandDiscriminator, MultiOctaveDiscriminator, MultiResolutionDiscriminator
from zoo.hifigan.convert import convert, convert_config, describe, is_original
from zoo.hifigan.convert.config import generator_spec
from zoo.hifigan.convert.layouts import to_original_names, to_zoo_names
from zoo.hifigan.nets.antialiasing import AntiAliasedActivation, Snake, low_pass_filter
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator
from zoo.runs.load import load
from zoo.training.adversarial import adversarial_loss, discriminator_loss, feature_matching_loss

pytestmark = pytest.mark.shared
GOLDEN = reference_folder("bigvgan")
RECORDED = Recorded(GOLDEN, exact=1e-6)
META, arrays, close = RECORDED.cases, RECORDED.arrays, RECORDED.close
GENERATORS = [name for name in META if name.startswith("gen_")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", GENERATORS)
def test_generators(case, dtype):
    folder = GOLDEN / case
    net, stored = build(generator_spec(json.loads((folder / "config.json").read_text()))), arrays(f"{case}/io.npz")
    state = torch.load(folder / "bigvgan_generator.pt", weights_only=True)["generator"]
    actual = to_zoo_names({_flat(key): value for key, value in state.items() if not key.endswith(".filter")})
    net.load_state_dict(actual)
    net.to(dtype)
    for index in range(3):
        close(net(stored[f"in{index}"].to(dtype)), stored, f"out{index}", case)
    names = [key.removesuffix(".f32") for key in stored if key.startswith("block.") and key.endswith(".f32")]
    taps = {name: calls(net, name.removeprefix("block.")) for name in names if ".stage." not in name}
    net(stored["in0"].to(dtype)).square().mean().backward()
    for name, values in taps.items():
        close(values[0], stored, name, case)
    parameters = to_original_names(dict(net.named_parameters()))
    for name in (key[5:-4] for key in stored if key.startswith("grad.") and key.endswith(".f32")):
        close(parameters[_flat(name)].grad, stored, f"grad.{name}", case)
    results = net.float().remove_weight_norm_()(stored["in0"])
    torch.testing.assert_close(results, stored["out0_fused.f32"], rtol=0, atol=1e-4)
    assert not any("parametrizations" in key for key in net.state_dict())


def _flat(key):
    return re.sub(r"^(ups\.\d+)\.0\b", r"\1", key)


def calls(net, name):
    values = []
    net.get_submodule(_flat(name)).register_forward_hook(lambda _, __, output: values.append(output.detach().clone()))
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations(dtype):
    stored = arrays("activation1d.npz")
    torch.testing.assert_close(low_pass_filter(), stored["filter_0.2500_0.3_12"].flatten(), rtol=0, atol=1e-7)
    for case in ("act0", "act1"):  # those with the filters of the published nets
        options = META["activation1d"][case]
        snake = Snake(options["channels"], options["kind"] == "snakebeta", options["logscale"])
        for name, parameter in snake.named_parameters():
            parameter.data.copy_(stored[f"{case}.{name}"])
        module = AntiAliasedActivation(snake).to(dtype)
        for length in (key.rpartition("_T")[2] for key in stored if key.startswith(f"{case}.in_T")):
            x = stored[f"{case}.in_T{length}"].to(dtype)
            close(module(x), stored, f"{case}.out_T{length}", "activation1d")
            close(module.up(x), stored, f"{case}.up_T{length}", "activation1d")
            close(module.down(x), stored, f"{case}.down_T{length}", "activation1d")
            close(snake(x), stored, f"{case}.snake_T{length}", "activation1d")


def to_zoo(state):
    """Names of the original's discriminators as ours."""
    skipped = (".window", "resample.kernel", "cqt_transform.")
    return to_zoo_names({key: value for key, value in state.items() if not any(each in key for each in skipped)})


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
        state = to_zoo(torch.load(GOLDEN / f"{case}.pt", weights_only=True))
        full = all(key.startswith("disc") for key in state)
        net.load_state_dict(state if full else {f"discriminators.0.{key}": value for key, value in state.items()})
    else:
        formula_weights(net)
    net.to(dtype).eval()
    real, fake = (net(stored[name].to(dtype)) for name in ("real", "fake"))
    for index, (scores, maps) in enumerate(real):
        close(scores, {k: v.flatten(1) if "score" in k else v for k, v in stored.items()}, f"score_real.{index}", case)
        assert len(maps) == META[case]["fmaps_per_sub"][index]
        for number, results in enumerate(maps):
            name = f"fmap_real.{index}.{number}"
            if f"{name}.f32" in stored:
                close(results, stored, name, case)
            else:
                close(statistics(results), stored, f"fmap_real_stat.{index}.{number}", case)
    suffix = "f64" if dtype == torch.float64 else "f32"
    losses = {
        "disc": discriminator_loss(real, fake),
        "gen": adversarial_loss(fake),
        "fm": 2 * feature_matching_loss(real, fake),
    }
    for name, loss in losses.items():
        expected = stored[f"loss.{name}.{suffix}"].double()
        torch.testing.assert_close(loss.double(), expected, rtol=1e-4 if case == "mrd_sn" else 2e-6, atol=0)


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


@pytest.fixture
def trained(tmp_path):
    """Files of the original with the settings of its discriminators."""
    folder = GOLDEN / "three_steps"
    settings = json.loads((folder / "config.json").read_text()) | {
        "discriminator_channel_mult": 0.03125, "mpd_reshapes": [3], "mrd_channel_mult": 0.0625, "clip_grad_norm": 500.0,
        "resolutions": [[128, 15, 75], [256, 30, 150], [64, 7, 30]],
    }  # fmt: skip
    target = tmp_path / "original"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(settings))
    for name in ("g_00000003", "do_00000003"):
        shutil.copy(folder / name, target)
    return target


def test_three_steps(trained):
    recipe, unmapped = convert_config(trained)
    arguments = recipe["model"]["init_args"]
    nets = {name: build(spec) for name, spec in arguments["discriminators"].items()}
    net, mel, loss_mel = (build(arguments[name]) for name in ("generator", "mel", "loss_mel"))
    start = torch.load(GOLDEN / "three_steps" / "start.pt", weights_only=True)
    state = {_flat(key): value for key, value in start["generator"].items() if "filter" not in key}
    net.load_state_dict(to_zoo_names(state))
    for name, each in nets.items():
        each.load_state_dict(to_zoo_names(start[name]))
    for each in (net, mel, loss_mel, *nets.values()):  # so that no rounding of a processor's decides
        each.double()
    adam = partial(torch.optim.AdamW, lr=0.001, betas=(0.8, 0.99))
    optimizers = adam(net.parameters()), adam([p for each in reversed(nets.values()) for p in each.parameters()])
    clip, weights = arguments["step"]["clip_g"], arguments["loss_weights"]
    for step, expected in enumerate(json.loads((GOLDEN / "three_steps" / "log.json").read_text())["log"]):
        real = torch.from_numpy(np.load(GOLDEN / "three_steps" / "waves.npz")[f"wave{step}"])[:, None].double()
        fake = net(mel(real[:, 0]))
        log = {f"disc_{name}": discriminator_loss(each(real), each(fake.detach())) for name, each in nets.items()}
        optimizers[1].zero_grad()
        sum(log.values()).backward()
        optimizers[1].step()
        log["mel"] = weights["g/mel"] * torch.nn.functional.l1_loss(loss_mel(fake[:, 0]), loss_mel(real[:, 0]))
        for name, each in nets.items():
            on_real, on_fake = each(real), each(fake)
            log[f"fm_{name}"] = weights[f"g/fm_{name}"] * feature_matching_loss(on_real, on_fake)
            log[f"gen_{name}"] = adversarial_loss(on_fake)
        optimizers[0].zero_grad()
        log["total"] = sum(value for name, value in log.items() if not name.startswith("disc"))
        log["total"].backward()
        log["grad_norm_g"] = torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizers[0].step()
        for name, value in log.items():
            bound = 5e-5 if name.startswith("grad_norm") else 5e-6
            assert float(value.detach()) == pytest.approx(expected[name], rel=bound), (step, name)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] *= 0.9
    end = torch.load(trained / "g_00000003", weights_only=True)["generator"]
    for key, value in to_original_names(net.state_dict()).items():
        expected = end[re.sub(r"^(ups\.\d+)\.", r"\1.0.", key)]
        torch.testing.assert_close(value.detach().float(), expected, rtol=0, atol=1e-5)
    assert set(unmapped) == {"num_gpus", "num_freq"}


def test_files_there_and_back(trained, tmp_path):
    convert(trained, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    for name in ("g_00000003", "do_00000003"):
        before, after = (torch.load(folder / name, weights_only=True) for folder in (trained, tmp_path / "back"))
        assert before.keys() == after.keys()
        for key, value in before.items():
            if key in ("generator", "mpd", "mrd"):
                assert value.keys() == after[key].keys()
                assert all(torch.equal(tensor, after[key][each]) for each, tensor in value.items())
            elif key.startswith("optim"):
                (before_group,), (after_group,) = value["param_groups"], after[key]["param_groups"]
                assert after[key]["state"] == {}
                rates = {"lr": 0, "initial_lr": 0}  # the recording has others than its config.json
                assert after_group | rates == before_group | rates
            else:
                assert value == after[key]


@pytest.mark.parametrize("case", GENERATORS)
def test_files_of_the_hub(case, tmp_path):
    """A folder with config.json; fused or not; also without the filters, which older files lack."""
    state = torch.load(GOLDEN / case / "bigvgan_generator.pt", weights_only=True)["generator"]
    x = arrays(f"{case}/io.npz")["in0"]
    results = []
    variants = {"normed": state, "older": {key: value for key, value in state.items() if "filter" not in key}}
    if (GOLDEN / case / "bigvgan_generator_fused.pt").exists():
        variants["fused"] = torch.load(GOLDEN / case / "bigvgan_generator_fused.pt", weights_only=True)["generator"]
    for name, tensors in variants.items():
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(GOLDEN / case / "config.json", folder)
        torch.save({"generator": tensors}, folder / "bigvgan_generator.pt")
        assert is_original(folder) and describe(folder)["format"] == "bigvgan"
        convert(folder, tmp_path / f"{name}_export")
        model = load(tmp_path / f"{name}_export")
        results.append(torch.from_numpy(model.from_mel(x.numpy()[0])))
    for each in results:
        torch.testing.assert_close(each, results[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(each, arrays(f"{case}/io.npz")["out0.f32"][0, 0], rtol=0, atol=1e-4)
    half = {key: value.half() for key, value in state.items()}
    torch.save({"generator": half}, tmp_path / "normed" / "bigvgan_generator.pt")
    convert(tmp_path / "normed", tmp_path / "half_export")
    for change in (lambda taps: taps + 0.1, lambda taps: taps[..., 1:-1], torch.Tensor.int):
        broken = state | {key: change(value) for key, value in state.items() if key.endswith("upsample.filter")}
        torch.save({"generator": broken}, tmp_path / "normed" / "bigvgan_generator.pt")
        with pytest.raises(ValueError, match="filters other than"):
            convert(tmp_path / "normed", tmp_path / "broken")
