import numpy as np
from matplotlib.image import imread

from tests.harness import REPOSITORY, fingerprint, newest
from zoo.audio import EmbeddedCorpus
from zoo.audio.io import files
from zoo.cli.main import main

SMOKE = REPOSITORY / "configs" / "hifigan" / "smoke.yaml"
FEW = ["--trainer.max_steps", "3", "--trainer.val_check_interval", "1", "--trainer.enable_progress_bar", "false"]
RATE = 22050


def fit(run, *options):
    assert main(["fit", "--config", str(SMOKE), *FEW, "--trainer.default_root_dir", str(run), *options]) == 0
    return sorted(path.relative_to(run / "media").as_posix() for path in run.glob("media/*/*"))


def kinds(step, clips):
    return [f"step_{step:08d}/clip{i}_{kind}" for i in clips for kind in ("generated.wav", "mel.png", "target.wav")]


def test_more_items_than_clips_at_the_first_and_last_validation_and_no_trace_in_the_weights(tmp_path):
    # odd lengths, no time for validations in between
    odd = ["--data.init_args.split.seconds=0.777", "--model.init_args.media_items=9"]
    odd.append("--samples.every_n_validations=1000")
    assert fit(tmp_path / "on", *odd) == kinds(1, (0, 1)) + kinds(3, (0, 1))
    folder = tmp_path / "on" / "media" / "step_00000003"
    generated, rate = files.read(folder / "clip0_generated.wav")
    target, _ = files.read(folder / "clip0_target.wav")
    assert rate == RATE and generated.shape == target.shape == (1, int(0.777 * RATE) // 256 * 256)
    embedded = EmbeddedCorpus(12, RATE)
    clip = embedded.read(10)[: target.shape[1]]
    np.testing.assert_allclose(target[0], clip * (0.95 / embedded.peaks[10]), atol=1e-4)
    assert imread(folder / "clip0_mel.png").shape[2] >= 3
    assert fit(tmp_path / "off", *odd, "--samples.enabled", "false") == []
    on, off = (fingerprint(newest(tmp_path / name)) for name in ("on", "off"))
    assert on == off
