"""The original's recorded files through the converter: its numbers, and its files again."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.numeric import assert_agrees
from tests.parity.recorded import arrays
from zoo.audiosr.convert import convert, describe, from_original, is_original
from zoo.audiosr.nets.denoiser import concat
from zoo.audiosr.nets.unet import timestep_embedding
from zoo.blocks.autoencoder import kl_divergence, posterior_mean
from zoo.common.safe_load import load_foreign_checkpoint

IMAGES = ("vae_moments", "vae_dec", "cond_mean", "unet_out_noglobal", "unet_out_global", "wrapper_out_small_cond")
NAMES = (*IMAGES, "vae_kl", "ge_global", "ge_sequence", "temb")


@torch.no_grad()
def test_set_a_and_back(folder: Path, tmp_path: Path) -> None:
    """The file's nets run mel first; ours give the same with time first, and the same file again.

    modelV1 norms an image that is the same everywhere, which multiplies rounding errors by 1000: in float64 the net is
    1e-4 away from its own recording.
    """
    source, actual, back = folder / "set_a" / "step_7.pt", tmp_path / "ours.ckpt", tmp_path / "back" / "step_7.pt"
    components, io = from_original(source), arrays(folder / "set_a" / "io.npz")

    def evaluate(autoencoder: nn.Module, net: nn.Module, io: dict[str, Tensor]) -> dict[str, Tensor]:
        clip = io["ge_in"].mT
        moments = autoencoder.encode(clip)
        mean, condition = posterior_mean(moments), posterior_mean(autoencoder.encode(io["lr_in"].mT))
        x, small = (concat(io["x_noisy"], io[name]).mT for name in ("cond_mean", "cond_small"))
        outputs = net(x, io["t"]), net(x, io["t"], clip), net(small, io["t"], clip)
        images = (image.mT for image in (moments, autoencoder.decode(mean), condition, *outputs))
        divergence = kl_divergence(moments) / mean[0].numel()
        vectors = divergence, *net.global_encoder(io["ge_in"]), timestep_embedding(io["temb_t"], 32)
        return dict(zip(NAMES, (*images, *vectors), strict=True))

    recorded = {name: io[name] for name in NAMES}
    assert_agrees(evaluate, components["autoencoder"], components["net"], io, recorded=recorded, atol=1e-4, rtol=1e-3)
    assert convert(source, actual)["step"] == 7
    assert convert(actual, back)["layout"] == "modelV1"
    reference, again = load_foreign_checkpoint(source), load_foreign_checkpoint(back)
    assert again["ema"] == reference["ema"] == {}
    assert set(again["state_dict"]) == set(reference["state_dict"])
    for key, value in reference["state_dict"].items():
        assert torch.equal(again["state_dict"][key], value.to(again["state_dict"][key].dtype)), key


@torch.no_grad()
def test_audiosrs_layout(folder: Path, tmp_path: Path) -> None:
    """AudioSR's recorded UNet and vocoder with set_a's autoencoder, named as in its `.bin`."""
    separate = load_foreign_checkpoint(folder / "common" / "audiosr_unet.pt")
    vocoder = load_foreign_checkpoint(folder / "common" / "vocoder.pt")
    autoencoder = load_foreign_checkpoint(folder / "set_a" / "step_7.pt")["state_dict"]
    named = {key: value for key, value in autoencoder.items() if key.startswith(("first_stage", "cond_stage"))}
    named |= {f"model.diffusion_model.{key}": value for key, value in separate.items()}
    named |= {f"first_stage_model.vocoder.{key}": value for key, value in vocoder.items()}
    path = tmp_path / "pytorch_model.bin"
    torch.save({"state_dict": {**named, "scale_factor": torch.tensor(0.37)}}, path)
    sizes = json.loads((folder / "common" / "audiosr_unet_config.json").read_text())
    hifigan = json.loads((folder / "common" / "vocoder_config.json").read_text())
    config = {"model": {"params": {"unet_config": {"params": sizes}}}, "vocoder": hifigan}
    path.with_name("config.yaml").write_text(json.dumps(config))
    components = from_original(path)
    vocoder_net = components["vocoder"]
    assert (describe(path)["format"], describe(path)["image axes"]) == ("audiosr", "time, mel")
    assert float(components["net"].latent_scale) == pytest.approx(0.37)
    recorded = arrays(folder / "common" / "vocoder_io.npz")
    mel, wave = recorded["mel"], recorded["wav_audiosr"]
    frames = mel.shape[-1] * vocoder_net.hop_length
    torch.testing.assert_close(vocoder_net.net(mel).flatten(), wave.flatten()[:frames], atol=1e-4, rtol=0.0)


def test_these_files_are_recognised(folder: Path, shared: Path) -> None:
    assert is_original(folder / "set_a" / "step_7.pt")
    assert not is_original(folder / "common" / "vocoder.pt")
    assert not is_original(shared / "golden" / "flow" / "cfg_fmsave.ckpt")
