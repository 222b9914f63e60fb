"""Sources of frozen nets; tests/runs/test_load.py has what a run and an export give."""

import shutil
from pathlib import Path

from tests.harness import RUNS, newest
from zoo.audiosr.nets.frozen import FrozenAutoencoder


def test_autoencoder_of_a_checkpoint_a_run_a_folder_of_runs_and_a_copy(tmp_path: Path) -> None:
    run, copy = Path(shutil.copytree(RUNS / "audiosr" / "vae", tmp_path / "runs" / "a")), tmp_path / "copy"
    frozen = FrozenAutoencoder(str(newest(run)))
    assert (frozen.factor, frozen.latent_channels, frozen.is_local) == (2, 8, True)
    copy.mkdir()
    frozen.save_source(copy)
    for source in (run.parent, run, copy):
        assert FrozenAutoencoder(str(source)).fingerprint() == frozen.fingerprint()
