from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from tests.audiosr.lily import CONTEXT, HEAD, MELS, UNET, VOCODER, config, nets, original_tensors, state_of, write
from zoo.audiosr.convert import (
    convert,
    convert_config,
    describe,
    from_original,
    is_original,
    original_state,
    to_original,
)
from zoo.audiosr.convert.write import Nets, layout_of
from zoo.audiosr.convert.write import write as write_theirs
from zoo.audiosr.diffusion.samplers import DPMSolver
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.frozen import FrozenAutoencoder
from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.audiosr.nets.unet import UNet
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.hifigan.convert import to_original as write_hifigan
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.components import component_state
from zoo.runs.load import build_components, load

LAYOUTS = ("audiosr", "modelV1", "model.py")


def content(layout: str, made: dict) -> dict:
    """A whole file: wrapped names, and averages that differ from the weights."""
    state = state_of(made, layout)
    if layout == "audiosr":
        for name, value in made["unet"].named_parameters():
            state["model_ema." + f"diffusion_model.{name}".replace(".", "")] = value.detach() + 1
        return {"state_dict": state | {"model_ema.decay": torch.tensor(0.9999)}}
    kept = {key: value + 1 for key, value in state.items() if value.is_floating_point() and "running" not in key}
    state = {f"module._orig_mod.{key}": value for key, value in state.items()}
    return {"state_dict": state | {"model_ema.diffusion_modelout2bias": torch.zeros(4)}, "ema": kept}


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_nets_in_the_axis_order_of_the_file(tmp_path: Path, layout: str) -> None:
    made = nets(layout)
    path = write(tmp_path, layout, content(layout, made))
    assert is_original(path)
    model = from_original(path, ema=False)
    assert model.layout == layout
    mel, x, t = torch.randn(2, 1, MELS, 48), torch.randn(2, 8, 8, 12), torch.tensor([3, 900])
    assert torch.equal(model.vae.encode(mel), made["vae"].encode(mel))
    assert torch.equal(model.vocoder(mel[:, 0]), made["vocoder"](mel[:, 0]))
    if layout == "audiosr":
        assert torch.equal(model.unet(x, t), made["unet"](x, t))
        return
    context, sequence = made["encoder"](mel)
    found = model.global_encoder(mel)
    assert torch.equal(found[0], context)
    assert torch.equal(found[1], sequence)
    assert torch.equal(model.unet(x, t, full_audio=mel), made["unet"](x, t, context, sequence))


@pytest.mark.parametrize("layout", ["audiosr", "model.py"])
def test_averages_are_taken(tmp_path: Path, layout: str) -> None:
    made = nets(layout)
    model = from_original(write(tmp_path, layout, content(layout, made)))
    torch.testing.assert_close(model.unet.net.unet.out[2].bias, made["unet"].out[2].bias + 1)
    assert torch.equal(model.vae.quant_conv.bias, made["vae"].quant_conv.bias)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(tmp_path: Path, layout: str) -> None:
    source = write(tmp_path / "theirs", layout, content(layout, nets(layout)))
    ours = tmp_path / "ours" / "step_00000040.ckpt"
    report = convert(source, ours)
    assert report["layout"] == layout
    assert report["step"] == 40
    back = tmp_path / "back" / ("step_40.bin" if layout == "audiosr" else "step_40.pt")
    convert(ours, back)
    theirs, again = load_foreign_checkpoint(source), load_foreign_checkpoint(back)
    expected = {key.replace("module._orig_mod.", ""): value for key, value in theirs["state_dict"].items()}
    left_out = ("clap.", "model_ema.dec", "vae.vocoder.")
    if layout != "audiosr":
        left_out += ("model_ema.",)
    expected = {key: value for key, value in expected.items() if not any(part in key for part in left_out)}
    for key, value in expected.items():
        assert torch.equal(again["state_dict"][key], value), key
    for key, value in theirs.get("ema", {}).items():
        if key.startswith("model."):
            assert torch.equal(again["ema"][key], value), key
    copy = tmp_path / "copy" / back.name
    to_original(from_original(back, ema=False), copy)
    copied = load_foreign_checkpoint(copy)["state_dict"]
    assert all(torch.equal(copied[key], value) for key, value in expected.items() if not key.startswith("model_ema"))


@torch.no_grad()
def test_what_ours_computes_time_first(tmp_path: Path) -> None:
    made = nets("modelV1")
    target = tmp_path / "ours.ckpt"
    convert(write(tmp_path / "theirs", "modelV1", {"model": state_of(made, "modelV1")}), target)
    checkpoint = load_checkpoint(target)
    assert not any(key.startswith(("autoencoder.", "vocoder.")) for key in checkpoint["state_dict"])
    parts = build_components({**checkpoint["zoo"], "frozen": checkpoint["frozen"]}, tmp_path)
    parts["net"].load_state_dict(component_state(checkpoint["state_dict"], "net"))
    mel, x, t = torch.randn(1, 1, MELS, 48), torch.randn(1, 8, 8, 12), torch.tensor([400])
    moments = parts["autoencoder"].encode(mel.transpose(-1, -2)).transpose(-1, -2)
    torch.testing.assert_close(moments, made["vae"].encode(mel), atol=1e-5, rtol=1e-4)
    prediction = parts["net"].eval()(x.transpose(-1, -2), t, mel.transpose(-1, -2)).transpose(-1, -2)
    # one value for all positions is normed: rounding errors grow, see tests/parity/test_audiosr_nets.py
    torch.testing.assert_close(prediction, made["unet"](x, t, *made["encoder"](mel)), atol=1e-4, rtol=1e-3)
    assert parts["vocoder"].net.output_padding == 1
    assert parts["features"].kind == "projectlily"
    copy = tmp_path / checkpoint["frozen"]["autoencoder"]["folder"]
    assert torch.equal(FrozenAutoencoder(source=str(copy)).encode(mel), parts["autoencoder"].encode(mel))


def test_an_export_restores(tmp_path: Path) -> None:
    made = nets("audiosr")
    convert(
        write(tmp_path, "audiosr", {"state_dict": state_of(made, "audiosr")}, "pytorch_model.bin"), tmp_path / "out"
    )
    restorer = load(tmp_path / "out", guidance_scale=1.0)
    assert float(restorer.net.latent_scale) == pytest.approx(0.37)
    assert restorer.features.kind == "audiosr"
    assert restorer.vocoder.net.last_slope == 0.01
    assert convert(tmp_path / "out", tmp_path / "back.bin")["layout"] == "audiosr"


def test_report(tmp_path: Path) -> None:
    state = state_of(nets("model.py"), "model.py")
    del state["first_stage_model.encoder.norm_out.bias"]
    state["model.diffusion_model.out.9.weight"] = torch.ones(1)
    path = write(tmp_path, "model.py", state)
    facts = describe(path)
    assert facts["format"] == "model.py"
    assert "1 missing" in facts["vae"]
    assert "1 unexpected" in facts["unet"]
    assert facts["left out: CLAP"] == "1 tensors"
    with pytest.raises(ValueError, match=r"only \d+ of \d+ tensors of the unet match .*1.*100% must"):
        from_original(path)
    model = from_original(path, min_matched=0.9)
    assert model.report["unet"]["unexpected"] == 1


def test_the_projection_that_was_never_trained(tmp_path: Path) -> None:
    state = state_of(nets("modelV1"), "modelV1")
    state = {key: value for key, value in state.items() if "_adaptive_proj" not in key}
    path = write(tmp_path, "modelV1", {"state_dict": state, "ema": {}})
    with pytest.raises(ValueError, match="built that projection in the first forward pass, at random"):
        from_original(path)
    assert from_original(path, allow_partial=True).global_encoder is not None
    assert "trains: global_encoder" in convert(path, tmp_path / "x.ckpt", allow_partial=True)["notes"][0]
    assert "net.global_encoder.pos_encoding" in original_state(path)


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_two_autoencoders_stay_two(tmp_path: Path, layout: str) -> None:
    """The conditioner's own autoencoder encodes the condition, restores, and is written back."""
    made, own = nets(layout), nets(layout, seed=1)["vae"]
    state = state_of(made, layout)
    prefix = f"cond_stage_models.{'concat_lowpass_cond' if layout == 'model.py' else '0'}.vae."
    state |= {prefix + key: value for key, value in original_tensors(own).items()}
    path = write(tmp_path / "theirs", layout, {"state_dict": state, **({} if layout == "audiosr" else {"ema": {}})})
    mel = torch.randn(2, 1, MELS, 48)
    model = from_original(path)
    assert torch.equal(model.condition_vae.encode(mel), own.encode(mel))
    assert torch.equal(model.vae.encode(mel), made["vae"].encode(mel))
    ours, back = tmp_path / "ours" / "step_00000040.ckpt", tmp_path / "back" / f"step_40{path.suffix}"
    convert(path, ours)
    frozen = load_checkpoint(ours)["frozen"]
    assert set(frozen) == {"autoencoder", "condition_autoencoder", "vocoder"}
    for source, target in ((ours, back), (model, tmp_path / "again" / back.name)):
        convert(source, target.with_suffix(".bin") if layout == "audiosr" else target)
        written = load_foreign_checkpoint(next(target.parent.glob("step_40.*")))["state_dict"]
        assert all(torch.equal(written[prefix + key], value) for key, value in original_tensors(own).items())
        assert torch.equal(written["first_stage_model.quant_conv.bias"], made["vae"].quant_conv.bias)
    if layout == "modelV1":
        return  # its global encoder takes no clips this short
    convert(path, tmp_path / "export")
    one = load(tmp_path / "export", guidance_scale=1.0, cutoff_hz=2000.0, sampler=DPMSolver(1))
    audio = torch.randn(4000, generator=torch.Generator().manual_seed(0)).numpy()
    kernel = one.condition_autoencoder.net.encoder.conv_in.weight
    assert torch.equal(kernel if layout == "audiosr" else kernel.transpose(-1, -2), own.encoder.conv_in.weight)
    heard: list[torch.Tensor] = []
    one.net.register_forward_pre_hook(lambda module, inputs: heard.append(inputs[0][:, 4:]))
    one(audio, 16000)
    one.condition_autoencoder = None
    one(audio, 16000)
    assert not torch.allclose(heard[0], heard[-1], atol=1e-3)


def test_a_torn_second_autoencoder_is_refused(tmp_path: Path) -> None:
    state = state_of(nets("model.py"), "model.py")
    prefix = "cond_stage_models.concat_lowpass_cond.vae."
    state[prefix + "quant_conv.bias"] += 1
    del state[prefix + "quant_conv.weight"]
    with pytest.raises(ValueError, match=r"only \d+ of \d+ tensors of the conditioner match"):
        from_original(write(tmp_path, "model.py", state))


@pytest.mark.parametrize("heads", [2, 8])
@torch.no_grad()
def test_heads_of_modelv1_from_the_configuration(tmp_path: Path, heads: int) -> None:
    """Both ways: what the shapes do not show stands in config.yaml, beside what is written as beside what is read."""
    made = nets("modelV1")
    made["encoder"] = GlobalEncoder(MELS, 128, heads, 2, context_channels=CONTEXT).eval()
    settings = config("modelV1")
    settings["model"]["params"]["unet_config"]["params"]["global_encoder_heads"] = heads
    path = write(tmp_path / "theirs", "modelV1", {"state_dict": state_of(made, "modelV1"), "ema": {}})
    path.with_name("config.yaml").write_text(yaml.safe_dump(settings))
    mel = torch.randn(2, 1, MELS, 48)
    expected = made["encoder"](mel)[0]
    assert torch.equal(from_original(path).global_encoder(mel)[0], expected)
    convert(path, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back" / "step_40.pt")
    assert torch.equal(from_original(tmp_path / "back" / "step_40.pt").global_encoder(mel)[0], expected)
    write_theirs(Nets(made["vae"], Denoiser(made["unet"], made["encoder"]), None), "modelV1", tmp_path / "new" / "a.pt")
    assert torch.equal(from_original(tmp_path / "new" / "a.pt").global_encoder(mel)[0], expected)
    (tmp_path / "new" / "config.yaml").write_text(yaml.safe_dump(config("modelV1")))
    with pytest.raises(ValueError, match=rf"has {heads} heads, with .* read as 4"):
        write_theirs(
            Nets(made["vae"], Denoiser(made["unet"], made["encoder"]), None), "modelV1", tmp_path / "new" / "b.pt"
        )
    unet = settings["model"]["params"]["unet_config"]["params"]
    assert convert_config_of(settings, tmp_path)["heads"] == heads
    unet |= {"global_encoder_hidden_dim": 256, "global_encoder_layers": 4}  # that of a model.py, which modelV1 swallows
    path.with_name("config.yaml").write_text(yaml.safe_dump(settings))
    assert from_original(path).global_encoder.heads == 4


def convert_config_of(settings: dict, folder: Path) -> dict:
    """The global encoder's arguments in the recipe of a configuration."""
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    recipe = convert_config(folder / "config.yaml")[0]
    return recipe["model"]["init_args"]["net"]["init_args"]["global_encoder"]["init_args"]


def test_start_from_a_file(tmp_path: Path) -> None:
    made = nets("model.py")
    state = original_state(write(tmp_path, "model.py", state_of(made, "model.py")))
    kernel = made["unet"].input_blocks[0][0].weight
    assert torch.equal(state["net.unet.input_blocks.0.0.weight"], kernel.transpose(-1, -2))
    net = Denoiser(made["unet"], made["encoder"])
    net.load_state_dict(component_state(state, "net"))
    assert {key for key in state if key.startswith("autoencoder.net.")}
    assert "autoencoder.quant_conv.weight" in state  # for the autoencoder's own task


def test_refusals(tmp_path: Path) -> None:
    state = state_of(nets("modelV1"), "modelV1")
    path = write(tmp_path, "modelV1", {"state_dict": state, "ema": {}})
    other = config("modelV1")
    other["model"]["params"]["unet_config"]["params"]["channel_mult"] = [1, 2]
    with pytest.raises(ValueError, match=r"channel_mult \[1, 1\].*\[1, 2\]"):
        from_original(path, other)
    with pytest.raises(ValueError, match=r"names of modelV1 and the configuration those of model\.py"):
        from_original(path, config("model.py"))
    with pytest.raises(ValueError, match="noise schedule is not the cosine one"):
        from_original(write(tmp_path, "modelV1", {"state_dict": {**state, "alphas_cumprod": torch.rand(1000)}}))
    scaled = write(tmp_path, "modelV1", {"state_dict": {**state, "scale_factor": torch.tensor(0.5)}})
    with pytest.raises(ValueError, match=r"scale_factor is 0\.5"):
        convert(scaled, tmp_path / "x.ckpt")
    with pytest.raises(FileNotFoundError, match="no configuration"):
        from_original(path, tmp_path / "none.yaml")
    torch.save({"net": {"weight": torch.ones(1)}}, tmp_path / "stranger.pt")
    assert not is_original(tmp_path / "stranger.pt")
    assert not is_original(tmp_path)
    with pytest.raises(ValueError, match="expected what from_original gave"):
        to_original(torch.nn.Linear(1, 1), tmp_path / "x.pt")


def test_a_vocoder_whose_numbers_its_shapes_do_not_show(tmp_path: Path) -> None:
    made = nets("audiosr")
    odd = {**VOCODER, "upsample_rates": [6, 2], "resblock": "2", "resblock_dilation_sizes": [[1, 2]]}
    vae = AutoencoderKL(1, 1, (32, 32), 1, 4, dropout=0.3)
    vocoder = Generator(**odd).remove_weight_norm_()
    path = tmp_path / "pytorch_model.bin"
    assert write_theirs(Nets(vae, Denoiser(made["unet"]), vocoder), "audiosr", path) == []
    model = from_original(path)
    mel = torch.randn(1, MELS, 6)
    assert torch.equal(model.vocoder(mel), vocoder(mel))
    assert model.config["model"]["params"]["first_stage_config"]["params"]["ddconfig"]["dropout"] == 0.3
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"upsample_rates are \[5, 2\].*config\.yaml.*read as \[6, 2\]"):
        write_theirs(Nets(vae, Denoiser(made["unet"]), made["vocoder"]), "audiosr", path)
    assert path.read_bytes() == before
    reflecting = Nets(vae, Denoiser(made["unet"]), Generator(**odd, padding_mode="reflect").remove_weight_norm_())
    assert "reflect" in write_theirs(reflecting, "audiosr", tmp_path / "other.bin")[0]


def test_what_no_layout_holds() -> None:
    vae, net = AutoencoderKL(1, 1, (32, 32), 1, 4), Denoiser(UNet(**UNET))
    assert layout_of(net, vae, ".pt") == "modelV1"
    with pytest.raises(ValueError, match="32 groups, those of this autoencoder 16"):
        layout_of(net, AutoencoderKL(1, 1, (32, 32), 1, 4, norm_num_groups=16), ".bin")
    net.latent_scale.fill_(0.5)
    assert layout_of(net, vae, ".bin") == "audiosr"
    with pytest.raises(ValueError, match=r"latent_scale is 0\.5.*train with latent_scale: 1\.0"):
        layout_of(net, vae, ".pt")


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    state = state_of(nets("audiosr"), "audiosr")
    torch.save({"state_dict": state, "more": Trap()}, tmp_path / "trap.bin")
    try:
        from_original(
            tmp_path / "trap.bin", {"model": {"params": {"unet_config": {"params": {"num_head_channels": HEAD}}}}}
        )
    except ValueError as error:
        assert "executed" in str(error)
    assert not (tmp_path / "sprung").exists()


def test_formats_of_hifigan_refuse_these_vocoders(tmp_path: Path) -> None:
    for slope, rates, padding in ((0.1, (4, 2), 0), (0.01, (3, 2), 1)):
        generator = Generator(4, 8, rates, (8, 4), last_slope=slope, output_padding=padding)
        with pytest.raises(ValueError, match=r"last_slope 0.01 only|odd kernel - rate"):
            write_hifigan(generator, tmp_path / "g_00000001")
    assert not list(tmp_path.iterdir())
