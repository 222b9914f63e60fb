"""Restoring the upper band of recordings: arrays and files of any length, rate and number of channels."""

from __future__ import annotations

import io
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from zoo.audio import files
from zoo.audio.chunking import Chunker
from zoo.audiosr.chunks import TAGS, Settings, unit_samples
from zoo.audiosr.cutoff import CONFIDENCE
from zoo.audiosr.denoiser import Denoiser
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.features import MelFeatures
from zoo.audiosr.parts import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.recording import BLOCK_SECONDS, Recording
from zoo.audiosr.report import Spectrogram, write_picture
from zoo.audiosr.samplers import DDIM, Sampler
from zoo.training.inference import Inference, as_audio

CutoffRule = Literal["edge", "share"]

SUBTYPE = "PCM_24"  # quiet recordings keep their band through it


class Restorer(Inference):
    """Denoiser, autoencoder and vocoder on recordings whose band ends too early.

    The input is resampled, its cut-off found, and its peak brought to 0.95, where the nets were trained. Chunks lie on
    the grid of the UNet's coarsest image; the noise of a place is the same in whatever chunk it falls and for all
    channels. Their log-mels are cross-faded and vocoded as one signal, so that no two waveforms with different
    phases meet. Bands below the cut-off come from the input, in the mel and once more, sample by sample, at the end.
    One factor for the whole input brings the generated band to the input's level, another restores that level.
    The result has ceil(samples * sample rate / input rate) samples. Memory does not grow with the input: files are
    read three times (four with a global encoder), with two temporary files of 4 bytes a sample beside the result.

    A global encoder hears the whole channel: its log-mel, pooled to 1024 frames at most; the same for all chunks.

    The cut-off is looked for in each 5 seconds, see `zoo.audiosr.cutoff.edges`. Where there is no edge the band is
    taken as full and the input stays as it is; where all of it is full, or silent, or a given cut-off reaches 95 % of
    half the sample rate, it is resampled and no more. An input whose own sample rate leaves out more than the upper
    tenth of the band ends there.

    Args:
        net: denoiser.
        autoencoder: of log-mels.
        vocoder: of the same log-mels.
        features: audio to log-mels.
        diffusion: the process that the net was trained on.
        sampler: from noise to latents; 100 steps of DDIM when None.
        guidance_scale: see `zoo.audiosr.samplers.mix`; 1 is half the work.
        guidance_rescale: likewise.
        cutoff_hz: where the input's band ends, in Hz; found in each input when None.
        chunk_seconds: length of a chunk; about that of the training crops is what the net knows.
        overlap_seconds: shared by neighbouring chunks, at most half a chunk.
        seed: of the noise; each input starts from it.
        batch_size: chunks restored at once, those of all channels counted.
        input_lowpass_hz: first take away what the input has above this frequency, in Hz: what MP3 leaves there would
            pass for its band. None takes nothing.
        pictures: write `<name>.png` beside each file: its spectrogram before and after.
        condition_autoencoder: encodes the input where the net was trained on another one's latents of it; None takes
            `autoencoder`.
        cutoff_rule: how the cut-off is found: the steepest fall ("edge"), or AudioSR's rule, the frequency below which
            98.5 % of the whole input's magnitude lies ("share").
        cutoff_confidence: of an edge that counts, 0 to 1; see `zoo.audiosr.cutoff.Edge`.

    Raises:
        ValueError: when there is no vocoder, or an argument is out of range.

    Source: Liu et al., "AudioSR" (2023), section 2; chunks, cross-over and level are ours.
    """

    input_suffixes: ClassVar[tuple[str, ...]] = files.AUDIO_SUFFIXES
    output_suffix: ClassVar[str] = ".wav"

    def __init__(
        self,
        net: Denoiser,
        autoencoder: FrozenAutoencoder,
        vocoder: FrozenVocoder | None,
        features: MelFeatures,
        diffusion: CosineDiffusion,
        sampler: Sampler | None = None,
        guidance_scale: float = 3.5,
        guidance_rescale: float = 0.0,
        cutoff_hz: float | None = None,
        chunk_seconds: float = 10.24,
        overlap_seconds: float = 2.0,
        seed: int = 0,
        batch_size: int = 1,
        input_lowpass_hz: float | None = None,
        pictures: bool = True,
        condition_autoencoder: FrozenAutoencoder | None = None,
        cutoff_rule: CutoffRule = "edge",
        cutoff_confidence: float = CONFIDENCE,
    ) -> None:
        if vocoder is None or vocoder.net.receptive_frames is None:
            raise ValueError("restoring needs a vocoder that sees a bounded window: set model.init_args.vocoder")
        for name, value in {"cutoff_hz": cutoff_hz, "input_lowpass_hz": input_lowpass_hz}.items():
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is a frequency in Hz or null, not {value}")
        if cutoff_rule not in get_args(CutoffRule) or not 0 < cutoff_confidence <= 1:
            raise ValueError(
                f"expected cutoff_rule {' or '.join(get_args(CutoffRule))} and cutoff_confidence above 0 and up to 1, "
                f"found {cutoff_rule!r} and {cutoff_confidence}"
            )
        if guidance_scale < 0 or not 0 <= guidance_rescale <= 1:
            raise ValueError(
                f"expected guidance_scale >= 0 and guidance_rescale from 0 to 1, found {guidance_scale} and "
                f"{guidance_rescale}"
            )
        self.net = net
        self.autoencoder = autoencoder
        self.condition_autoencoder = condition_autoencoder
        self.vocoder = vocoder
        self.features = features
        self.diffusion = diffusion
        self.settings = Settings(sampler or DDIM(), guidance_scale, guidance_rescale, seed)
        self.cutoff_hz = cutoff_hz
        self.cutoff_rule = cutoff_rule
        self.cutoff_confidence = cutoff_confidence
        self.input_lowpass_hz = input_lowpass_hz
        self.pictures = pictures
        self.sample_rate = features.sample_rate
        unit = unit_samples(net, autoencoder, features)
        window, overlap = (round(seconds * self.sample_rate / unit) for seconds in (chunk_seconds, overlap_seconds))
        if overlap < 1:
            raise ValueError(
                f"overlap_seconds {overlap_seconds} is no overlap: chunks are cut in units of "
                f"{unit / self.sample_rate:.3g} s, take at least one"
            )
        self.chunker = Chunker(window, overlap, unit + TAGS, batch_size)
        self.unit_samples = unit

    def __call__(
        self, audio: np.ndarray, sample_rate: int, grid_shift: int = 0, cutoff_hz: float | None = None
    ) -> np.ndarray:
        """Restore an array.

        Args:
            audio: (T,) or (C, T), see `as_audio`.
            sample_rate: its rate in Hz.
            grid_shift: moves the grid of chunks by so many units, to measure what it changes; see `Chunker.spans`.
            cutoff_hz: of this input, in the place of the option.

        Returns:
            (T',) or (C, T') float32, -1 to 1, at the features' sample rate.

        Raises:
            ValueError: when the array is no audio.
        """
        return self._array(audio, None, sample_rate, grid_shift, cutoff_hz)

    def ceiling(self, low: np.ndarray, high: np.ndarray, sample_rate: int, cutoff_hz: float) -> np.ndarray:
        """What a perfect denoiser would give: the target through autoencoder and vocoder, with the input's low band.

        Args:
            low: the input (T,) or (C, T) float.
            high: the target of the same shape.
            sample_rate: of both, in Hz.
            cutoff_hz: of the input.

        Returns:
            Like a call.

        Raises:
            ValueError: when an array is no audio.
        """
        return self._array(low, high, sample_rate, 0, cutoff_hz)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Restore an audio file.

        Args:
            source: audio.
            target: audio file to write.

        Returns:
            `audio_seconds`, `sample_rate` and `channels` of the result; `cutoff_hz` (see `Recording`), whether it was
            given or found (`cutoff`), and `segments`: start in seconds, cut-off in Hz (null where the band is full) and
            confidence; `restored`, False where there was nothing to do; `chunks` per channel;
            `real_time_factor` (seconds of work per second of audio); `gain`, below 1 where the result would have left
            full scale; `match`, the factor on the generated band; and the name of the `picture`.

        Raises:
            ValueError: when the file is not sound audio.
            OSError: when it cannot be read or the result cannot be written.
        """
        started = time.perf_counter()
        header = files.info(source)

        def blocks() -> Iterator[np.ndarray]:
            return files.blocks(source, BLOCK_SECONDS * header.sample_rate)

        run = Recording(self, blocks, header.sample_rate, header.channels, header.samples)
        before, after = Spectrogram(run.samples), Spectrogram(run.samples)
        picture = target.with_suffix(".png") if self.pictures else None
        with tempfile.TemporaryFile(dir=target.parent) as first, tempfile.TemporaryFile(dir=target.parent) as second:
            run.survey(before if picture else None)
            segments = list(zip(run.starts.tolist(), run.cutoffs_hz.tolist(), strict=True))
            run.restore(first, second)
            with files.Writer(target, self.sample_rate, header.channels, SUBTYPE) as writer:
                pieces = run.result(second)
                for piece in after.listen(pieces) if picture else pieces:
                    writer.write(piece)
                if picture:  # before the result appears: a rerun takes a result for finished
                    write_picture(picture, before, after, self.sample_rate, run.samples, segments, source.name)
        seconds = run.samples / self.sample_rate
        return {
            "audio_seconds": seconds,
            "sample_rate": self.sample_rate,
            "channels": header.channels,
            "cutoff_hz": round(run.cutoff_hz, 3),
            "cutoff": "found" if self.cutoff_hz is None else "given",
            "segments": [
                [start, None if math.isnan(hz) else round(hz, 3), round(float(confidence), 3)]
                for (start, hz), confidence in zip(segments, run.confidence, strict=True)
            ],
            "restored": not run.nothing_to_do,
            "chunks": run.chunks,
            "real_time_factor": (time.perf_counter() - started) / seconds,
            "gain": run.gain,
            "match": run.match,
            "picture": None if picture is None else picture.name,
        }

    def _array(
        self, audio: np.ndarray, target: np.ndarray | None, sample_rate: int, shift: int, cutoff_hz: float | None
    ) -> np.ndarray:
        audio = as_audio(audio, sample_rate)
        channels = np.atleast_2d(audio)
        run = Recording(self, lambda: [channels], sample_rate, len(channels), channels.shape[1], shift, cutoff_hz)
        if target is not None:
            wanted = np.atleast_2d(as_audio(target, sample_rate))
            if wanted.shape != channels.shape:
                raise ValueError(f"expected a target of shape {channels.shape}, found {wanted.shape}")
            run.target = lambda: [wanted]
        run.survey()
        with io.BytesIO() as first, io.BytesIO() as second:
            run.restore(first, second)
            result = np.concatenate(list(run.result(second)), axis=1)
        return result if audio.ndim == 2 else result[0]
