"""Restoring speech: arrays and files of any length, rate and number of channels, in constant memory."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch

from zoo.audio.analysis.loudness import LoudnessMeter
from zoo.audio.corpora.corpus import PEAK
from zoo.audio.inference import BLOCK_SECONDS, MAX_RECORDING_SECONDS, answer_file, as_audio
from zoo.audio.io import files
from zoo.audio.io.chunking import (
    check_finite,
    match_length,
    mix_to_mono,
    resample_blocks,
    store_piece,
    stored_pieces,
)
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.miipher.inference.features import ChunkedEncoder, FeatureExtractor
from zoo.miipher.inference.onnx import restoration_graph
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner, Encoder
from zoo.miipher.options import DEFAULT_RESTORE, Loudness, RestoreOptions, Stereo, check_fit
from zoo.runs.components import read_components
from zoo.runs.export import write_export
from zoo.runs.inference.forms import InputField, Output, Progress
from zoo.runs.load import load
from zoo.runs.onnx_export import OnnxGraph

MAX_GAIN = 10.0  # 20 dB; where an input held noise alone, silence would otherwise be raised to its level


class Restorer(ChunkedEncoder):
    """A cleaner (or a plain backbone) and the vocoder on its features.

    Audio is resampled to the encoder's rate, restored in chunks that are cross-faded, and resampled from the vocoder's
    rate to that of the output. n samples give round(n * output rate / input rate), at least one. With nets that see no
    further than 3/8 of the overlap the result is that of the full file. The encoder gets each channel with its peak at
    0.95, as in training. One gain per channel of the result holds for the full file.

    Args:
        encoder: waveforms (B, T) at 16 kHz to features (B, ceil(T / hop), C); its backbone must pad.
        generator: features (B, C, F) to waveforms.
        sample_rate: of the generator in Hz.
        restore: chunks, level and rate of results.

    Source: Miipher-2 (arXiv 2505.04457), section 3; chunks and loudness are ours.
    """

    output_suffix: ClassVar[str] = ".wav"

    def __init__(
        self,
        encoder: Encoder,
        generator: WaveformGenerator,
        sample_rate: int,
        restore: RestoreOptions = DEFAULT_RESTORE,
    ) -> None:
        check_fit(encoder, generator, sample_rate)
        super().__init__(encoder, restore.chunk_seconds, restore.overlap_seconds, restore.batch_size)
        self.generator = generator
        self.sample_rate = sample_rate
        self.restore = restore
        self.output_sample_rate = restore.output_sample_rate or sample_rate
        frames, context = generator.receptive_frames, self.chunker.context
        if frames is not None and frames > context:
            seconds = math.ceil(frames * 8 / 3) * encoder.hop_samples / encoder.sample_rate
            raise ValueError(
                f"overlap_seconds {restore.overlap_seconds} leaves {context} frames of context, the generator sees "
                f"{frames} on each side: take at least {seconds:.2f}"
            )

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Restore an array (T,) or (C, T), see `as_audio`.

        Returns (T',) or (C, T') float32, -1 to 1, at `output_sample_rate`; mixed audio is (1, T') for (C, T).
        """
        audio = as_audio(audio, sample_rate)
        channels = np.atleast_2d(audio)
        run = RestorationRun(self, sample_rate, len(channels), channels.shape[1])
        run.find_levels([channels])
        result = np.concatenate(list(run.pieces([channels])), axis=1)
        result = _scale(result, run.gains())
        return result if audio.ndim == 2 else result[0]

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Restore an audio file.

        Returns `audio_seconds`, `sample_rate` and `channels` of the result, `chunks` per channel, `real_time_factor`
        (seconds of work per second of audio), `peak` of the result, and the `gain` of each channel (a factor).
        """
        started = time.perf_counter()
        header = files.info(source)
        run = RestorationRun(self, header.sample_rate, header.channels, header.samples)
        run.find_levels(files.read_blocks(source, BLOCK_SECONDS * header.sample_rate))
        with tempfile.TemporaryFile(dir=target.parent) as spool:  # the gain is known when all has been restored
            for piece in run.pieces(files.read_blocks(source, BLOCK_SECONDS * header.sample_rate)):
                store_piece(spool, piece)
            gains = run.gains()
            with files.AudioWriter(target, self.output_sample_rate, run.channels, files.RESULT_SUBTYPE) as writer:
                for piece in stored_pieces(spool, run.channels, BLOCK_SECONDS * self.output_sample_rate):
                    writer.write(_scale(piece, gains))
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
        """Return the form's fields: a recording, and options for its channels, level and chunks."""
        channels = "restore each channel alone, or mix them first"
        level = "bring the result to the loudness of the recording, or keep the vocoder's"
        options, longest = self.restore, max(self.restore.chunk_seconds, MAX_RECORDING_SECONDS)
        overlap = (0, longest / 2)
        return (
            *super().fields(),
            InputField("stereo", "Channels", "choice", options.stereo, allowed=get_args(Stereo), help=channels),
            InputField("loudness", "Loudness", "choice", options.loudness, allowed=get_args(Loudness), help=level),
            InputField("chunk_seconds", "Chunk (s)", "float", options.chunk_seconds, (0.5, longest), advanced=True),
            InputField("overlap_seconds", "Overlap (s)", "float", options.overlap_seconds, overlap, advanced=True),
        )

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Restore a recording with the options of a form."""
        options = replace(self.restore, **{name: value for name, value in values.items() if name != "input"})
        restorer = Restorer(self.encoder, self.generator, self.sample_rate, options)
        restorer.with_figures = self.with_figures
        return answer_file(restorer, values["input"], folder, progress)

    @torch.inference_mode()
    def compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Restore chunks (N, T) of whole frames at the encoder's rate, as waveforms (N, T') at the vocoder's."""
        audio = self.generator(self.features(chunks, valid))[:, 0]
        return check_finite(audio.float().cpu().numpy())


class RestorationRun:
    """The stream of one file or array through a restorer, and its measurements."""

    def __init__(self, restorer: Restorer, sample_rate: int, channels: int, samples: int) -> None:
        self.restorer = restorer
        self.source_rate = sample_rate
        self.channels = 1 if restorer.restore.stereo == "mix" else channels
        self.samples_in = restorer.computed_samples(samples, sample_rate)
        self.samples_out = max(round(samples * restorer.output_sample_rate / sample_rate), 1)
        self.chunks = len(restorer.chunker.spans(self.samples_in))
        self.peaks = np.zeros(self.channels)
        self._levels = np.ones(self.channels)
        self._input = LoudnessMeter(restorer.encoder.sample_rate, self.channels)
        self._result = LoudnessMeter(restorer.sample_rate, self.channels)

    def find_levels(self, blocks: Iterable[np.ndarray]) -> None:
        """Find the factors that bring the peak of each channel, at the encoder's rate, to that of the training."""
        stream = resample_blocks(self._channels(blocks), self.source_rate, self.restorer.encoder.sample_rate)
        peaks = np.max([np.abs(piece).max(axis=1, initial=0) for piece in stream], axis=0)
        self._levels = np.where(peaks > 0, PEAK / np.maximum(peaks, np.finfo(np.float32).tiny), 1.0)

    def _channels(self, blocks: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
        return mix_to_mono(blocks) if self.restorer.restore.stereo == "mix" else blocks

    def pieces(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Restore blocks (C, n) of the input as pieces (C, m) of the result, before the gain; after `find_levels`."""
        restorer = self.restorer
        stream = resample_blocks(self._channels(blocks), self.source_rate, restorer.encoder.sample_rate)
        stream = self._input.measure_stream(match_length(stream, self.samples_in))
        stream = (piece * self._levels.astype(np.float32)[:, None] for piece in stream)
        stream = restorer.chunker.process(stream, self.samples_in, restorer.compute)
        stream = resample_blocks(self._result.measure_stream(stream), restorer.sample_rate, restorer.output_sample_rate)
        for piece in match_length(stream, self.samples_out):
            self.peaks = np.maximum(self.peaks, np.abs(piece).max(axis=1))
            yield piece

    def gains(self) -> np.ndarray:
        """Compute the factor (C,) for each channel, once all pieces have passed."""
        gains = np.ones(self.channels)
        if self.restorer.restore.loudness == "input":
            target, result = self._input.loudness(), self._result.loudness()
            for channel in range(self.channels):
                if math.isfinite(result[channel]):
                    gains[channel] = min(10 ** ((target[channel] - result[channel]) / 20), MAX_GAIN)
        return gains / max((gains * self.peaks).max(), 1.0)


def _scale(piece: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Multiply samples (C, n) by the gain (C,) of their channel."""
    return np.clip(piece * gains.astype(np.float32)[:, None], -1.0, 1.0)


def assemble(cleaner: Path, vocoder: Path, output: Path) -> None:
    """Write a restorer of a trained cleaner and a vocoder that was not fine-tuned on it, as an export.

    Args:
        cleaner: run, checkpoint or export of stage 1.
        vocoder: run, checkpoint or export of stage 2 (or 3), on the same backbone.
        output: folder to write; appears only when complete.
    """
    features, restorer = load(cleaner), load(vocoder)
    encoder = features.encoder if isinstance(features, FeatureExtractor) else None
    if not isinstance(encoder, Cleaner):
        raise ValueError(f"{cleaner} holds no cleaner: expected a run of stage 1 (an adapter recipe)")
    if not isinstance(restorer, Restorer):
        raise ValueError(f"{vocoder} holds no vocoder: expected a run of stage 2 or 3")
    backbone = restorer.encoder if isinstance(restorer.encoder, Backbone) else restorer.encoder.backbone
    facts = [(each.fingerprint(), each.front.normalize) for each in (backbone, encoder.backbone)]
    if facts[0] != facts[1]:
        raise ValueError(f"{cleaner} and {vocoder} have different backbones: the vocoder would not know its features")
    check_fit(encoder, restorer.generator, restorer.sample_rate)
    specs, _, _ = read_components(vocoder)
    specs["components"] = {**specs["components"], "encoder": read_components(cleaner)[0]["components"]["encoder"]}
    modules = {"encoder": encoder, "generator": restorer.generator}
    write_export(output, specs, modules, f"{cleaner.name} and {vocoder.name}", specs.get("step"))
    print(f"wrote {output}")
