import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.harness import REPOSITORY
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.flow import FrozenAutoencoder, LatentSpace

# Written by diffusers 0.36.0: random weights, its encoder's mean and log-variance of `images`, its decoding of `z`.
GOLDEN = REPOSITORY / "tests" / "data" / "autoencoder_kl"
CONFIG = {"block_out_channels": [4, 8], "layers_per_block": 1, "latent_channels": 2, "norm_num_groups": 2}


def test_equals_diffusers():
    net, expected = FrozenAutoencoder(str(GOLDEN)).net, load_file(GOLDEN / "expected.safetensors")
    with torch.no_grad():
        moments = torch.cat([expected["mean"], expected["log_variance"]], 1)
        torch.testing.assert_close(net.encode(expected["images"]), moments, atol=1e-5, rtol=0)
        torch.testing.assert_close(net.decode(expected["z"]), expected["decoded"], atol=1e-5, rtol=0)


def test_other_layouts_of_the_same_weights(tmp_path: Path):
    """A pipeline's folder, and attention as files of old name and shape it."""
    state = load_file(GOLDEN / "diffusion_pytorch_model.safetensors")
    old = {}
    for name, value in state.items():
        for now, then in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
            if f".attentions.0.{now}." in name:
                name = name.replace(now, then)
                value = value[:, :, None, None] if value.dim() == 2 else value
        old[name] = value
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_bytes((GOLDEN / "config.json").read_bytes())
    weights = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    save_file({key: value.contiguous() for key, value in old.items()}, weights)
    assert FrozenAutoencoder(str(tmp_path)).fingerprint() == FrozenAutoencoder(str(GOLDEN)).fingerprint()
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="no weights"):
        FrozenAutoencoder(str(tmp_path))


def test_scale_of_the_config_and_of_the_data(tmp_path: Path):
    space = LatentSpace(FrozenAutoencoder(str(GOLDEN)), chunk=2)
    z = torch.randn(3, 3, 4, 4)
    torch.testing.assert_close(space.normalise(z), (z - 0.25) * 0.5)  # diffusers' pipelines: (z - shift) * scaling
    with torch.no_grad():
        torch.testing.assert_close(space.decode(space.normalise(z)), space.autoencoder.decode(z), atol=1e-5, rtol=1e-4)
    space.fit(torch.ones(3), torch.ones(3))  # has one
    assert space.scale.tolist() == [0.5] * 3
    separate = LatentSpace(FrozenAutoencoder(config=CONFIG))
    assert not separate.is_fitted
    separate.fit(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]))
    z = torch.tensor([1.5, 6.0])[None, :, None, None]
    assert separate.normalise(z).flatten().tolist() == [1, 1] and separate.is_fitted
    per_channel = {**CONFIG, "latents_mean": [1.0, 2.0], "latents_std": [0.5, 4.0], "scaling_factor": 2.0}
    assert LatentSpace(FrozenAutoencoder(config=per_channel)).scale.tolist() == [4, 0.5]
    with pytest.raises(ValueError, match="constant"):
        LatentSpace(FrozenAutoencoder(config=CONFIG)).fit(torch.zeros(2), torch.zeros(2))
    separate.autoencoder.save_source(tmp_path)
    again = FrozenAutoencoder(str(tmp_path))
    assert again.fingerprint() == separate.autoencoder.fingerprint() and not LatentSpace(again).is_fitted


def test_foreign_weights_are_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    state = AutoencoderKL(**CONFIG).state_dict()
    save_file({**state, "more": torch.zeros(1)}, tmp_path / "diffusion_pytorch_model.safetensors")
    with pytest.raises(ValueError, match="has unknown 1"):
        FrozenAutoencoder(str(tmp_path))
