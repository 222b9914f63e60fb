import copy
import json
import re
from pathlib import Path

import pytest
import torch

import zoo
from zoo.audio.analysis.mel import LogMel
from zoo.common.build import build
from zoo.convert.engine import EMA_NOTE, NO_TRAINING
from zoo.hifigan.convert import convert, convert_config, from_original, is_original, original_state, to_original
from zoo.hifigan.convert.config import DEFAULTS, generator_spec
from zoo.hifigan.convert.layouts import to_original_names
from zoo.hifigan.convert.vocos import VocosConverter
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator, MultiScaleDiscriminator
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.vocos import Vocos
from zoo.runs.checkpoints import save_checkpoint

CONFIG = DEFAULTS | {
    "resblock": "1", "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4], "upsample_initial_channel": 8,
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "num_mels": 4, "n_fft": 32, "hop_size": 8,
    "win_size": 32, "sampling_rate": 8000, "fmin": 0, "fmax": 3000,
}  # fmt: skip
STEPS, EPOCH = 123, 7
G, DO = f"g_{STEPS:08d}", f"do_{STEPS:08d}"


def generator_of(config=CONFIG) -> Generator:
    torch.manual_seed(0)
    return build(generator_spec(config))


def slim_discriminators() -> tuple[MultiPeriodDiscriminator, MultiScaleDiscriminator]:
    return MultiPeriodDiscriminator(channel_mult=1 / 32), MultiScaleDiscriminator(channel_mult=1 / 32)


def optimizer_state(parameters) -> dict:
    parameters = list(parameters)
    groups = [{"params": parameters, "initial_lr": 2e-4}]
    optimizer = torch.optim.AdamW(groups, lr=2e-4 * 0.999**EPOCH, betas=(0.8, 0.99))
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
    generator, (mpd, msd) = generator_of(), slim_discriminators()
    torch.save({"generator": to_original_names(generator.state_dict())}, folder / G)
    training = {
        "mpd": to_original_names(mpd.state_dict()), "msd": to_original_names(msd.state_dict()),
        "optim_g": optimizer_state(generator.parameters()),
        "optim_d": optimizer_state([*msd.parameters(), *mpd.parameters()]), "steps": STEPS, "epoch": EPOCH,
    }  # fmt: skip
    torch.save(training, folder / DO)
    return folder


def assert_identical(a, b, path="") -> None:
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_identical(a[key], b[key], f"{path}/{key}")
    else:
        assert a == b, path


def load(path: Path):
    return torch.load(path, weights_only=True)


def test_weights_there_and_back_are_bit_equal(folder, tmp_path):
    report = convert(folder / G, tmp_path / "ours.ckpt")
    assert report["batches"] == STEPS + 1 and report["notes"][-1] == NO_TRAINING
    paths = [folder, folder / DO, tmp_path / "ours.ckpt", tmp_path, tmp_path / "absent"]
    assert [is_original(path) for path in paths] == [True, True, False, False, False]
    checkpoint = load(tmp_path / "ours.ckpt")
    assert (checkpoint["global_step"], checkpoint["epoch"], checkpoint["optimizer_states"]) == (STEPS + 1, EPOCH, [])
    back = convert(tmp_path / "ours.ckpt", tmp_path / "back")
    assert [Path(name).name for name in back["target"]] == [G, DO] and EMA_NOTE not in back["notes"]
    for name in (G, DO):
        before, after = ({**load(path / name)} for path in (folder, tmp_path / "back"))
        for side in ("optim_g", "optim_d"):
            if side in before:
                groups = before.pop(side)["param_groups"]
                assert after.pop(side) == {"state": {}, "param_groups": groups}
        assert_identical(before, after)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == CONFIG


def test_averages_are_written_with_a_note(folder, tmp_path):
    convert(folder, tmp_path / "ours.ckpt")
    checkpoint = load(tmp_path / "ours.ckpt")
    live = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith("generator.")}
    checkpoint["ema"] = {"shadow": {key: 2 * value for key, value in live.items()}, "updates": 1}
    save_checkpoint(checkpoint, tmp_path / "ours.ckpt")
    assert EMA_NOTE in convert(tmp_path / "ours.ckpt", tmp_path / "back")["notes"]
    before, after = (load(path / G)["generator"] for path in (folder, tmp_path / "back"))
    assert_identical({key: 2 * value for key, value in before.items()}, after)


def test_the_original_resumes_from_our_files(folder, tmp_path):
    """The order of calls in the original's train.py."""
    convert(folder, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    content = load(tmp_path / "back" / DO)
    generator, (mpd, msd) = generator_of(), slim_discriminators()
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


def test_file_without_weight_norm(tmp_path):
    generator = generator_of()
    x = torch.randn(1, 4, 6)
    to_original(copy.deepcopy(generator).remove_weight_norm_(), tmp_path / "g_00000005")
    fused = from_original(tmp_path / "g_00000005")
    torch.testing.assert_close(fused(x), generator(x), atol=1e-6, rtol=0)
    state = original_state(tmp_path / "g_00000005")
    trainable = generator_of()
    trainable.load_state_dict({key.removeprefix("generator."): value for key, value in state.items()})
    torch.testing.assert_close(trainable(x), generator(x), atol=1e-6, rtol=0)


def test_coqui_layouts(tmp_path):
    generator, (_, msd) = generator_of(), slim_discriminators()
    state = generator.state_dict()
    current = {f"model_g.{key}": value for key, value in state.items()}
    # today's Coqui mixes parametrised weight norm with legacy spectral norm
    legacy_spectral = {k: v for k, v in to_original_names(msd.state_dict()).items() if ".0." in k}
    current |= {f"model_d.msd.{key}": value for key, value in legacy_spectral.items()}
    torch.save({"config": {}, "model": current, "step": 5}, tmp_path / "checkpoint_5.pth")
    name = "discriminators.0.convs.0.{}weight{}_u"
    results = original_state(tmp_path / "checkpoint_5.pth")["msd." + name.format("parametrizations.", ".0.")]
    assert torch.equal(results, legacy_spectral[name.format("", "")])
    again = from_original(tmp_path / "checkpoint_5.pth", CONFIG)
    assert_identical(dict(again.state_dict()), dict(state))
    torch.save({"model": to_original_names(state), "model_disc": {}}, tmp_path / "old.pth")
    assert_identical(dict(from_original(tmp_path / "old.pth", CONFIG).state_dict()), dict(state))
    plain = to_original_names(state)
    plain["conv_pre.weight"] = generator.conv_pre.weight.detach()
    del plain["conv_pre.weight_g"], plain["conv_pre.weight_v"]
    torch.save({"model": plain}, tmp_path / "plain.pth")
    x = torch.randn(1, 4, 6)
    torch.testing.assert_close(from_original(tmp_path / "plain.pth", CONFIG)(x), generator(x), atol=1e-6, rtol=0)


def test_speechbrain_layout(tmp_path):
    generator, (mpd, msd) = generator_of(), slim_discriminators()
    pattern = re.compile(r"\.(weight_g|weight_v|bias)$")
    state = {pattern.sub(r".conv.\1", key): value for key, value in to_original_names(generator.state_dict()).items()}
    torch.save(state, tmp_path / "generator.ckpt")
    again = from_original(tmp_path / "generator.ckpt", CONFIG)
    assert again.padding_mode == "reflect"
    assert_identical(dict(again.state_dict()), dict(generator.state_dict()))
    nets = {"mpd." + pattern.sub(r".conv.\1", key): value for key, value in to_original_names(mpd.state_dict()).items()}
    nets |= {f"msd.{key}": value for key, value in to_original_names(msd.state_dict()).items()}
    torch.save(nets, tmp_path / "discriminator.ckpt")
    results = original_state(tmp_path / "discriminator.ckpt")
    assert set(results) == {f"mpd.{key}" for key in mpd.state_dict()} | {f"msd.{key}" for key in msd.state_dict()}


@pytest.mark.parametrize(("name", "net"), [(G, "generator"), (DO, "msd")])
def test_weights_must_be_finite(folder, tmp_path, name, net):
    content = load(folder / name)
    next(iter(content[net].values())).view(-1)[0] = torch.nan
    torch.save(content, folder / name)
    for read in (lambda: convert(folder, tmp_path / "ours.ckpt"), lambda: original_state(folder)):
        with pytest.raises(ValueError, match="NaN or infinite"):
            read()
    generator = generator_of()
    with torch.no_grad():
        generator.conv_pre.bias[0] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        to_original(generator, tmp_path / "g_00000000")


ODD = CONFIG | {"upsample_kernel_sizes": [7, 4], "upsample_rates": [4, 2]}
PERIODIC = {"activation": "snakebeta", "snake_logscale": True, "discriminator_channel_mult": 1 / 32}


@pytest.mark.parametrize("config", [ODD, ODD | PERIODIC], ids=["hifigan", "bigvgan"])
def test_odd_stages_run_as_in_the_original(tmp_path, config):
    net = generator_of(config)
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
    assert original.shape[-1] == (9 * 4 + 1) * 2 and waveform.shape == (2, 1, 72)  # the odd stage makes one more
    torch.testing.assert_close(waveform, original[..., :72], atol=1e-6, rtol=0)
    convert(tmp_path / "original", tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    assert_identical(load(tmp_path / "original" / "g_00000003"), load(tmp_path / "back" / "g_00000003"))


def test_convert_config(folder):
    recipe, unmapped = convert_config(folder)
    assert unmapped == ["num_gpus", "num_freq", "dist_config"] and recipe["seed_everything"] == 1234
    model = recipe["model"]["init_args"]
    assert model["mel"]["init_args"]["f_max"] == 3000.0 and model["loss_mel"]["init_args"]["f_max"] is None
    assert model["optimizer_g"]["init_args"] == {"lr": 0.0002, "betas": [0.8, 0.99]}
    assert model["loss_weights"]["g/mel"] == 45.0 and model["loss_weights"]["g/fm_mpd"] == 2.0
    build(model["generator"]), build(model["mel"]), build(model["loss_mel"])


@pytest.mark.parametrize(
    ("settings", "untranslated", "net", "arguments"),
    [
        ({"use_spectral_norm": True}, ["use_spectral_norm"], "MultiResolutionDiscriminator", {"spectral": True}),
        ({"use_cqtd_instead_of_mrd": True}, [], "MultiOctaveDiscriminator", {"filters": 32}),
        ({"use_cqtd_instead_of_mrd": True, "use_mbd_instead_of_mrd": True}, [], "MultiBandDiscriminator", {}),
    ],
)
def test_discriminators_of_bigvgan_are_those_of_its_code(folder, settings, untranslated, net, arguments):
    (folder / "config.json").write_text(json.dumps(CONFIG | PERIODIC | settings))
    recipe, unmapped = convert_config(folder)
    mrd = recipe["model"]["init_args"]["discriminators"]["mrd"]
    assert unmapped == ["num_gpus", "num_freq", "dist_config", *untranslated]
    assert mrd["class_path"] == f"zoo.hifigan.{net}" and arguments.items() <= mrd["init_args"].items()


@pytest.mark.parametrize(
    ("content", "message"), [({"model": {"encoder.weight": torch.zeros(1)}}, "unknown layout"), ([1, 2], "a list")]
)
def test_unknown_layouts_are_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "strange.pt")
    with pytest.raises(ValueError, match=message):
        original_state(tmp_path / "strange.pt")
    assert not is_original(tmp_path / "strange.pt")


def test_contradictions_are_refused(folder, tmp_path):
    path, lacking = folder / G, {key: value for key, value in CONFIG.items() if key != "upsample_rates"}
    reflecting = Generator(padding_mode="reflect", initial_channels=16)
    for match, refuse in (
        ("tensors do not fit", lambda: from_original(path, CONFIG | {"upsample_initial_channel": 16})),
        ("lacks upsample_rates", lambda: from_original(path, lacking)),
        ("padding_mode", lambda: to_original(reflecting, tmp_path / "g_00000001")),
    ):
        with pytest.raises(ValueError, match=match):
            refuse()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"hop_size": 16}))
    for refuse in (lambda: convert_config(folder), lambda: convert(folder, tmp_path / "a")):
        with pytest.raises(ValueError, match="hop_size is 16"):
            refuse()
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        from_original(path)


def test_what_the_originals_files_cannot_hold_is_refused_or_left_out(folder, tmp_path):
    convert(folder, tmp_path / "ours.ckpt")
    (tmp_path / "back").mkdir()
    for other in ({"upsample_initial_channel": 16}, {"fmax": 4000}):
        (tmp_path / "back" / "config.json").write_text(json.dumps(CONFIG | other))
        with pytest.raises(ValueError, match="describes another vocoder"):
            convert(tmp_path / "ours.ckpt", tmp_path / "back")
        assert [path.name for path in (tmp_path / "back").iterdir()] == ["config.json"]
    checkpoint = load(tmp_path / "ours.ckpt")
    del checkpoint["zoo"]["original_config"]  # as of a run of ours
    checkpoint["zoo"]["components"]["mel"]["init_args"]["mel_scale"] = "htk"
    save_checkpoint(checkpoint, tmp_path / "htk.ckpt")
    with pytest.raises(ValueError, match="htk"):
        convert(tmp_path / "htk.ckpt", tmp_path / "htk")
    checkpoint = load(tmp_path / "ours.ckpt")
    del checkpoint["state_dict"]["msd.discriminators.2.conv_post.bias"]
    save_checkpoint(checkpoint, tmp_path / "other.ckpt")
    report = convert(tmp_path / "other.ckpt", tmp_path / "other")
    assert [Path(name).name for name in report["target"]] == [G] and "no do_ file" in report["notes"][-1]


def test_generator_of_other_features(tmp_path: Path) -> None:
    """A config without a mel, as of VITS's decoder: an export that takes features, and no checkpoint to train."""
    generator = generator_of().remove_weight_norm_()
    torch.save({"generator": generator.state_dict()}, tmp_path / "g_00000000")
    mel = ("n_fft", "hop_size", "win_size", "fmin", "fmax")
    config = {key: value for key, value in CONFIG.items() if key not in mel}
    (tmp_path / "config.json").write_text(json.dumps(config))
    convert(tmp_path, tmp_path / "ours")
    features = torch.randn(CONFIG["num_mels"], 12, generator=torch.Generator().manual_seed(1))
    vocoder = zoo.load(tmp_path / "ours")
    torch.testing.assert_close(torch.tensor(vocoder.from_mel(features.numpy())), generator(features[None])[0, 0])
    assert vocoder.sample_rate == CONFIG["sampling_rate"]
    for refuse in (lambda: convert(tmp_path, tmp_path / "ours.ckpt"), lambda: convert_config(tmp_path)):
        with pytest.raises(ValueError, match="no mel"):
            refuse()
    for key in ("fmin", "sampling_rate"):  # half a mel
        settings = {name: value for name, value in CONFIG.items() if name != key}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=f"lacks {key}"):
            convert(tmp_path, tmp_path / "other")


def test_vocos_format_has_one_mel(tmp_path: Path) -> None:
    sizes = {"sample_rate": 8000, "n_fft": 32, "hop_length": 8, "win_length": 32, "n_mels": 4, "f_max": None}
    net, arguments = Vocos(4, 8, 16, 1, 32, 8), {"dim": 8, "n_fft": 32, "hop_length": 8, "padding": "same"}
    for floors in ({"floor": 1e-7}, {"magnitude_floor": 0.0}):
        with pytest.raises(ValueError, match="Vocos' own mel"):
            VocosConverter().to_original(net, tmp_path, LogMel(**sizes, mel_scale="htk", **floors), arguments)
    mel = LogMel(**sizes, mel_scale="htk", magnitude_floor=0.0, floor=1e-7)
    VocosConverter().to_original(net, tmp_path / "fits", mel, arguments)
    assert (tmp_path / "fits" / "config.yaml").is_file()
