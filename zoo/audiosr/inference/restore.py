"""Restoring the upper band of recordings: arrays and files of any length, rate and number of channels."""

from __future__ import annotations

import io
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from zoo.audio.analysis.figures import plot_spectrograms
from zoo.audio.corpora.corpus import PEAK
from zoo.audio.evaluation import metrics
from zoo.audio.inference import BLOCK_SECONDS, MAX_RECORDING_SECONDS, AudioInference, answer_file, as_audio
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, match_length, resample_blocks, store_piece, stored_pieces
from zoo.audiosr.data.cutoff import FULL_BAND, find_edge
from zoo.audiosr.data.simulate import max_cutoff_hz
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.inference.chunks import TAGS, ChunkRestorer, bands_below, clip_mel, tag_units, vocode
from zoo.audiosr.inference.crossover import StreamSpectrum, crossover_gains, filter_and_sum, lowpass_gains, match_level
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.options import DEFAULT_RESTORE, RestoreOptions
from zoo.audiosr.samplers import DDIM
from zoo.common.reports import write_figure
from zoo.runs.inference.forms import InputField, Output, Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SILENCE = 2.0**-16  # half a step of 16 bits; a recording with nothing louder is silent
MAX_GAIN = 1000.0  # 60 dB, by which a quiet input is raised for the nets
MAX_PICTURE_SECONDS = 600.0  # of a recording whose spectrograms are drawn, which keeps it in memory

Blocks = Callable[[], Iterable[np.ndarray]]


@dataclass(eq=False)
class RecordingRestoration:
    """The restoration of a file or an array: `generate`, then `result`."""

    restorer: Restorer
    blocks: Blocks  # opens the input: pieces (C, n) float32
    source_rate: int  # of the input in Hz
    channels: int
    source_samples: int
    cutoff_hz: float | None = None  # None takes the restorer's, or estimates it
    target: Blocks | None = None  # opens a signal to resynthesise instead of generating one
    keep_input: bool = False  # keep what the nets see, its channels' mean, in `input_mono`

    def __post_init__(self) -> None:
        """Set what `generate` finds."""
        self.samples = max(math.ceil(self.source_samples * self.restorer.sample_rate / self.source_rate), 1)
        self.before = StreamSpectrum()
        if self.cutoff_hz is None:
            self.cutoff_hz = self.restorer.restore.cutoff_hz
        self.peaks = np.zeros(self.channels)
        self.input_mono: list[np.ndarray] = []  # pieces (n,)
        self.chunks = 0  # per channel
        self.level = 1.0  # factor on what the nets get
        self.gain = 1.0  # likewise on the result

    def _analyze(self) -> None:
        """Find peaks, level and the cut-off; None where the band is full or nothing is loud enough."""
        for piece in self.before.observe(self._resample_input(self.blocks)):
            self.peaks = np.maximum(self.peaks, np.abs(piece).max(axis=1))
            if self.keep_input:
                self.input_mono.append(piece.mean(axis=0))
        self.level = min(PEAK / max(float(self.peaks.max()), SILENCE), MAX_GAIN)
        rate = self.restorer.sample_rate
        limit_hz = min(self.source_rate, rate) / 2
        if self.cutoff_hz is None:
            self.cutoff_hz = find_edge(self.before.total, rate, limit_hz)
            if self.cutoff_hz is None and limit_hz < FULL_BAND * rate / 2:  # nothing can lie above it
                self.cutoff_hz = max_cutoff_hz(self.source_rate)
        if self.cutoff_hz is not None:
            self.cutoff_hz = min(self.cutoff_hz, limit_hz, self.restorer.restore.lowpass_hz or limit_hz)
        if self.peaks.max() < SILENCE or (self.cutoff_hz or 0) >= max_cutoff_hz(rate):
            self.cutoff_hz = None

    def generate(self, first: IO[bytes], second: IO[bytes]) -> None:
        """Fill the second of two temporary files with the result, all but its gain."""
        self._analyze()
        pieces: Iterable[np.ndarray] = self._resample_input(self.blocks)
        if self.cutoff_hz is not None:
            rate = self.restorer.sample_rate
            spectrum = StreamSpectrum()
            for piece in spectrum.observe(self._run_nets(self.cutoff_hz)):
                store_piece(first, piece)
            low, high = crossover_gains(self.cutoff_hz, rate)
            high *= match_level(self._reference().total, spectrum.total, self.cutoff_hz, rate)
            pieces = filter_and_sum([pieces, self._read_stored(first)], [low, high], self.samples)
        peak = 1.0
        for piece in pieces:
            peak = max(peak, float(np.abs(piece).max()))
            store_piece(second, piece)
        self.gain = 1 / peak

    def result(self, spool: IO[bytes]) -> Iterator[np.ndarray]:
        """Yield the result (C, n)."""
        for piece in self._read_stored(spool):
            yield np.clip(piece * np.float32(self.gain), -1.0, 1.0)

    def _resample_input(self, blocks: Blocks) -> Iterator[np.ndarray]:
        """The input or the target (C, n) at the nets' rate; the input is low-passed where that is asked for."""
        rate, limit = self.restorer.sample_rate, self.restorer.restore.lowpass_hz
        stream = match_length(resample_blocks(blocks(), self.source_rate, rate), self.samples)
        if blocks is self.target or limit is None or limit >= rate / 2:
            return stream
        return filter_and_sum([stream], [lowpass_gains(limit, rate)], self.samples)

    def _reference(self) -> StreamSpectrum:
        """What sets the level of the generated signal: the input, or a target, whose band no filter has touched."""
        if self.target is None:
            return self.before
        spectrum = StreamSpectrum()
        for _ in spectrum.observe(self._resample_input(self.target)):
            pass
        return spectrum

    def _scale_input(self, blocks: Blocks) -> Iterator[np.ndarray]:
        """The input or the target at the level of training."""
        factor = np.float32(self.level)
        return (piece * factor for piece in self._resample_input(blocks))

    def _run_nets(self, cutoff_hz: float) -> Iterator[np.ndarray]:
        """What the nets make of the input (C, n), at the input's level; silent channels stay silent."""
        restorer, device = self.restorer, self.restorer.device
        unit = restorer.unit_samples
        units = -(-self.samples // unit)
        chunks = ChunkRestorer(restorer, bands_below(restorer.features, cutoff_hz), self._context())
        samples = units * (unit + TAGS)
        self.chunks = len(restorer.chunker.spans(samples))
        compute = chunks.restore if self.target is None else chunks.autoencode
        stream = tag_units(self._scale_input(self.target or self.blocks), units, unit)
        mels = restorer.chunker.process(stream, samples, compute)
        frames = units * unit // restorer.features.hop_length
        audio = vocode(restorer.vocoder, mels, frames, restorer.chunker.batch, device)
        factors = ((self.peaks >= SILENCE) / self.level).astype(np.float32)[:, None]
        for piece in match_length(audio, self.samples):
            yield piece * factors

    def _context(self) -> Tensor | None:
        """The global context of each channel."""
        restorer = self.restorer
        if restorer.net.global_encoder is None or self.target is not None:
            return None
        mel = clip_mel(restorer.features, self._scale_input(self.blocks), self.samples, restorer.device)
        with torch.inference_mode():
            return restorer.net.encode_clip(mel)

    def _read_stored(self, spool: IO[bytes]) -> Iterator[np.ndarray]:
        return stored_pieces(spool, self.channels, BLOCK_SECONDS * self.restorer.sample_rate)


def band_distances(predicted: Tensor, high: Tensor, sample_rate: int, cutoff_hz: float) -> dict[str, float]:
    """Log-spectral distances of signals (T,): `lsd`, and above and below a cut-off, `lsd_hf` and `lsd_lf`."""
    below, above = metrics.lsd_bands(predicted, high, sample_rate, (0.0, cutoff_hz, sample_rate / 2))
    return {"lsd": float(metrics.lsd(predicted, high)), "lsd_lf": float(below), "lsd_hf": float(above)}


MAX_STEPS = 200  # of one answer
ANSWER_FACTS = (
    "cutoff_hz", "cutoff", "restored", "audio_seconds", "sample_rate", "chunks", "real_time_factor", "gain",
)  # fmt: skip


class Restorer(AudioInference):
    """Denoiser, autoencoder and vocoder on recordings whose band ends too early.

    The input is resampled, its cut-off estimated (`zoo.audiosr.data.cutoff.find_edge`) and its peak scaled to 0.95, as
    in training. The log-mels of chunks are cross-faded and vocoded as one signal; the noise of a position is the same
    in every chunk and for all channels. Below the cut-off the result is the input, at the input's level. It has
    ceil(samples * sample rate / input rate) samples. Memory does not grow with the input, but for pictures, which keep
    recordings of up to ten minutes: files are read three times (four with a global encoder), with two temporary files
    of 4 bytes a sample.

    Inputs without an edge, silent ones, and those whose given cut-off reaches 95 % of half the sample rate, are only
    resampled. Inputs whose sample rate lacks more than the upper tenth of the band end there.

    Args:
        net: UNet and, if there is one, global encoder.
        autoencoder: of the latents that the net was trained on.
        vocoder: from log-mel to waveform; restoring needs one.
        features: the front end that all three were trained with.
        diffusion: the process that the net was trained on.
        restore: how to restore.

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
        restore: RestoreOptions = DEFAULT_RESTORE,
    ) -> None:
        if vocoder is None or vocoder.net.receptive_frames is None:
            raise ValueError("restoring needs a vocoder that sees a bounded window: set model.init_args.vocoder")
        self.net = net
        self.autoencoder = autoencoder
        self.vocoder = vocoder
        self.features = features
        self.diffusion = diffusion
        self.restore = restore
        self.sampler = restore.sampler or DDIM()
        self.sample_rate = features.sample_rate
        # one row of the coarsest image inside the UNet
        self.unit_samples = unit = features.hop_length * autoencoder.factor * net.unet.factor
        window = round(restore.chunk_seconds * self.sample_rate / unit)
        overlap = round(restore.overlap_seconds * self.sample_rate / unit)
        if overlap < 1:
            raise ValueError(
                f"overlap_seconds is {restore.overlap_seconds}; expected at least one unit of "
                f"{unit / self.sample_rate:.3g} s, in which chunks are cut"
            )
        self.chunker = Chunker(window, overlap, unit + TAGS, restore.batch_size)

    def __call__(
        self, audio: np.ndarray, sample_rate: int, cutoff_hz: float | None = None, target: np.ndarray | None = None
    ) -> np.ndarray:
        """Restore (T,) or (C, T), see `as_audio`; returns it at the features' rate. A cut-off replaces the option's.

        With a full-band target of equal shape the result is the ceiling, a perfect denoiser's: the target through
        autoencoder and vocoder, with the input's low band.
        """
        audio = as_audio(audio, sample_rate)
        channels = np.atleast_2d(audio)
        target_channels = None if target is None else np.atleast_2d(as_audio(target, sample_rate))
        if target_channels is not None and target_channels.shape != channels.shape:
            raise ValueError(f"expected a target of shape {channels.shape}, found {target_channels.shape}")
        run = RecordingRestoration(
            self, lambda: [channels], sample_rate, len(channels), channels.shape[1], cutoff_hz,
            None if target_channels is None else lambda: [target_channels],
        )  # fmt: skip
        with io.BytesIO() as first, io.BytesIO() as second:
            run.generate(first, second)
            result = np.concatenate(list(run.result(second)), axis=1)
        return result if audio.ndim == 2 else result[0]

    def compare(self, high: Tensor, low: Tensor, cutoff_hz: float) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Restore a clip; returns signals (T,) by name and their `band_distances`.

        Those of the input begin with `unprocessed_`, of the ceiling with `ceiling_`.
        """
        rate = self.sample_rate
        signals = {
            "input": low,
            "restored": torch.from_numpy(self(low.numpy(), rate, cutoff_hz=cutoff_hz)),
            "target": high,
            "ceiling": torch.from_numpy(self(low.numpy(), rate, cutoff_hz, high.numpy())),
        }
        values = {
            prefix + key: value
            for name, prefix in {"restored": "", "input": "unprocessed_", "ceiling": "ceiling_"}.items()
            for key, value in band_distances(signals[name], high, rate, cutoff_hz).items()
        }
        return signals, values

    def plot(self, signals: Mapping[str, Tensor | np.ndarray], cutoff_hz: float | None) -> Figure:
        """Draw the spectrograms of signals (T,) by name, without that of a ceiling."""
        spectra = {name: each for name, each in signals.items() if name != "ceiling"}
        return plot_spectrograms(spectra, self.sample_rate, cutoff_hz)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Restore an audio file; returns what was done.

        Among it `cutoff` ("estimated", "given", "none" where the input is only resampled) and `cutoff_hz`, half the
        sample rate of a full band; `chunks` per channel; `gain`, below 1 where the result would have left full scale.
        """
        started = time.perf_counter()
        header = files.info(source)
        blocks = partial(files.read_blocks, source, BLOCK_SECONDS * header.sample_rate)
        run = RecordingRestoration(self, blocks, header.sample_rate, header.channels, header.samples)
        seconds = run.samples / self.sample_rate
        run.keep_input = self.restore.pictures and seconds <= MAX_PICTURE_SECONDS
        picture = None
        with tempfile.TemporaryFile(dir=target.parent) as first, tempfile.TemporaryFile(dir=target.parent) as second:
            run.generate(first, second)
            with files.AudioWriter(target, self.sample_rate, header.channels, files.RESULT_SUBTYPE) as writer:
                for piece in run.result(second):
                    writer.write(piece)
                if run.keep_input:
                    picture = target.with_suffix(".png")  # before the result appears: a rerun takes that for finished
                    after = np.concatenate([piece.mean(axis=0) for piece in run.result(second)])
                    spectra = {"input": np.concatenate(run.input_mono), "restored": after}
                    write_figure(picture, self.plot(spectra, run.cutoff_hz))
        return {
            "audio_seconds": seconds,
            "sample_rate": self.sample_rate,
            "channels": header.channels,
            "cutoff_hz": round(self.sample_rate / 2 if run.cutoff_hz is None else run.cutoff_hz, 3),
            "cutoff": "none" if run.cutoff_hz is None else "estimated" if self.restore.cutoff_hz is None else "given",
            "restored": run.cutoff_hz is not None,
            "chunks": run.chunks,
            "real_time_factor": (time.perf_counter() - started) / seconds,
            "gain": run.gain,
            "picture": None if picture is None else picture.name,
        }

    def fields(self) -> tuple[InputField, ...]:
        """Return the fields of a form: a recording, where its band ends, and how to sample."""
        half, options = self.sample_rate / 2, self.restore
        longest = max(options.chunk_seconds, MAX_RECORDING_SECONDS)
        estimated = "where the recording's band ends; estimated when empty"
        removed = "first remove what lies above this frequency, such as what MP3 leaves there"
        return (
            *super().fields(),
            InputField("cutoff_hz", "Cut-off (Hz)", "float", options.cutoff_hz, (0, half), help=estimated,
                  optional=True),
            InputField("steps", "Steps", "int", min(self.sampler.steps, MAX_STEPS), (1, MAX_STEPS),
                  help="more is slower"),
            InputField("guidance_scale", "Guidance", "float", options.guidance_scale, (0, 20),
                  help="1 takes half as long"),
            InputField("seed", "Seed", "int", options.seed, (0, 2**31)),
            InputField("lowpass_hz", "Low-pass (Hz)", "float", options.lowpass_hz, (0, half), help=removed,
                  optional=True, advanced=True),
            InputField("chunk_seconds", "Chunk (s)", "float", options.chunk_seconds, (0.1, longest), advanced=True),
            InputField("overlap_seconds", "Overlap (s)", "float", options.overlap_seconds, (0, longest / 2),
                  advanced=True),
        )  # fmt: skip

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Restore a recording with the options of a form."""
        names = {each.name for each in fields(RestoreOptions)}
        options = replace(
            self.restore,
            sampler=self.sampler.with_steps(values["steps"]),
            pictures=False,
            **{name: value for name, value in values.items() if name in names},
        )
        restorer = Restorer(self.net, self.autoencoder, self.vocoder, self.features, self.diffusion, options)
        restorer.with_figures = self.with_figures
        return answer_file(restorer, values["input"], folder, progress, ANSWER_FACTS)
