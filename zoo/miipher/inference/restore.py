"""Restoring speech: arrays and files of any length, rate and number of channels, in constant memory."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from zoo.audio.analysis.features import write_features
from zoo.audio.analysis.loudness import LoudnessMeter
from zoo.audio.inference import MAX_RECORDING_SECONDS, AudioInference, answer_file, as_audio, recording_field
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, check_finite, match_length, mix_to_mono, resample_blocks
from zoo.common.checks import check_one_of
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.miipher.inference.onnx_graph import restoration_graph
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner, Encoder, check_fit
from zoo.runs.components import read_components
from zoo.runs.export import write_export
from zoo.runs.inference.forms import InputField, Output, Progress
from zoo.runs.load import load
from zoo.runs.onnx_export import OnnxGraph

Stereo = Literal["channels", "mix"]
Loudness = Literal["input", "keep"]

BLOCK_SECONDS = 4  # read and written at once
MAX_GAIN = 10.0  # 20 dB; where an input held noise alone, silence would otherwise be raised to its level
MIN_FRAMES = 16  # a shorter clip is zero-padded: the encoder's group norm needs some samples for its statistics


class _Encoding(AudioInference):
    """An encoder and its chunks, which lie on its frame grid."""

    def __init__(
        self, encoder: Encoder, chunk_seconds: float = 20.0, overlap_seconds: float = 2.0, chunk_batch: int = 4
    ) -> None:
        if encoder.frames(encoder.hop_samples) != 1:
            raise ValueError(
                "the encoder's backbone does not pad, so files would lose their ends: build it with pad: true"
            )
        frames, overlap = (
            round(seconds * encoder.sample_rate / encoder.hop_samples) for seconds in (chunk_seconds, overlap_seconds)
        )
        if frames < MIN_FRAMES:
            raise ValueError(f"chunk_seconds {chunk_seconds} is {frames} frames, expected at least {MIN_FRAMES}")
        self.encoder = encoder
        self.chunk_seconds, self.overlap_seconds = chunk_seconds, overlap_seconds
        self.chunker = Chunker(frames, overlap, encoder.hop_samples, chunk_batch)

    def computed_samples(self, samples: int, sample_rate: int) -> int:
        """Samples that a clip is computed as, at the encoder's rate."""
        encoder = self.encoder
        return max(math.ceil(samples * encoder.sample_rate / sample_rate), MIN_FRAMES * encoder.hop_samples)

    def features(self, chunks: np.ndarray, valid: Sequence[int]) -> Tensor:
        """Features (N, C, F) of chunks (N, T) whose first `valid` samples count."""
        waveforms = torch.from_numpy(np.ascontiguousarray(chunks)).to(self.device)
        lengths = None if min(valid) == chunks.shape[1] else torch.tensor(valid, device=self.device)
        return self.encoder(waveforms, lengths).transpose(1, 2)


class Restorer(_Encoding):
    """A cleaner (or a plain backbone) and the vocoder on its features.

    Audio is resampled to the encoder's rate, restored in overlapping chunks that are cross-faded
    (`zoo.audio.io.chunking`) and resampled from the vocoder's rate to the wanted one. n samples give round(n * output
    rate / input rate), at least one. Chunks lie on the encoder's frame grid; with nets that see no further than 3/8 of
    the overlap the result is that of the whole file. Clips shorter than 16 frames are computed as if silence followed.

    A chunk gets no gain of its own: encoders level their input over what they see, so matching each chunk to its
    piece of the input would turn its noise into loudness, and matching it to its neighbour would add up errors over a
    long file. Differences of level are spread over the cross-fade, and one gain per channel holds for the whole file.

    Args:
        encoder: waveforms (B, T) at 16 kHz to features (B, ceil(T / hop), C); its backbone must pad.
        generator: features (B, C, F) to waveforms.
        sample_rate: of the generator in Hz.
        output_sample_rate: of results in Hz; None keeps `sample_rate`.
        stereo: "channels" restores each channel alone, "mix" mixes to mono first.
        loudness: "input" brings each channel to the gated loudness (ITU-R BS.1770) of its input, by at most +20 dB;
            "keep" leaves the vocoder's level. Either way the gain is lowered until no sample exceeds 1.
        chunk_seconds: length of a chunk, > 0.
        overlap_seconds: shared by neighbouring chunks, at most half a chunk.
        chunk_batch: chunks computed together, >= 1.

    Source: Miipher-2 (arXiv 2505.04457), section 3; chunks and loudness are ours.
    """

    output_suffix: ClassVar[str] = ".wav"

    def __init__(
        self,
        encoder: Encoder,
        generator: WaveformGenerator,
        sample_rate: int,
        output_sample_rate: int | None = None,
        stereo: Stereo = "channels",
        loudness: Loudness = "input",
        chunk_seconds: float = 20.0,
        overlap_seconds: float = 2.0,
        chunk_batch: int = 4,
    ) -> None:
        check_fit(encoder, generator, sample_rate)
        super().__init__(encoder, chunk_seconds, overlap_seconds, chunk_batch)
        check_one_of(get_args(Stereo), stereo=stereo)
        check_one_of(get_args(Loudness), loudness=loudness)
        if output_sample_rate is not None and output_sample_rate < 1:
            raise ValueError(f"output_sample_rate must be positive, found {output_sample_rate}")
        self.generator = generator
        self.sample_rate = sample_rate
        self.output_sample_rate = output_sample_rate or sample_rate
        self.stereo = stereo
        self.loudness = loudness
        reach, context = generator.receptive_frames, self.chunker.context
        if reach is not None and reach > context:
            least = math.ceil(reach * 8 / 3) * encoder.hop_samples / encoder.sample_rate
            raise ValueError(
                f"overlap_seconds {overlap_seconds} leaves {context} frames of context, the generator sees {reach} on "
                f"each side: take at least {least:.2f}"
            )

    def __call__(self, audio: np.ndarray, sample_rate: int, grid_shift_frames: int = 0) -> np.ndarray:
        """Restore an array (T,) or (C, T), see `as_audio`; a shift moves the grid of chunks, see `Chunker.spans`.

        Returns:
            (T',) or (C, T') float32, -1 to 1, at `output_sample_rate`; mixed audio is (1, T') where (C, T) was given.
        """
        audio = as_audio(audio, sample_rate)
        channels = np.atleast_2d(audio)
        run = _Run(self, sample_rate, len(channels), channels.shape[1], grid_shift_frames)
        result = np.concatenate(list(run.pieces([channels])), axis=1)
        result = _scaled(result, run.gains())
        return result if audio.ndim == 2 else result[0]

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Restore an audio file.

        Returns:
            `audio_seconds`, `sample_rate` and `channels` of the result, `chunks` per channel, `real_time_factor`
            (seconds of work per second of audio), `peak` of the result, and the `gain` of each channel (a factor).
        """
        started = time.perf_counter()
        header = files.info(source)
        run = _Run(self, header.sample_rate, header.channels, header.samples)
        with tempfile.TemporaryFile(dir=target.parent) as spool:  # the gain is known when all has been restored
            for piece in run.pieces(files.read_blocks(source, BLOCK_SECONDS * header.sample_rate)):
                spool.write(np.ascontiguousarray(piece.T).tobytes())
            spool.seek(0)
            gains = run.gains()
            with files.AudioWriter(target, self.output_sample_rate, run.channels) as writer:
                while data := spool.read(4 * run.channels * BLOCK_SECONDS * self.output_sample_rate):
                    writer.write(_scaled(np.frombuffer(data, np.float32).reshape(-1, run.channels).T, gains))
        seconds = run.samples_out / self.output_sample_rate
        return {
            "audio_seconds": seconds,
            "sample_rate": self.output_sample_rate,
            "channels": run.channels,
            "chunks": run.chunks,
            "real_time_factor": (time.perf_counter() - started) / seconds,
            "peak": float((run.peaks * gains).max()),
            "gain": gains.tolist(),
        }

    def onnx_graph(self) -> OnnxGraph:
        """Return encoder and vocoder as one graph; see `restoration_graph`."""
        return restoration_graph(self.encoder, self.generator)

    def fields(self) -> tuple[InputField, ...]:
        """A recording, and what becomes of its channels and its level."""
        both = "restore each channel alone, or mix them first"
        level = "bring the result to the loudness of the recording, or keep the vocoder's"
        longest = max(self.chunk_seconds, MAX_RECORDING_SECONDS)
        return (
            recording_field(),
            InputField("stereo", "Channels", "choice", self.stereo, allowed=get_args(Stereo), help=both),
            InputField("loudness", "Loudness", "choice", self.loudness, allowed=get_args(Loudness), help=level),
            InputField("chunk_seconds", "Chunk (s)", "float", self.chunk_seconds, (0.5, longest), advanced=True),
            InputField(
                "overlap_seconds", "Overlap (s)", "float", self.overlap_seconds, (0, longest / 2), advanced=True
            ),
        )

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Restore a recording with what was chosen."""
        options = {name: value for name, value in values.items() if name != "input"}
        changed = Restorer(
            self.encoder, self.generator, self.sample_rate, self.output_sample_rate, chunk_batch=self.chunker.batch,
            **options,
        )  # fmt: skip
        changed.with_figures = self.with_figures
        return answer_file(changed, values["input"], folder, progress)

    @torch.inference_mode()
    def compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Chunks (N, T) of whole frames at the encoder's rate to waveforms (N, T') at the vocoder's."""
        features = self.features(chunks, valid)
        frames = np.array([-(-samples // self.encoder.hop_samples) for samples in valid])
        made: np.ndarray | None = None
        for count in sorted(set(frames.tolist()), reverse=True):  # the generator would hear zeros behind a clip's end
            alike = np.flatnonzero(frames == count)
            rows = features if len(alike) == len(frames) else features[alike.tolist()]
            found = check_finite(self.generator(rows[..., :count])[:, 0].float().cpu().numpy())
            if len(alike) == len(frames):
                return found
            if made is None:
                made = np.zeros((len(chunks), found.shape[1]), np.float32)
            made[alike, : found.shape[1]] = found
        assert made is not None
        return made


class _Run:
    """One file or array on its way through a restorer: the stream, and what is measured on it."""

    def __init__(self, restorer: Restorer, sample_rate: int, channels: int, samples: int, shift: int = 0) -> None:
        self.restorer = restorer
        self.source_rate = sample_rate
        self.channels = 1 if restorer.stereo == "mix" else channels
        self.samples_in = restorer.computed_samples(samples, sample_rate)
        self.samples_out = max(round(samples * restorer.output_sample_rate / sample_rate), 1)
        self.shift = shift
        self.chunks = len(restorer.chunker.spans(self.samples_in, shift))
        self.peaks = np.zeros(self.channels)
        self._input = LoudnessMeter(restorer.encoder.sample_rate, self.channels)
        self._result = LoudnessMeter(restorer.sample_rate, self.channels)

    def pieces(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """The result (C, n) before its gain."""
        restorer = self.restorer
        if restorer.stereo == "mix":
            blocks = mix_to_mono(blocks)
        stream = match_length(resample_blocks(blocks, self.source_rate, restorer.encoder.sample_rate), self.samples_in)
        stream = restorer.chunker.process(
            self._input.measure_stream(stream), self.samples_in, restorer.compute, self.shift
        )
        stream = resample_blocks(self._result.measure_stream(stream), restorer.sample_rate, restorer.output_sample_rate)
        for piece in match_length(stream, self.samples_out):
            self.peaks = np.maximum(self.peaks, np.abs(piece).max(axis=1))
            yield piece

    def gains(self) -> np.ndarray:
        """The factor (C,) for each channel, once all pieces have passed."""
        gains = np.ones(self.channels)
        if self.restorer.loudness == "input":
            wanted, found = self._input.loudness(), self._result.loudness()
            for channel in range(self.channels):
                if math.isfinite(found[channel]):
                    gains[channel] = min(10 ** ((wanted[channel] - found[channel]) / 20), MAX_GAIN)
        return gains / max((gains * self.peaks).max(), 1.0)


def _scaled(piece: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Samples (C, n) times the gain (C,) of their channel."""
    return np.clip(piece * gains.astype(np.float32)[:, None], -1.0, 1.0)


class FeatureExtractor(_Encoding):
    """An encoder alone: audio files to feature files, cut and cross-faded like a restorer's chunks.

    Files are `.npy`, (C, F) float16, frame after frame (Fortran order): a crop of a mapped file is one read.

    Args:
        encoder: waveforms (B, T) at 16 kHz to features (B, ceil(T / hop), C).
        chunk_seconds: length of a chunk, > 0.
        overlap_seconds: shared by neighbouring chunks, at most half a chunk.
        chunk_batch: chunks computed together, >= 1.
    """

    output_suffix: ClassVar[str] = ".npy"

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Encode an array (T,) or (C, T), its channels mixed, as features (C, F) float32; see `as_audio`."""
        audio = np.atleast_2d(as_audio(audio, sample_rate))
        return np.concatenate(list(self._pieces([audio], audio.shape[1], sample_rate)), axis=1)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Encode an audio file.

        Returns:
            `audio_seconds` of the input, `sample_rate` of it, `frames`, `dim` and `chunks`.

        Raises:
            ValueError: when the file is not sound audio, or a feature exceeds float16.
        """
        header = files.info(source)
        frames = self._frames(header.samples, header.sample_rate)
        blocks = files.read_blocks(source, BLOCK_SECONDS * header.sample_rate)
        pieces = self._pieces(blocks, header.samples, header.sample_rate)
        write_features(target, (self.encoder.dim, frames), "<f2", pieces)
        return {
            "audio_seconds": header.samples / header.sample_rate,
            "sample_rate": header.sample_rate,
            "frames": frames,
            "dim": self.encoder.dim,
            "chunks": len(self.chunker.spans(self.computed_samples(header.samples, header.sample_rate))),
        }

    def _frames(self, samples: int, sample_rate: int) -> int:
        return -(-math.ceil(samples * self.encoder.sample_rate / sample_rate) // self.encoder.hop_samples)

    def _pieces(self, blocks: Iterable[np.ndarray], samples: int, sample_rate: int) -> Iterator[np.ndarray]:
        """Features (C, n)."""
        wanted = self.computed_samples(samples, sample_rate)
        stream = match_length(resample_blocks(mix_to_mono(blocks), sample_rate, self.encoder.sample_rate), wanted)
        features = self.chunker.process(stream, wanted, self._compute)
        yield from match_length((piece[0] for piece in features), self._frames(samples, sample_rate))

    @torch.inference_mode()
    def _compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        return check_finite(self.features(chunks, valid).float().cpu().numpy())


def assemble(cleaner: Path, vocoder: Path, output: Path) -> None:
    """Write a restorer of a trained cleaner and a vocoder that was not fine-tuned on it, as an export.

    Args:
        cleaner: run, checkpoint or export of stage 1.
        vocoder: run, checkpoint or export of stage 2 (or 3), on the same backbone.
        output: folder to write; appears only when complete.

    Raises:
        ValueError: when one of them holds something else, or the two have different backbones.
    """
    features, restorer = load(cleaner), load(vocoder)
    encoder = features.encoder if isinstance(features, FeatureExtractor) else None
    if not isinstance(encoder, Cleaner):
        raise ValueError(f"{cleaner} holds no cleaner: expected a run of stage 1 (an adapter recipe)")
    if not isinstance(restorer, Restorer):
        raise ValueError(f"{vocoder} holds no vocoder: expected a run of stage 2 or 3")
    there = restorer.encoder if isinstance(restorer.encoder, Backbone) else restorer.encoder.backbone
    if there.fingerprint() != encoder.backbone.fingerprint():
        raise ValueError(f"{cleaner} and {vocoder} have different backbones: the vocoder would not know its features")
    if not there.same_sum(encoder.backbone):
        raise ValueError(
            f"{cleaner} and {vocoder} have different layers or layer_weights: train the vocoder with "
            f"--init_from {cleaner}"
        )
    check_fit(encoder, restorer.generator, restorer.sample_rate)
    specs, _, _ = read_components(vocoder)
    specs["components"] = {**specs["components"], "encoder": read_components(cleaner)[0]["components"]["encoder"]}
    parts = {"encoder": encoder, "generator": restorer.generator}
    write_export(output, specs, parts, f"{cleaner.name} and {vocoder.name}", specs.get("step"))
    print(f"wrote {output}")
