from pathlib import Path

import pytest
import torch
import yaml

from tests.audiosr.lily import CONTEXT, MELS, UNET, VOCODER, config, nets, state_of, write
from tests.audiosr.task_parts import AUTOENCODER, task
from zoo.audiosr.convert import convert, convert_config, describe, from_original, is_original, original_state
from zoo.audiosr.convert.to_original import Nets, choose_layout, list_targets, write_original
from zoo.audiosr.nets.denoiser import Denoiser, GlobalEncoder
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.nets.unet import UNet
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import save_checkpoint
from zoo.runs.init_from import init_from
from zoo.runs.load import load

LAYOUTS = ("audiosr", "modelV1", "model.py")


def content(layout: str, made: dict) -> dict:
    """A whole file: wrapped names, and averages that differ from the weights."""
    state = state_of(made, layout)
    if layout == "audiosr":
        for name, value in made["unet"].named_parameters():
            state["model_ema." + f"diffusion_model.{name}".replace(".", "")] = value.detach() + 1
        return {"state_dict": state | {"model_ema.decay": torch.tensor(0.9999)}}
    remaining = {key: value + 1 for key, value in state.items() if value.is_floating_point() and "running" not in key}
    state = {f"module._orig_mod.{key}": value for key, value in state.items()}
    return {"state_dict": state | {"model_ema.diffusion_modelout2bias": torch.zeros(4)}, "ema": remaining}


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_nets_compute_time_first_what_the_file_computes(tmp_path: Path, layout: str) -> None:
    made = nets(layout)
    path = write(tmp_path, layout, content(layout, made))
    assert is_original(path) and describe(path)["format"] == layout
    components = from_original(path, ema=False)
    net, autoencoder = components["net"], components["autoencoder"]
    mel, x, t = torch.randn(2, 1, MELS, 48), torch.randn(2, 8, 8, 12), torch.tensor([3, 900])

    def turn(image: torch.Tensor) -> torch.Tensor:
        return image if layout == "audiosr" else image.mT

    torch.testing.assert_close(turn(autoencoder.encode(turn(mel))), made["vae"].encode(mel), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(components["vocoder"](mel.mT), made["vocoder"](mel[:, 0]), atol=0, rtol=0)
    assert components["features"].kind == ("audiosr" if layout == "audiosr" else "projectlily")
    clip = None if layout == "audiosr" else mel.mT
    context = () if layout == "audiosr" else made["encoder"](mel)[:1]
    # modelV1 norms an image that is the same everywhere: rounding errors grow, see tests/parity/audiosr/test_nets.py
    torch.testing.assert_close(turn(net(turn(x), t, clip)), made["unet"](x, t, *context), atol=1e-4, rtol=1e-3)
    averaged = from_original(path)["net"].unet.out[2].bias
    torch.testing.assert_close(averaged, made["unet"].out[2].bias + 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(tmp_path: Path, layout: str) -> None:
    source = write(tmp_path / "theirs", layout, content(layout, nets(layout)))
    actual = tmp_path / "ours" / "step_00000040.ckpt"
    assert convert(source, actual)["step"] == 40
    back = tmp_path / "back" / ("step_40.bin" if layout == "audiosr" else "step_40.pt")
    assert not any("features.kind" in note for note in convert(actual, back)["notes"])
    reference, again = load_foreign_checkpoint(source), load_foreign_checkpoint(back)
    expected = {key.replace("module._orig_mod.", ""): value for key, value in reference["state_dict"].items()}
    left_out = ("clap.", "model_ema.dec", "vae.vocoder.")
    if layout != "audiosr":
        left_out += ("model_ema.",)
    expected = {key: value for key, value in expected.items() if not any(part in key for part in left_out)}
    for key, value in expected.items():
        assert torch.equal(again["state_dict"][key], value), key
    for key, value in reference.get("ema", {}).items():
        if key.startswith("model."):
            assert torch.equal(again["ema"][key], value), key
    checkpoint = torch.load(actual, weights_only=True)
    features = checkpoint["zoo"]["components"]["features"]["init_args"]
    features["kind"] = "projectlily" if layout == "audiosr" else "audiosr"
    save_checkpoint(checkpoint, actual)
    assert any(f"features.kind is {features['kind']}" in note for note in convert(actual, back)["notes"])


def test_a_folder_gives_its_best_checkpoint_by_the_score(tmp_path: Path) -> None:
    best, newest = (tmp_path / name for name in ("best-step_00000002-0.5.ckpt", "step_00000006.ckpt"))
    for path in (best, newest, tmp_path / "best-step_00000004-0.7.ckpt", tmp_path / "step_00000003.ckpt"):
        save_checkpoint({}, path)
    expected = {"best_step_2.pt": best, "step_6.pt": newest, "final_ema.pt": newest}
    assert {path.name: origin for path, origin in list_targets(tmp_path, tmp_path / "out").items()} == expected


def test_an_export_restores(tmp_path: Path) -> None:
    made = nets("audiosr")
    path = write(tmp_path, "audiosr", {"state_dict": state_of(made, "audiosr")}, "pytorch_model.bin")
    convert(path, tmp_path / "out")
    restorer = load(tmp_path / "out", restore={"guidance_scale": 1.0})
    assert float(restorer.net.latent_scale) == pytest.approx(0.37)
    assert restorer.features.kind == "audiosr"
    assert restorer.vocoder.net.last_slope == 0.01
    again = FrozenAutoencoder(str(tmp_path / "out"))  # the parts of later stages come from it as well
    assert again.fingerprint() == restorer.autoencoder.fingerprint() and again.build_other("features").kind == "audiosr"
    assert FrozenVocoder(str(tmp_path / "out")).fingerprint() == restorer.vocoder.fingerprint()


def test_incomplete_nets_are_refused_and_unknown_names_counted(tmp_path: Path) -> None:
    state = state_of(nets("model.py"), "model.py")
    state["strange.weight"] = torch.ones(1)
    facts = describe(write(tmp_path, "model.py", state))
    assert (facts["left out: CLAP"], facts["left out: unknown names"]) == ("1 tensors", "1 tensors")
    for name in ("model.diffusion_model.out.2.bias", ".encoder.norm_out.bias"):  # the latter of both autoencoders
        tensors = {key: value for key, value in state.items() if not key.endswith(name)}
        with pytest.raises(ValueError, match="missing"):
            from_original(write(tmp_path, "model.py", tensors))


@pytest.mark.parametrize("layout", ["audiosr", "model.py"])
def test_the_conditioners_autoencoder_must_be_the_first_stages(tmp_path: Path, layout: str) -> None:
    prefix = f"cond_stage_models.{'0' if layout == 'audiosr' else 'concat_lowpass_cond'}.vae."
    state = state_of(nets(layout), layout) | {f"{prefix}loss.logvar": torch.zeros(1)}
    assert from_original(write(tmp_path, layout, state))
    bias = f"{prefix}quant_conv.bias"
    for tensors in (
        {**state, bias: state[bias] + 1},
        {**state, f"{prefix}encoder.more.bias": state[bias]},
        {key: value for key, value in state.items() if not key.startswith("first_stage_model.")},
    ):
        path = write(tmp_path, layout, tensors)
        assert "another autoencoder" in describe(path)["conditioner"]
        for refuse in (from_original, original_state):
            with pytest.raises(ValueError, match="not the first stage's"):
                refuse(path)


def test_projection_that_was_never_trained(tmp_path: Path) -> None:
    state = state_of(nets("modelV1"), "modelV1")
    state = {key: value for key, value in state.items() if "_adaptive_proj" not in key}
    path = write(tmp_path, "modelV1", {"state_dict": state, "ema": {}})
    with pytest.raises(ValueError, match="--allow_partial"):
        from_original(path)
    assert "trains: global_encoder" in convert(path, tmp_path / "x.ckpt", allow_partial=True)["notes"][0]
    assert "net.global_encoder.pos_encoding" in original_state(path)


@torch.no_grad()
def test_heads_of_modelv1_from_the_configuration(tmp_path: Path) -> None:
    """Both ways: what the shapes do not show stands in config.yaml, beside what is written as beside what is read."""
    made, heads = nets("modelV1"), 8
    made["encoder"] = GlobalEncoder(MELS, 128, heads, 2, context_channels=CONTEXT).eval()
    settings = config("modelV1")
    settings["model"]["params"]["unet_config"]["params"]["global_encoder_heads"] = heads
    path = write(tmp_path / "theirs", "modelV1", {"state_dict": state_of(made, "modelV1"), "ema": {}})
    path.with_name("config.yaml").write_text(yaml.safe_dump(settings))
    mel = torch.randn(2, 1, MELS, 48)
    expected = made["encoder"](mel)[0]

    def read(file: Path) -> torch.Tensor:
        return from_original(file)["net"].global_encoder(mel)[0]

    assert torch.equal(read(path), expected)
    convert(path, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back" / "step_40.pt")
    assert torch.equal(read(tmp_path / "back" / "step_40.pt"), expected)
    recipe = convert_config(path.with_name("config.yaml"))[0]
    assert recipe["model"]["init_args"]["net"]["init_args"]["global_encoder"]["init_args"]["heads"] == heads
    unet = settings["model"]["params"]["unet_config"]["params"]
    unet |= {"global_encoder_hidden_dim": 256, "global_encoder_layers": 4}  # that of a model.py, which modelV1 ignores
    path.with_name("config.yaml").write_text(yaml.safe_dump(settings))
    assert from_original(path)["net"].global_encoder.heads == 4


def test_refusals(tmp_path: Path) -> None:
    state = state_of(nets("modelV1"), "modelV1")
    path = write(tmp_path, "modelV1", {"state_dict": state, "ema": {}})
    other = config("modelV1")
    other["model"]["params"]["unet_config"]["params"]["channel_mult"] = [1, 2]
    for settings, key in ((other, "channel_mult"), (config("model.py"), "target")):
        path.with_name("config.yaml").write_text(yaml.safe_dump(settings))
        with pytest.raises(ValueError, match=key):
            from_original(path)
    for tensors, key in (
        ({**state, "alphas_cumprod": torch.rand(1000)}, "alphas_cumprod"),
        ({**state, "scale_factor": torch.tensor(0.5)}, "scale_factor"),
    ):
        path = write(tmp_path, "modelV1", {"state_dict": tensors, "ema": {}})
        for refuse in (original_state, lambda path: convert(path, tmp_path / "x.ckpt")):
            with pytest.raises(ValueError, match=key):
                refuse(path)
    scaled = config("modelV1")
    scaled["model"]["params"]["scale_factor"] = 0.5
    (tmp_path / "scaled.yaml").write_text(yaml.safe_dump(scaled))
    with pytest.raises(ValueError, match="scale_factor"):
        convert_config(tmp_path / "scaled.yaml")
    (tmp_path / "other.yaml").write_text("trainer: {max_steps: 3}")
    with pytest.raises(ValueError, match=r"model\.params\.unet_config"):
        convert_config(tmp_path / "other.yaml")
    torch.save({"net": {"weight": torch.ones(1)}}, tmp_path / "other.pt")
    assert not is_original(tmp_path / "other.pt")


def test_vocoder_whose_arguments_its_shapes_do_not_show(tmp_path: Path) -> None:
    made = nets("audiosr")
    odd = {**VOCODER, "upsample_rates": [6, 2], "resblock": "2", "resblock_dilation_sizes": [[1, 2]]}
    vae, net = AutoencoderKL(1, 1, (32, 32), 1, 4, dropout=0.3), Denoiser(made["unet"])
    features, vocoder = MelFeatures(n_mels=MELS), Generator(**odd).remove_weight_norm_()
    path = tmp_path / "pytorch_model.bin"
    assert write_original(Nets(vae, net, features, vocoder), "audiosr", path) == []
    components = from_original(path)
    mel = torch.randn(1, 1, 6, MELS)
    assert torch.equal(components["vocoder"](mel), vocoder(mel[:, 0].mT))
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written["model"]["params"]["first_stage_config"]["params"]["ddconfig"]["dropout"] == 0.3
    with pytest.raises(ValueError, match="other mels"):
        write_original(Nets(vae, net, MelFeatures(n_mels=MELS, n_fft=1024), vocoder), "audiosr", tmp_path / "b.bin")
    plain = AutoencoderKL(1, 1, (32, 32), 1, 4, mid_block_add_attention=False)
    for autoencoder, unet, suffix in (
        (plain, made["unet"], ".bin"),
        (vae, UNet(**UNET, transformers_per_down_block=3), ".pt"),
        (vae, UNet(**UNET, transformers_per_down_block=1), ".bin"),
    ):
        with pytest.raises(ValueError, match="transformers per down block"):
            choose_layout(Denoiser(unet), autoencoder, suffix)
    reflecting = Nets(vae, net, features, Generator(**odd, padding_mode="reflect").remove_weight_norm_())
    assert "reflect" in write_original(reflecting, "audiosr", tmp_path / "other" / "a.bin")[0]


def test_fine_tuning_uses_every_tensor_of_the_original(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A net like the original's takes the whole file; another fusion leaves tensors, which are named."""
    path = write(tmp_path, "modelV1", {"state_dict": state_of(nets("modelV1"), "modelV1"), "ema": {}})
    vocoder = FrozenVocoder(config={**VOCODER, "last_slope": 0.1, "output_padding": 1})
    sizes = {"block_out_channels": [32, 32], "latent_channels": 4, "norm_num_groups": 32}
    autoencoder = FrozenAutoencoder(config={**AUTOENCODER, **sizes})
    for fusion, context in (("replace", CONTEXT), ("none", None)):
        unet = UNet(**UNET, fusion=fusion, context_channels=context)
        encoder = None if context is None else GlobalEncoder(MELS, context_channels=context)
        front = MelFeatures(sample_rate=16000, n_fft=512, hop_length=10, n_mels=MELS)
        model = task(Denoiser(unet, encoder), autoencoder=autoencoder, features=front, vocoder=vocoder)
        caplog.clear()
        init_from(model, path, min_matched=0.5)
        assert ("not used: net.unet" in caplog.text) == (fusion == "none")
