"""Options that the tasks and the inference of AudioSR share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zoo.audiosr.diffusion import Sampler
from zoo.common.checks import check_at_least, check_within


@dataclass(frozen=True)
class RestoreOptions:
    """How a trained denoiser restores recordings.

    Args:
        sampler: from noise to latents; 100 steps of DDIM when null.
        guidance_scale: of the condition, see `zoo.blocks.image.classifier_free_guidance`; 1 is half the work.
        guidance_rescale: likewise.
        cutoff_hz: where the input's band ends, in Hz; estimated for each input when null.
        chunk_seconds: length of a chunk; about that of the training crops is what the net knows.
        overlap_seconds: shared by neighbouring chunks, at most half a chunk.
        seed: of the noise, in training as in inference.
        batch_size: chunks restored at once, those of all channels counted.
        lowpass_hz: first remove what the input has above this frequency, such as what MP3 leaves there; null for none.
        pictures: write `<name>.png`, spectrograms before and after, next to each file of at most ten minutes.
    """

    sampler: Sampler | None = None
    guidance_scale: float = 3.5
    guidance_rescale: float = 0.0
    cutoff_hz: float | None = None
    chunk_seconds: float = 10.24
    overlap_seconds: float = 2.0
    seed: int = 0
    batch_size: int = 1
    lowpass_hz: float | None = None
    pictures: bool = True

    def __post_init__(self) -> None:
        for name in ("cutoff_hz", "lowpass_hz"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; expected a frequency in Hz or null")
        check_at_least(0, guidance_scale=self.guidance_scale)
        check_within(0, 1, guidance_rescale=self.guidance_rescale)


DEFAULT_RESTORE = RestoreOptions()
