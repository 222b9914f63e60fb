"""The diffusion task: scale of the latents, dropped conditions, what is random and what is not, fallbacks."""

import logging
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.audiosr.task_parts import AUTOENCODER, RATE, VOCODER, Clips, Data, denoiser, features, task, trainer
from zoo.audiosr.losses import sample_step_noise
from zoo.audiosr.nets.features import crop_to_multiple
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.samplers import DDIM
from zoo.audiosr.task import ConditionOptions
from zoo.runs.checkpoints import load_checkpoint


def test_scale_of_the_latents_is_taken_once_and_saved(tmp_path: Path) -> None:
    model, run = task(), trainer(tmp_path, max_steps=1)
    run.fit(model, datamodule=Data(samples=25600))
    scale = float(model.net.latent_scale)
    mel = crop_to_multiple(features()(Clips(6, 25600)[0, 1]["high"][None]), 4)
    mean, logvar = model.autoencoder.encode(mel).chunk(2, dim=1)
    spread = mean.var() + logvar.exp().mean()
    assert scale != 1 and scale == pytest.approx(float(spread) ** -0.5, rel=0.05)
    run.save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert float(load_checkpoint(tmp_path / "a.ckpt")["state_dict"]["net.latent_scale"]) == scale
    resumed = task()
    # other data: a scale measured again would differ
    trainer(tmp_path, max_steps=2).fit(resumed, datamodule=Data(samples=5120), ckpt_path=str(tmp_path / "a.ckpt"))
    assert float(resumed.net.latent_scale) == scale
    begun = task()
    begun.load_state_dict({**model.state_dict(), "net.latent_scale": torch.tensor(1.0)})
    trainer(tmp_path, max_steps=1).fit(begun, datamodule=Data(samples=5120))
    assert float(begun.net.latent_scale) == 1.0


def test_zeros_after_a_short_clip_are_not_measured() -> None:
    vocoder = FrozenVocoder(config=VOCODER)
    model = task(restore_items=1, latent_scale=1.0, vocoder=vocoder, validation_sampler=DDIM(1)).eval()
    model.log_media = lambda *_: None
    clip = {key: value[None] for key, value in Clips(1, 8000)[0].items()}
    padded = {key: F.pad(clip[key], (0, 8000)) for key in ("high", "low")}
    distances = [
        model._restore_first(batch, 0, "test")["unprocessed_lsd"]
        for batch in (clip, clip | padded, clip | padded | {"samples": torch.tensor([8000])})
    ]
    assert distances[0] == distances[2] > 1.5 * distances[1]
    silent = model._restore_first({**clip, "low": clip["low"] * 0, "cutoff_hz": torch.tensor([0.0])}, 0, "test")
    assert silent and all(map(math.isfinite, silent.values()))


def test_dropped_condition_is_the_originals_constant(tmp_path: Path) -> None:
    model, seen = task(latent_scale=2.0, condition=ConditionOptions(dropout=1.0)), []
    model.net.unet.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    trainer(tmp_path, max_steps=1).fit(model, datamodule=Data())
    assert torch.isclose(seen[-1][:, 2:], torch.tensor(-11.4981 * 2)).all()


def test_condition_is_dropped_item_by_item() -> None:
    sampled = sample_step_noise(range(4000), (1,), 1000, 0.1)
    assert float(sampled.keep_condition.float().mean()) == pytest.approx(0.9, abs=0.02)
    assert float(sampled.times.float().mean()) == pytest.approx(500, abs=20)
    alone = sample_step_noise([17], (1,), 1000, 0.1)
    for full, one in zip(sampled, alone, strict=True):
        assert torch.equal(full[17:18], one)


def test_dp_falls_back_with_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = task(parallel="dp")
    with caplog.at_level(logging.WARNING):
        trainer(tmp_path, max_steps=1).fit(model, datamodule=Data())
    assert "needs two GPUs and there are 0" in caplog.text
    assert not any("module." in key for key in model.state_dict())


def test_global_encoder_hears_the_input_or_as_the_original_the_target(tmp_path: Path) -> None:
    batch = {key: value[None] for key, value in Clips(2, 2560)[0].items()}
    for received_audio, key in (("lowres", "low"), ("target", "high")):
        model = task(denoiser("residual"), condition=ConditionOptions(global_input=received_audio))
        high, low = model._mels(batch)
        assert torch.equal(model._full_audio(high, low), crop_to_multiple(features()(batch[key]), 4))


def test_parts_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="in_channels"):
        task(autoencoder=FrozenAutoencoder(config={**AUTOENCODER, "latent_channels": 4}))
    with pytest.raises(ValueError, match="from 40 bands"):
        task(vocoder=FrozenVocoder(config={**VOCODER, "in_channels": 40}))
    sizes = {"sample_rate": RATE, "hop_length": 160, "n_mels": 32, "n_fft": 512}
    for name, net, cls, arguments in (
        ("autoencoder", FrozenAutoencoder(config=AUTOENCODER), "zoo.audiosr.MelFeatures", {}),
        ("vocoder", FrozenVocoder(config=VOCODER), "zoo.audio.LogMel", {"win_length": 512, "f_min": 20.0}),
    ):
        fits, other = (
            {"class_path": cls, "init_args": {**sizes, **arguments, "f_max": f_max}} for f_max in (8000.0, 3000.0)
        )
        net.description = net.description._replace(others={"features": fits, "mel": fits})
        task(**{name: net})
        net.description = net.description._replace(others={"features": other, "mel": other})
        with pytest.raises(ValueError, match=f"the {name} was trained on other"):
            task(**{name: net})
