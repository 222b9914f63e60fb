"""Sources of frozen nets; tests/runs/test_load.py has what a run and an export give."""

from pathlib import Path

from tests.audiosr.task_parts import AUTOENCODER
from zoo.audiosr.nets.frozen import FrozenAutoencoder
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.runs.checkpoints import save_checkpoint


def test_autoencoder_of_a_checkpoint_a_run_a_folder_of_runs_and_a_copy(tmp_path: Path) -> None:
    net = AutoencoderKL(**AUTOENCODER).eval()
    spec = {"class_path": "zoo.blocks.AutoencoderKL", "init_args": AUTOENCODER}
    described = {"inference": "mine.Z", "format": 2, "components": {"autoencoder": spec, "sample_rate": 16000}}
    state = {f"autoencoder.{key}": value for key, value in net.state_dict().items()}
    path = tmp_path / "runs" / "a" / "step_00000007.ckpt"
    path.parent.mkdir(parents=True)
    save_checkpoint({"zoo": described, "state_dict": state, "global_step": 7}, path)
    frozen = FrozenAutoencoder(str(path))
    assert (frozen.factor, frozen.latent_channels, frozen.is_local) == (2, 2, True)
    assert frozen.fingerprint() != FrozenAutoencoder(config=AUTOENCODER).fingerprint()
    copy = tmp_path / "copy"
    copy.mkdir()
    frozen.save_source(copy)
    for source in (tmp_path / "runs", path.parent, copy):
        assert FrozenAutoencoder(str(source)).fingerprint() == frozen.fingerprint()
