import pytest
import torch

from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.spectral import MultiScaleMel
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.discriminators import MultiPeriodDiscriminator
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.hifigan.task import HiFiGANTask, vocoder_metrics

GENERATOR = {"in_channels": 8, "initial_channels": 8, "upsample_rates": (8, 8), "upsample_kernel_sizes": (16, 16),
             "resblock_kernel_sizes": (3,), "resblock_dilation_sizes": ((1, 3, 5),)}  # fmt: skip
WEIGHTS = {"d/mpd": 1.0, "g/adv_mpd": 1.0, "g/fm_mpd": 2.0, "g/mel": 45.0}


def front_end(hop_length: int = 64) -> LogMel:
    return LogMel(8000, 256, hop_length, 256, 8, f_max=None)


def build(mel: LogMel | None, generator: WaveformGenerator | None = None, **kwargs: object) -> HiFiGANTask:
    def adamw(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, 2e-4)

    return HiFiGANTask(
        generator or Generator(**GENERATOR), {"mpd": MultiPeriodDiscriminator((2,), 1 / 32)}, adamw, adamw,
        loss_mel=front_end(), mel=mel, **{"sample_rate": 8000, "loss_weights": WEIGHTS, **kwargs},
    )  # fmt: skip


def test_generates_from_the_mel_of_the_audio_or_from_given_features() -> None:
    fake, real = build(front_end()).generate({"audio": torch.randn(2, 1000)})
    assert fake.shape == real.shape == (2, 1, 960)
    task = build(None)
    fake, real = task.generate({"audio": torch.randn(2, 640), "features": torch.randn(2, 8, 11)})
    assert fake.shape == real.shape == (2, 1, 640)


@pytest.mark.parametrize(
    ("hop_length", "kwargs", "message"),
    [
        (32, {}, "'hop_length': 64"),
        (64, {"sample_rate": 22050}, "the audio's is 22050"),
        (64, {"multi_mel": MultiScaleMel(16000)}, "multi_mel.*8000"),
        (64, {"multi_mel": MultiScaleMel(8000)}, "weight g/multi_mel"),
        (64, {"generator": MagnitudeVocos(8, 64, 1, 256)}, "MagnitudeVocos needs discriminators: {}"),
    ],
)
def test_contradicting_parts_are_named(hop_length: int, kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(front_end(hop_length), **kwargs)


def test_silent_target_has_no_metrics() -> None:
    noise = torch.randn(8000)
    assert vocoder_metrics(0.1 * noise, torch.zeros(8000), 8000) == {}
    assert vocoder_metrics(0.1 * noise, 1e-5 * noise, 8000) == {}
    assert vocoder_metrics(0.1 * noise, 0.01 * noise, 8000)["m_stft"] > 0
