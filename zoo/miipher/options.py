"""What training and use of a vocoder on features share: options of restoring, and the check that nets fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from zoo.common.checks import check_at_least, check_one_of
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.miipher.nets.cleaner import Encoder

Stereo = Literal["channels", "mix"]
Loudness = Literal["input", "keep"]


@dataclass(frozen=True)
class RestoreOptions:
    """Options of restoring.

    Args:
        output_sample_rate: of results in Hz; null keeps the vocoder's.
        stereo: "channels" restores each channel alone, "mix" mixes to mono first.
        loudness: "input" brings each channel to the gated loudness (ITU-R BS.1770) of its input, by at most +20 dB;
            "keep" leaves the vocoder's level. Either way the gain is lowered until no sample exceeds 1.
        chunk_seconds: length of the chunks of a long file.
        overlap_seconds: shared by neighbouring chunks, at most half a chunk.
        batch_size: chunks computed together.
    """

    output_sample_rate: int | None = None
    stereo: Stereo = "channels"
    loudness: Loudness = "input"
    chunk_seconds: float = 20.0
    overlap_seconds: float = 2.0
    batch_size: int = 4

    def __post_init__(self) -> None:
        check_one_of(get_args(Stereo), stereo=self.stereo)
        check_one_of(get_args(Loudness), loudness=self.loudness)
        if self.output_sample_rate is not None:
            check_at_least(1, output_sample_rate=self.output_sample_rate)


DEFAULT_RESTORE = RestoreOptions()


def check_padding(encoder: Encoder) -> None:
    """Refuse an encoder that gives fewer frames than its input has."""
    if encoder.frames(encoder.hop_samples) != 1:
        raise ValueError("the encoder's backbone does not pad: files would lose their ends; build it with pad: true")


def check_fit(encoder: Encoder, generator: WaveformGenerator, sample_rate: int) -> None:
    """Refuse an encoder that does not pad, and a generator whose channels or hop do not fit its features."""
    check_padding(encoder)
    if generator.in_channels != encoder.dim:
        raise ValueError(f"the generator takes {generator.in_channels} channels, the encoder gives {encoder.dim}")
    if generator.hop_length * encoder.sample_rate != sample_rate * encoder.hop_samples:
        raise ValueError(
            f"the generator makes {generator.hop_length} samples per frame; {sample_rate} Hz need "
            f"{sample_rate * encoder.hop_samples / encoder.sample_rate:g} (hop_length, or the product of "
            "upsample_rates)"
        )
