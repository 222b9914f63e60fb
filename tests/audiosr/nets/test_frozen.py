"""Frozen autoencoder and vocoder: sources, copies, gradients."""

from pathlib import Path

import torch

from tests.audiosr.task_parts import AUTOENCODER, VOCODER
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.blocks.autoencoder import AutoencoderKL, posterior_mean
from zoo.common.registry import public_name
from zoo.hifigan.nets.generator import Generator
from zoo.runs.checkpoints import save_checkpoint
from zoo.runs.export import write_export


def checkpoint(folder: Path, name: str, part: torch.nn.Module, config: dict[str, object]) -> Path:
    spec = {"class_path": public_name(type(part)), "init_args": config}
    described = {"inference": "mine.Z", "format": 2, "components": {name: spec, "sample_rate": 16000}}
    state = {f"{name}.{key}": value for key, value in part.state_dict().items()}
    path = folder / "runs" / "a" / "step_00000007.ckpt"
    path.parent.mkdir(parents=True)
    save_checkpoint({"zoo": described, "state_dict": state, "global_step": 7}, path)
    return path


def test_autoencoder_of_a_run_a_folder_of_runs_and_a_copy(tmp_path: Path) -> None:
    net = AutoencoderKL(**AUTOENCODER).eval()
    path = checkpoint(tmp_path, "autoencoder", net, AUTOENCODER)
    frozen = FrozenAutoencoder(str(path))
    assert (frozen.factor, frozen.latent_channels, frozen.is_local) == (2, 2, True)
    mel = torch.randn(1, 1, 8, 32)
    torch.testing.assert_close(frozen.encode(mel), net.encode(mel), rtol=0, atol=0)
    latent = posterior_mean(net.encode(mel))
    torch.testing.assert_close(frozen.decode(latent), net.decode(latent), rtol=0, atol=0)
    copy = tmp_path / "copy"
    copy.mkdir()
    frozen.save_source(copy)
    for source in (tmp_path / "runs", path.parent, copy):
        assert FrozenAutoencoder(str(source)).fingerprint() == frozen.fingerprint()


def test_vocoder_is_folded_once_whatever_its_source(tmp_path: Path) -> None:
    net = Generator(**VOCODER).eval()
    frozen = FrozenVocoder(str(checkpoint(tmp_path, "generator", net, VOCODER)))
    mel = torch.randn(2, 1, 5, 32)
    torch.testing.assert_close(frozen(mel), net(mel[:, 0].mT), rtol=0, atol=1e-6)
    assert (frozen.hop_length, frozen.n_mels) == (160, 32)
    assert not any("parametrizations" in name for name in frozen.state_dict())
    copy, exported = tmp_path / "copy", tmp_path / "exported"
    copy.mkdir()
    frozen.save_source(copy)
    spec = {"class_path": "zoo.hifigan.Generator", "init_args": VOCODER}
    write_export(exported, {"inference": "mine.Z", "components": {"generator": spec}}, {"generator": net}, "test")
    for source in (copy, exported):
        assert FrozenVocoder(str(source)).fingerprint() == frozen.fingerprint()
