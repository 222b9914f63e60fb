from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

import zoo
from zoo.common.build import build
from zoo.convert.engine import NO_TRAINING
from zoo.hifigan.convert import (
    convert,
    convert_config,
    describe,
    from_original,
    is_original,
    original_state,
    to_original,
)
from zoo.hifigan.convert.recipe import DEFAULTS, generator_spec
from zoo.hifigan.convert.rules import to_legacy_keys, to_our_keys
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator, MultiScaleDiscriminator
from zoo.hifigan.nets.generator import Generator

CONFIG = DEFAULTS | {
    "resblock": "1",
    "upsample_rates": [4, 2],
    "upsample_kernel_sizes": [8, 4],
    "upsample_initial_channel": 8,
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
    "num_mels": 4,
    "n_fft": 32,
    "hop_size": 8,
    "win_size": 32,
    "sampling_rate": 8000,
    "fmin": 0,
    "fmax": 3000,
}
STEPS, EPOCH = 123, 7


def generator_of(config=CONFIG) -> Generator:
    torch.manual_seed(0)
    return Generator(
        config["num_mels"],
        config["upsample_initial_channel"],
        config["upsample_rates"],
        config["upsample_kernel_sizes"],
        config["resblock"],
        config["resblock_kernel_sizes"],
        config["resblock_dilation_sizes"],
    )


def optimizer_state(parameters) -> dict:
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(
        [{"params": parameters, "initial_lr": 2e-4}], lr=2e-4 * 0.999**EPOCH, betas=(0.8, 0.99)
    )
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as the original's training leaves it, with slim discriminators in the full layout."""
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = generator_of()
    mpd, msd = MultiPeriodDiscriminator(channel_mult=1 / 32), MultiScaleDiscriminator(channel_mult=1 / 32)
    torch.save({"generator": to_legacy_keys(generator.state_dict())}, folder / f"g_{STEPS:08d}")
    training = {
        "mpd": to_legacy_keys(mpd.state_dict()),
        "msd": to_legacy_keys(msd.state_dict()),
        "optim_g": optimizer_state(generator.parameters()),
        "optim_d": optimizer_state([*msd.parameters(), *mpd.parameters()]),
        "steps": STEPS,
        "epoch": EPOCH,
    }
    torch.save(training, folder / f"do_{STEPS:08d}")
    return folder


def assert_identical(a, b, path="") -> None:
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_identical(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_identical(x, y, f"{path}/{index}")
    else:
        assert a == b, path


def load(path: Path):
    return torch.load(path, weights_only=True)


def test_weights_there_and_back_are_bit_equal(folder, tmp_path):
    report = convert(folder / f"g_{STEPS:08d}", tmp_path / "ours.ckpt")
    assert report["batches"] == STEPS + 1 and report["notes"][-1] == NO_TRAINING
    assert load(tmp_path / "ours.ckpt")["optimizer_states"] == []
    back = convert(tmp_path / "ours.ckpt", tmp_path / "back")
    assert [Path(name).name for name in back["target"]] == [f"g_{STEPS:08d}", f"do_{STEPS:08d}"]
    for name in (f"g_{STEPS:08d}", f"do_{STEPS:08d}"):
        before, after = ({**load(path / name)} for path in (folder, tmp_path / "back"))
        for side in ("optim_g", "optim_d"):
            if side in before:
                expected, found = before.pop(side), after.pop(side)
                assert found == {"state": {}, "param_groups": expected["param_groups"]}
        assert_identical(before, after)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == CONFIG
    assert not [path for path in tmp_path.rglob("*") if ".tmp" in path.name]


def test_checkpoint_layout(folder, tmp_path):
    convert(folder, tmp_path / "ours.ckpt")
    checkpoint = load(tmp_path / "ours.ckpt")
    assert checkpoint["global_step"] == STEPS + 1
    assert checkpoint["epoch"] == EPOCH
    assert list(dict.fromkeys(key.partition(".")[0] for key in checkpoint["state_dict"])) == ["generator", "mpd", "msd"]
    arguments = checkpoint["zoo"]["config"]
    nets = {name: build(arguments["discriminators"][name]) for name in ("mpd", "msd")}
    nets["generator"] = build(checkpoint["zoo"]["components"]["generator"])
    for name, net in nets.items():
        prefix = f"{name}."
        net.load_state_dict(
            {k.removeprefix(prefix): v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
        )
    build(checkpoint["zoo"]["components"]["mel"])


def test_the_original_resumes_from_our_files(folder, tmp_path):
    """The order of calls in the original's train.py."""
    convert(folder, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    content = load(tmp_path / "back" / f"do_{STEPS:08d}")
    generator = generator_of()
    mpd, msd = MultiPeriodDiscriminator(channel_mult=1 / 32), MultiScaleDiscriminator(channel_mult=1 / 32)
    sides = {"optim_g": list(generator.parameters()), "optim_d": [*msd.parameters(), *mpd.parameters()]}
    for name, parameters in sides.items():
        optimizer = torch.optim.AdamW(parameters, 1.0, betas=(0.1, 0.2))
        optimizer.load_state_dict(content[name])
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999, last_epoch=content["epoch"])
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        assert scheduler.get_last_lr()[0] == pytest.approx(2e-4 * 0.999**EPOCH)
        assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)


def test_generator_alone(folder, tmp_path):
    (folder / f"do_{STEPS:08d}").unlink()
    convert(folder / f"g_{STEPS:08d}", tmp_path / "ours.ckpt")
    facts = convert(tmp_path / "ours.ckpt", tmp_path / "back")
    assert facts["notes"] == ["no do_ file: the checkpoint lacks mpd or msd"]
    assert_identical(load(folder / f"g_{STEPS:08d}"), load(tmp_path / "back" / f"g_{STEPS:08d}"))


def test_module_round_trip(tmp_path):
    generator = generator_of()
    to_original(generator, tmp_path / "g_00000005")
    again = from_original(tmp_path / "g_00000005")
    assert_identical(dict(generator.state_dict()), dict(again.state_dict()))
    assert convert(again, tmp_path / "g_00000006")["target"] == [str(tmp_path / "g_00000006")]


def test_fused_file(tmp_path):
    generator = generator_of()
    x = torch.randn(1, 4, 6)
    to_original(copy.deepcopy(generator).remove_weight_norm_(), tmp_path / "g_00000005")
    fused = from_original(tmp_path / "g_00000005")
    assert "conv_pre.weight" in fused.state_dict()
    torch.testing.assert_close(fused(x), generator(x), atol=1e-6, rtol=0)
    assert describe(tmp_path / "g_00000005")["fused"]
    trainable = generator_of()
    state = original_state(tmp_path / "g_00000005")
    trainable.load_state_dict({key.removeprefix("generator."): value for key, value in state.items()})
    torch.testing.assert_close(trainable(x), generator(x), atol=1e-6, rtol=0)


def test_export_folder(folder, tmp_path):
    import zoo

    (folder / "config.json").write_text(json.dumps(CONFIG | {"fmax": 4000}))
    convert(folder, tmp_path / "export")
    vocoder = zoo.load(tmp_path / "export")
    mel = torch.randn(4, 12)
    expected = generator_of()(mel[None])[0, 0].detach()
    torch.testing.assert_close(torch.from_numpy(vocoder.from_mel(mel.numpy())), expected, atol=1e-6, rtol=0)


def test_describe_and_is_original(folder, tmp_path):
    facts = describe(folder)
    assert facts["format"] == "hifi-gan" and facts["steps"] == STEPS and facts["epoch"] == EPOCH
    assert set(facts["parts"]) == {"generator", "mpd", "msd"}
    assert facts["config"]["sampling_rate"] == 8000
    assert is_original(folder) and is_original(folder / f"do_{STEPS:08d}")
    convert(folder, tmp_path / "ours.ckpt")
    assert not is_original(tmp_path / "ours.ckpt")
    assert not is_original(tmp_path)
    assert not is_original(tmp_path / "absent")


def test_coqui_layouts(tmp_path):
    generator = generator_of()
    msd = MultiScaleDiscriminator(channel_mult=1 / 32)
    ours = generator.state_dict()
    current = {f"model_g.{key}": value for key, value in ours.items()}
    # today's Coqui mixes parametrised weight norm with legacy spectral norm
    legacy_spectral = {k: v for k, v in to_legacy_keys(msd.state_dict()).items() if ".0." in k}
    current |= {f"model_d.msd.{key}": value for key, value in legacy_spectral.items()}
    torch.save({"config": {}, "model": current, "step": 5}, tmp_path / "checkpoint_5.pth")
    state = original_state(tmp_path / "checkpoint_5.pth")
    assert_identical(
        state["msd.discriminators.0.convs.0.parametrizations.weight.0._u"],
        legacy_spectral["discriminators.0.convs.0.weight_u"],
    )
    again = from_original(tmp_path / "checkpoint_5.pth", CONFIG)
    assert_identical(dict(again.state_dict()), dict(ours))
    torch.save({"model": to_legacy_keys(ours), "model_disc": {}}, tmp_path / "old.pth")
    assert_identical(dict(from_original(tmp_path / "old.pth", CONFIG).state_dict()), dict(ours))


def test_coqui_plain_first_convolution_gets_its_norm_back(tmp_path):
    generator = generator_of()
    state = to_legacy_keys(generator.state_dict())
    state["conv_pre.weight"] = generator.conv_pre.weight.detach()
    del state["conv_pre.weight_g"], state["conv_pre.weight_v"]
    torch.save({"model": state}, tmp_path / "old.pth")
    x = torch.randn(1, 4, 6)
    torch.testing.assert_close(from_original(tmp_path / "old.pth", CONFIG)(x), generator(x), atol=1e-6, rtol=0)


def test_speechbrain_layout(tmp_path):
    import re

    generator = generator_of()
    pattern = re.compile(r"\.(weight_g|weight_v|bias)$")
    state = {pattern.sub(r".conv.\1", key): value for key, value in to_legacy_keys(generator.state_dict()).items()}
    torch.save(state, tmp_path / "generator.ckpt")
    again = from_original(tmp_path / "generator.ckpt", CONFIG)
    assert again.padding_mode == "reflect"
    assert_identical(dict(again.state_dict()), dict(generator.state_dict()))
    assert describe(tmp_path / "generator.ckpt")["format"] == "speechbrain"
    mpd, msd = MultiPeriodDiscriminator(channel_mult=1 / 32), MultiScaleDiscriminator(channel_mult=1 / 32)
    nets = {"mpd." + pattern.sub(r".conv.\1", key): value for key, value in to_legacy_keys(mpd.state_dict()).items()}
    nets |= {f"msd.{key}": value for key, value in to_legacy_keys(msd.state_dict()).items()}
    torch.save(nets, tmp_path / "discriminator.ckpt")
    found = original_state(tmp_path / "discriminator.ckpt")
    assert set(found) == {f"mpd.{key}" for key in mpd.state_dict()} | {f"msd.{key}" for key in msd.state_dict()}


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers_are_removed(folder, tmp_path, prefix):
    convert(folder, tmp_path / "plain.ckpt")
    for name, nets in ((f"g_{STEPS:08d}", ("generator",)), (f"do_{STEPS:08d}", ("mpd", "msd"))):
        content = load(folder / name)
        wrapped = {net: {f"{prefix}{key}": value for key, value in content[net].items()} for net in nets}
        torch.save(content | wrapped, folder / name)
    report = convert(folder, tmp_path / "wrapped.ckpt")
    assert [note for note in report["notes"] if "_orig_mod." in note]
    plain, wrapped = (load(tmp_path / f"{name}.ckpt") for name in ("plain", "wrapped"))
    assert_identical(plain["state_dict"], wrapped["state_dict"])


def test_prefixes_behind_a_net_are_removed(tmp_path):
    ours = generator_of().state_dict()
    state = {f"model_g.module._orig_mod.{key}": value for key, value in to_legacy_keys(ours).items()}
    torch.save({"model": state}, tmp_path / "checkpoint_5.pth")
    assert_identical(dict(from_original(tmp_path / "checkpoint_5.pth", CONFIG).state_dict()), dict(ours))
    torch.save({"generator": {"a": torch.zeros(1), "module.a": torch.ones(1)}}, tmp_path / "two.pth")
    with pytest.raises(ValueError, match="two tensors are called a"):
        describe(tmp_path / "two.pth")


@pytest.mark.parametrize("target", ["ours.ckpt", "exported"])
def test_hop_must_be_the_product_of_the_rates(folder, tmp_path, target):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"hop_size": 16}))
    with pytest.raises(ValueError, match=r"hop_size is 16, the product of upsample_rates \[4, 2\] is 8"):
        convert(folder, tmp_path / target)
    with pytest.raises(ValueError, match="hop_size is 16"):
        convert_config(folder)
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize(("name", "net"), [("g", "generator"), ("do", "msd")])
def test_weights_must_be_finite(folder, tmp_path, name, net):
    content = load(folder / f"{name}_{STEPS:08d}")
    next(iter(content[net].values())).view(-1)[0] = torch.nan
    torch.save(content, folder / f"{name}_{STEPS:08d}")
    with pytest.raises(ValueError, match=rf"NaN or infinite values in 1 of .* the first {net}\."):
        convert(folder, tmp_path / "ours.ckpt")
    with pytest.raises(ValueError, match="NaN or infinite"):
        original_state(folder)
    generator = generator_of()
    with torch.no_grad():
        generator.conv_pre.bias[0] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        to_original(generator, tmp_path / "g_00000000")


ODD = CONFIG | {"upsample_kernel_sizes": [7, 4], "upsample_rates": [4, 2]}
PERIODIC = {"activation": "snakebeta", "snake_logscale": True, "discriminator_channel_mult": 1 / 32}


@pytest.mark.parametrize("config", [ODD, ODD | PERIODIC], ids=["hifigan", "bigvgan"])
def test_odd_stages_run_as_in_the_original(tmp_path, config):
    torch.manual_seed(0)
    net = build(generator_spec(config))
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "config.json").write_text(json.dumps(config))
    to_original(net, tmp_path / "original" / "g_00000003")
    again = from_original(tmp_path / "original" / "g_00000003").remove_weight_norm_()
    x = torch.randn(2, 4, 9)
    stages = zip(config["upsample_rates"], config["upsample_kernel_sizes"], again.ups, again.resblocks, strict=True)
    with torch.no_grad():
        waveform = again(x)
        hidden = again.conv_pre(x)
        for rate, kernel, up, block in stages:
            hidden = torch.nn.functional.leaky_relu(hidden, 0.1) if config is ODD else hidden
            hidden = torch.nn.functional.conv_transpose1d(hidden, up.weight, up.bias, rate, (kernel - rate) // 2)
            hidden = block(hidden)
        last = torch.nn.functional.leaky_relu if config is ODD else again.activation_post
        original = torch.tanh(again.conv_post(last(hidden)))
    assert original.shape[-1] == (9 * 4 + 1) * 2  # the odd stage makes one sample more
    assert waveform.shape == (2, 1, 72)
    torch.testing.assert_close(waveform, original[..., :72], atol=1e-6, rtol=0)
    assert convert(tmp_path / "original", tmp_path / "ours.ckpt")["batches"] == 4
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    assert_identical(load(tmp_path / "original" / "g_00000003"), load(tmp_path / "back" / "g_00000003"))
    convert(tmp_path / "original", tmp_path / "exported")
    assert zoo.load(tmp_path / "exported").generator.output_padding == 0


def test_weight_v_means_two_things():
    legacy = {
        "a.weight_orig": 1,
        "a.weight_u": 2,
        "a.weight_v": 3,
        "b.weight_g": 4,
        "b.weight_v": 5,
        "b.bias": 6,
        "c.weight": 7,
    }
    ours = to_our_keys(legacy)
    assert ours == {
        "a.parametrizations.weight.original": 1,
        "a.parametrizations.weight.0._u": 2,
        "a.parametrizations.weight.0._v": 3,
        "b.parametrizations.weight.original0": 4,
        "b.parametrizations.weight.original1": 5,
        "b.bias": 6,
        "c.weight": 7,
    }
    assert to_legacy_keys(ours) == legacy


def test_convert_config(folder):
    recipe, unmapped = convert_config(folder)
    assert unmapped == ["num_gpus", "num_freq", "dist_config"]
    assert recipe["seed_everything"] == 1234
    model = recipe["model"]["init_args"]
    assert recipe["model"]["class_path"] == "zoo.hifigan.HiFiGANTask"
    assert model["generator"]["init_args"]["initial_channels"] == 8
    assert model["mel"]["init_args"]["f_max"] == 3000.0 and model["loss_mel"]["init_args"]["f_max"] is None
    assert model["optimizer_g"]["init_args"] == {"lr": 0.0002, "betas": [0.8, 0.99]}
    assert model["loss_weights"]["g/mel"] == 45.0 and model["loss_weights"]["g/fm_mpd"] == 2.0
    assert recipe["data"]["init_args"]["segment_samples"] == 8192
    build(model["generator"]), build(model["mel"]), build(model["loss_mel"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weights": 1, "other": 2}, "unknown layout with keys weights, other"),
        ({"model": {"encoder.weight": torch.zeros(1)}}, "unknown layout with keys model/encoder.weight"),
        ([1, 2], "holds a list"),
    ],
)
def test_unknown_layouts_are_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "strange.pt")
    with pytest.raises(ValueError, match=message):
        original_state(tmp_path / "strange.pt")
    assert not is_original(tmp_path / "strange.pt")


def test_errors_name_the_cure(folder, tmp_path):
    (folder / "config.json").rename(tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=r"put the original's config.json beside it or pass config="):
        from_original(folder / f"g_{STEPS:08d}")
    assert from_original(folder / f"g_{STEPS:08d}", tmp_path / "config.json").hop_length == 8
    with pytest.raises(ValueError, match="tensors do not fit the generator of the config"):
        from_original(folder / f"g_{STEPS:08d}", CONFIG | {"upsample_initial_channel": 16})
    with pytest.raises(ValueError, match="lacks upsample_rates"):
        from_original(
            folder / f"g_{STEPS:08d}", {key: value for key, value in CONFIG.items() if key != "upsample_rates"}
        )
    (folder / f"g_{STEPS:08d}").unlink()
    with pytest.raises(ValueError, match="holds no generator"):
        from_original(folder / f"do_{STEPS:08d}", CONFIG)
    with pytest.raises(ValueError, match="padding_mode 'reflect'"):
        to_original(Generator(padding_mode="reflect", initial_channels=16), tmp_path / "g_00000001")


def test_another_generators_config_is_not_overwritten(folder, tmp_path):
    convert(folder, tmp_path / "ours.ckpt")
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "config.json").write_text(json.dumps(CONFIG | {"upsample_initial_channel": 16}))
    with pytest.raises(ValueError, match="describes another generator"):
        convert(tmp_path / "ours.ckpt", tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["config.json"]


def test_channels_that_do_not_halve_evenly(tmp_path: Path) -> None:
    """24 -> 12 -> 6 -> 3 -> 1, by integer division as in the original: there and back, bit-equal."""
    sizes = {"upsample_initial_channel": 24, "upsample_rates": [2] * 4, "upsample_kernel_sizes": [4] * 4}
    config = {**CONFIG, **sizes, "hop_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    generator = generator_of(config)
    assert [up.out_channels for up in generator.ups] == [12, 6, 3, 1]
    torch.save({"generator": to_legacy_keys(generator.state_dict())}, tmp_path / "g_00000005")
    mel = torch.randn(1, 4, 9)
    with torch.no_grad():
        expected = generator(mel)
        torch.testing.assert_close(from_original(tmp_path / "g_00000005")(mel), expected)
    assert expected.shape == (1, 1, 144)
    convert(tmp_path / "g_00000005", tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    found = torch.load(tmp_path / "back" / "g_00000005", weights_only=True)["generator"]
    assert_identical(found, to_legacy_keys(generator.state_dict()))
