"""Restoring the upper band of recordings: arrays and files of any length, rate and number of channels."""

from __future__ import annotations

import copy
import io
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from zoo.audio.corpora.corpus import PEAK
from zoo.audio.evaluation import metrics
from zoo.audio.inference import MAX_RECORDING_SECONDS, AudioInference, answer_file, as_audio, recording_field
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, match_length, resample_blocks
from zoo.audiosr.data.cutoff import CONFIDENCE, FULL_BAND, cutoff, edges
from zoo.audiosr.data.simulate import top
from zoo.audiosr.diffusion.samplers import DDIM, Sampler
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.inference.chunks import TAGS, Chunks, Settings, clip_mel, copied_bands, tagged, unit_samples, vocoded
from zoo.audiosr.inference.postprocess import Segments, combined, crossover, lowpass_gains, match
from zoo.audiosr.inference.report import Spectrogram, write_picture
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.common.checks import check_at_least, check_one_of, check_positive, check_within
from zoo.runs.inference.forms import InputField, Output, Progress

SILENCE = 2.0**-16  # half a step of 16 bits; nothing louder in it, and a recording is silent
MAX_GAIN = 1000.0  # 60 dB, by which a quiet input is raised for the nets
BLOCK_SECONDS = 4  # read and written at once
SEGMENT_SECONDS = 5  # of each the cut-off is looked for: long enough that speech has a sibilant in it

Blocks = Callable[[], Iterable[np.ndarray]]


class Recording:
    """A file or an array: `survey` it, then `restore` it, then take the `result`.

    Args:
        blocks: opens the input: pieces (C, n) float32.
        source_rate: of the input in Hz.
        samples: of the input.
        shift: of the grid of chunks, see `Chunker.spans`.
        cutoff_hz: in the place of the restorer's, in Hz.
        target: opens what is resynthesised, where nothing is to be generated.
    """

    def __init__(
        self,
        restorer: Restorer,
        blocks: Blocks,
        source_rate: int,
        channels: int,
        samples: int,
        shift: int = 0,
        cutoff_hz: float | None = None,
        target: Blocks | None = None,
    ) -> None:
        self.restorer = restorer
        self.blocks = blocks
        self.target = target
        self.source_rate = source_rate
        self.channels = channels
        self.samples = max(math.ceil(samples * restorer.sample_rate / source_rate), 1)  # of the result
        self.shift = shift
        self.segment_samples = SEGMENT_SECONDS * restorer.sample_rate
        self._known = Segments(self.samples, self.segment_samples)
        self._given = restorer.cutoff_hz if cutoff_hz is None else cutoff_hz
        # known after the survey
        self.cutoffs_hz = np.full(len(self._known.frames), np.nan)  # ends of the segments' bands (S,), NaN: full
        self.confidence = np.zeros(len(self._known.frames))  # of edges that were found, else 1
        self.peaks = np.zeros(channels)
        self.nothing_to_do = True  # but to resample
        # known after the restoration
        self.chunks = 0  # per channel
        self.match = 1.0  # factor on the generated band
        self.gain = 1.0  # factor on the result

    def survey(self, picture: Spectrogram | None = None) -> None:
        """Find peaks and cut-offs."""
        stream = self._known.observe(self._input())
        for piece in stream if picture is None else picture.observe(stream):
            self.peaks = np.maximum(self.peaks, np.abs(piece).max(axis=1))
        if self.peaks.max() >= SILENCE:
            self._find_cutoffs()
        self.nothing_to_do = bool(np.isnan(self.cutoffs_hz).all())

    @property
    def starts(self) -> np.ndarray:
        """Of the segments (S,), in seconds."""
        return np.arange(len(self.cutoffs_hz)) * SEGMENT_SECONDS

    @property
    def cutoff_hz(self) -> float:
        """The middle of the segments' cut-offs, in Hz; half the sample rate where the band is full."""
        if np.isnan(self.cutoffs_hz).all():
            return self.restorer.sample_rate / 2
        return float(np.nanmedian(self.cutoffs_hz))

    def _find_cutoffs(self) -> None:
        rate = self.restorer.sample_rate
        limit_hz = min(self.source_rate, rate) / 2
        if self._given is None and self.restorer.cutoff_rule == "edge":
            spectra = self._known.spectra / self._known.frames[:, None]
            for number, edge in enumerate(edges(spectra, rate, limit_hz, self.restorer.cutoff_confidence)):
                if edge is not None:
                    self.cutoffs_hz[number], self.confidence[number] = edge.hz, edge.confidence
                elif limit_hz < FULL_BAND * rate / 2:  # nothing can lie above it
                    self.cutoffs_hz[number], self.confidence[number] = top(self.source_rate), 1.0
            return
        found = cutoff(self._known.spectra.sum(axis=0, dtype=np.float64), rate) if self._given is None else self._given
        if found < top(rate):
            self.cutoffs_hz[:] = found
            self.confidence[:] = 0.0 if self._given is None else 1.0

    def restore(self, first: IO[bytes], second: IO[bytes]) -> None:
        """Fill the second of two temporary files with the result, all but its gain."""
        pieces: Iterable[np.ndarray] = self._input()
        if not self.nothing_to_do:
            found = Segments(self.samples, self.segment_samples)
            for piece in found.observe(self._generated()):
                _store(first, piece)
            rate = self.restorer.sample_rate
            self.match = match(self._wanted().spectra, found.spectra, self.cutoffs_hz, rate)
            frequencies, choice = np.unique(np.nan_to_num(self.cutoffs_hz, nan=rate), return_inverse=True)
            low, high = (np.stack(gains) for gains in zip(*(crossover(hz, rate) for hz in frequencies), strict=True))
            streams = [pieces, self._stored(first)]
            pieces = combined(streams, [low, self.match * high], self.samples, choice, self.segment_samples)
        peak = 1.0
        for piece in pieces:
            peak = max(peak, float(np.abs(piece).max()))
            _store(second, piece)
        self.gain = 1 / peak

    def result(self, spool: IO[bytes]) -> Iterator[np.ndarray]:
        """The result (C, n)."""
        for piece in self._stored(spool):
            yield np.clip(piece * np.float32(self.gain), -1.0, 1.0)

    def _input(self, source: Blocks | None = None) -> Iterator[np.ndarray]:
        """The input (C, n) at the nets' rate."""
        restorer = self.restorer
        stream = match_length(
            resample_blocks((source or self.blocks)(), self.source_rate, restorer.sample_rate), self.samples
        )
        limit = restorer.input_lowpass_hz
        if source is not None or limit is None or limit >= restorer.sample_rate / 2:
            return stream
        return combined([stream], [lowpass_gains(limit, restorer.sample_rate)], self.samples)

    def _wanted(self) -> Segments:
        """What sets the level of the generated signal: the input, or a target, whose band no filter has touched."""
        if self.target is None:
            return self._known
        wanted = Segments(self.samples, self.segment_samples)
        for _ in wanted.observe(self._input(self.target)):
            pass
        return wanted

    def _levelled(self, source: Blocks | None = None) -> Iterator[np.ndarray]:
        """The input as the nets take it."""
        factor = np.float32(self._level)
        return (piece * factor for piece in self._input(source))

    @property
    def _level(self) -> float:
        return min(PEAK / float(self.peaks.max()), MAX_GAIN)

    def _generated(self) -> Iterator[np.ndarray]:
        """What the nets make of the input (C, n), at the input's level; silent channels stay silent."""
        restorer, device = self.restorer, self.restorer.device
        unit = restorer.unit_samples
        units = -(-self.samples // unit)
        places = (np.arange(units) * unit + unit // 2) // self.segment_samples
        copied = copied_bands(restorer.features, self.cutoffs_hz[np.minimum(places, len(self.cutoffs_hz) - 1)])
        chunks = Chunks(
            restorer.net, restorer.autoencoder, restorer.features, restorer.diffusion, restorer.settings, copied,
            self._encoded(), restorer.condition_autoencoder,
        )  # fmt: skip
        samples = units * (unit + TAGS)
        self.chunks = len(restorer.chunker.spans(samples, self.shift))
        compute = chunks.restore if self.target is None else chunks.through
        stream = tagged(self._levelled(self.target), units, unit)
        mels = restorer.chunker.process(stream, samples, compute, self.shift)
        audio = vocoded(
            restorer.vocoder, mels, units * unit // restorer.features.hop_length, restorer.chunker.batch, device
        )
        factors = ((self.peaks >= SILENCE) / self._level).astype(np.float32)[:, None]
        for piece in match_length(audio, self.samples):
            yield piece * factors

    def _encoded(self) -> tuple[Tensor, Tensor] | None:
        """The global context of each channel."""
        restorer = self.restorer
        if restorer.net.global_encoder is None or self.target is not None:
            return None
        mel = clip_mel(restorer.features, self._levelled(), self.samples, restorer.device)
        with torch.inference_mode():
            return restorer.net.encode_clip(mel)

    def _stored(self, spool: IO[bytes]) -> Iterator[np.ndarray]:
        """Pieces (C, n) of a temporary file."""
        spool.seek(0)
        while data := spool.read(4 * self.channels * BLOCK_SECONDS * self.restorer.sample_rate):
            yield np.frombuffer(data, np.float32).reshape(-1, self.channels).T


def _store(spool: IO[bytes], piece: np.ndarray) -> None:
    spool.write(np.ascontiguousarray(piece.T, dtype=np.float32).tobytes())


def band_distances(found: Tensor, high: Tensor, sample_rate: int, cutoff_hz: float) -> dict[str, float]:
    """Log-spectral distances of signals (T,): `lsd`, and above and below a cut-off, `lsd_hf` and `lsd_lf`."""
    below, above = metrics.lsd_bands(found, high, sample_rate, (0.0, cutoff_hz, sample_rate / 2))
    return {"lsd": float(metrics.lsd(found, high)), "lsd_lf": float(below), "lsd_hf": float(above)}


CutoffRule = Literal["edge", "share"]

MAX_STEPS = 200  # of one answer
SHOWN = ("cutoff_hz", "cutoff", "restored", "audio_seconds", "sample_rate", "chunks", "real_time_factor", "gain")
SUBTYPE = "PCM_24"  # quiet recordings keep their band through it


class Restorer(AudioInference):
    """Denoiser, autoencoder and vocoder on recordings whose band ends too early.

    The input is resampled, its cut-off found, and its peak brought to 0.95, where the nets were trained. Chunks lie on
    the grid of the UNet's coarsest image; the noise of a place is the same in whatever chunk it falls and for all
    channels. Their log-mels are cross-faded and vocoded as one signal, so that no two waveforms with different
    phases meet. Bands below the cut-off come from the input, in the mel and once more, sample by sample, at the end.
    One factor for the whole input brings the generated band to the input's level, another restores that level.
    The result has ceil(samples * sample rate / input rate) samples. Memory does not grow with the input: files are
    read three times (four with a global encoder), with two temporary files of 4 bytes a sample beside the result.

    A global encoder takes the whole channel: its log-mel, pooled to 1024 frames at most; the same for all chunks.

    The cut-off is looked for in each 5 seconds, see `zoo.audiosr.data.cutoff.edges`. Where there is no edge the band is
    taken as full and the input stays as it is; where all of it is full, or silent, or a given cut-off reaches 95 % of
    half the sample rate, it is resampled and no more. An input whose own sample rate leaves out more than the upper
    tenth of the band ends there.

    Args:
        net: UNet and, if there is one, global encoder.
        autoencoder: of the latents that the net was trained on.
        vocoder: from log-mel to waveform; restoring needs one.
        features: the front end that all three were trained with.
        diffusion: the process that the net was trained on.
        sampler: from noise to latents; 100 steps of DDIM when None.
        guidance_scale: see `zoo.blocks.image.classifier_free_guidance`; 1 is half the work.
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
        cutoff_confidence: of an edge that counts, 0 to 1; see `zoo.audiosr.data.cutoff.Edge`.

    Source: Liu et al., "AudioSR" (2023), section 2; chunks, cross-over and level are ours.
    """

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
        check_one_of(get_args(CutoffRule), cutoff_rule=cutoff_rule)
        check_positive(cutoff_confidence=cutoff_confidence)
        check_within(0, 1, cutoff_confidence=cutoff_confidence, guidance_rescale=guidance_rescale)
        check_at_least(0, guidance_scale=guidance_scale)
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
        self.chunk_seconds, self.overlap_seconds = chunk_seconds, overlap_seconds
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
        """Restore an array (T,) or (C, T), see `as_audio`; the result has the features' sample rate.

        Args:
            audio: float or integers.
            grid_shift: moves the grid of chunks by so many units, to measure what it changes; see `Chunker.spans`.
            cutoff_hz: of this input, in the place of the option.
        """
        return self._array(audio, None, sample_rate, grid_shift, cutoff_hz)

    def compare(self, high: Tensor, low: Tensor, cutoff_hz: float) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Restore a clip beside the input as it is and what the frozen parts can reach.

        Returns:
            Signals (T,) on the CPU: `restored`, `input`, `target`, `ceiling`; and `band_distances`, those of the input
            as `unprocessed_...` and of the ceiling as `ceiling_...`.
        """
        rate = self.sample_rate
        signals = {
            "restored": torch.from_numpy(self(low.numpy(), rate, cutoff_hz=cutoff_hz)),
            "input": low,
            "target": high,
            "ceiling": torch.from_numpy(self.ceiling(low.numpy(), high.numpy(), rate, cutoff_hz)),
        }
        values = {
            prefix + key: value
            for name, prefix in {"restored": "", "input": "unprocessed_", "ceiling": "ceiling_"}.items()
            for key, value in band_distances(signals[name], high, rate, cutoff_hz).items()
        }
        return signals, values

    def ceiling(self, low: np.ndarray, high: np.ndarray, sample_rate: int, cutoff_hz: float) -> np.ndarray:
        """What a perfect denoiser would give: the target through autoencoder and vocoder, with the input's low band."""
        return self._array(low, high, sample_rate, 0, cutoff_hz)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Restore an audio file.

        Returns:
            `audio_seconds`, `sample_rate` and `channels` of the result; `cutoff_hz` (see `Recording`), whether it was
            given or found (`cutoff`), and `segments`: start in seconds, cut-off in Hz (null where the band is full) and
            confidence; `restored`, False where there was nothing to do; `chunks` per channel;
            `real_time_factor` (seconds of work per second of audio); `gain`, below 1 where the result would have left
            full scale; `match`, the factor on the generated band; and the name of the `picture`.
        """
        started = time.perf_counter()
        header = files.info(source)

        def blocks() -> Iterator[np.ndarray]:
            return files.read_blocks(source, BLOCK_SECONDS * header.sample_rate)

        run = Recording(self, blocks, header.sample_rate, header.channels, header.samples)
        before, after = Spectrogram(run.samples), Spectrogram(run.samples)
        picture = target.with_suffix(".png") if self.pictures else None
        with tempfile.TemporaryFile(dir=target.parent) as first, tempfile.TemporaryFile(dir=target.parent) as second:
            run.survey(before if picture else None)
            segments = list(zip(run.starts.tolist(), run.cutoffs_hz.tolist(), strict=True))
            run.restore(first, second)
            with files.AudioWriter(target, self.sample_rate, header.channels, SUBTYPE) as writer:
                pieces = run.result(second)
                for piece in after.observe(pieces) if picture else pieces:
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

    def fields(self) -> tuple[InputField, ...]:
        """A recording, where its band ends, and how to sample."""
        half = self.sample_rate / 2
        sampler, scale = self.settings.sampler, self.settings.guidance_scale
        longest = max(self.chunk_seconds, MAX_RECORDING_SECONDS)
        found = "where the recording's band ends; found in each 5 seconds when empty"
        taken = "first take away what lies above this frequency, such as what MP3 leaves there"
        return (
            recording_field(),
            InputField("cutoff_hz", "Cut-off (Hz)", "float", self.cutoff_hz, (0, half), help=found, optional=True),
            InputField("steps", "Steps", "int", min(sampler.steps, MAX_STEPS), (1, MAX_STEPS), help="more is slower"),
            InputField("guidance_scale", "Guidance", "float", scale, (0, 20), help="1 takes half as long"),
            InputField("seed", "Seed", "int", self.settings.seed, (0, 2**31)),
            InputField("input_lowpass_hz", "Low-pass (Hz)", "float", self.input_lowpass_hz, (0, half), help=taken,
                  optional=True, advanced=True),
            InputField("cutoff_rule", "Cut-off found by", "choice", self.cutoff_rule, allowed=get_args(CutoffRule),
                  advanced=True),
            InputField("chunk_seconds", "Chunk (s)", "float", self.chunk_seconds, (0.1, longest), advanced=True),
            InputField("overlap_seconds", "Overlap (s)", "float", self.overlap_seconds, (0, longest / 2),
                       advanced=True),
        )  # fmt: skip

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Restore a recording with what was chosen."""
        options = {name: value for name, value in values.items() if name not in ("input", "steps")}
        sampler = copy.copy(self.settings.sampler)
        sampler.steps = values["steps"]
        changed = Restorer(
            self.net, self.autoencoder, self.vocoder, self.features, self.diffusion, sampler,
            guidance_rescale=self.settings.guidance_rescale, batch_size=self.chunker.batch, pictures=False,
            condition_autoencoder=self.condition_autoencoder, cutoff_confidence=self.cutoff_confidence, **options,
        )  # fmt: skip
        changed.with_figures = self.with_figures
        return answer_file(changed, values["input"], folder, progress, SHOWN)

    def _array(
        self, audio: np.ndarray, target: np.ndarray | None, sample_rate: int, shift: int, cutoff_hz: float | None
    ) -> np.ndarray:
        audio = as_audio(audio, sample_rate)
        channels = np.atleast_2d(audio)
        wanted = None if target is None else np.atleast_2d(as_audio(target, sample_rate))
        if wanted is not None and wanted.shape != channels.shape:
            raise ValueError(f"expected a target of shape {channels.shape}, found {wanted.shape}")
        run = Recording(
            self, lambda: [channels], sample_rate, len(channels), channels.shape[1], shift, cutoff_hz,
            None if wanted is None else lambda: [wanted],
        )  # fmt: skip
        run.survey()
        with io.BytesIO() as first, io.BytesIO() as second:
            run.restore(first, second)
            result = np.concatenate(list(run.result(second)), axis=1)
        return result if audio.ndim == 2 else result[0]
