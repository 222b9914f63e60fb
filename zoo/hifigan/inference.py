"""Vocoding arrays, streams and files: copy synthesis from audio and synthesis from mels, in constant memory."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from zoo.audio.analysis.features import FEATURE_SUFFIXES, load_features
from zoo.audio.analysis.mel import LogMel
from zoo.audio.inference import AudioInference, as_audio
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, resample_blocks
from zoo.audio.io.resample import resample_array
from zoo.hifigan.nets.base import Conditioned, WaveformGenerator
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.runs.export import AUDIO_USAGE, FEATURES_USAGE
from zoo.runs.inference.forms import InputField
from zoo.runs.onnx_export import OnnxGraph, write_onnx

CHUNK_FRAMES = 256  # new frames per step (3 s at 22.05 kHz); the context adds 30 or so
_ONNX_SHAPES = ((2, 16), (1, 37), (3, 20))  # (batch, frames)


class Vocoder(AudioInference):
    """A generator with its mel front end.

    Long inputs are computed in windows of one size that overlap by the exact receptive field, so the result equals
    that of the whole input; a generator whose conditioner sees everything is run on the whole.

    Channels are vocoded one by one: stereo stays stereo. Audio of another sample rate is resampled to the model's,
    which the output keeps; its length is that of the resampled input, for which the end is zero-padded to whole
    frames and cut again.

    Args:
        generator: mel (or other features) to waveform.
        mel: waveform to mel; its hop and bands must be the generator's. None for a generator of other features, which
            takes them through `from_mel`, `stream` and feature files, not audio.
        sample_rate: of the output in Hz; the mel's when None.
        bandwidth: with EnCodec's codes: which of the front end's bandwidths, in kbit/s; the largest when None.

    Raises:
        ValueError: when hop, bands or sample rate differ, or the sample rate is not given at all.
    """

    input_suffixes: ClassVar[tuple[str, ...]] = (*files.AUDIO_SUFFIXES, *FEATURE_SUFFIXES)
    output_suffix: ClassVar[str] = ".wav"

    def __init__(
        self,
        generator: WaveformGenerator,
        mel: LogMel | EncodecFeatures | None = None,
        sample_rate: int | None = None,
        bandwidth: float | None = None,
    ) -> None:
        if mel is not None and (mel.hop_length, mel.n_mels) != (generator.hop_length, generator.in_channels):
            raise ValueError(
                f"the generator makes {generator.hop_length} samples from {generator.in_channels} channels per frame, "
                f"the mel has hop {mel.hop_length} and {mel.n_mels} bands: they must be equal"
            )
        rates = {rate for rate in (sample_rate, None if mel is None else mel.sample_rate) if rate is not None}
        if len(rates) != 1:
            raise ValueError(f"sample_rate and the mel's must be equal, and one of them given; found {sorted(rates)}")
        self.generator = generator
        self.mel = mel
        self.sample_rate = rates.pop()
        known = mel.bandwidths if isinstance(mel, EncodecFeatures) else ()
        if (generator.conditions or 0) != len(known) and mel is not None:
            raise ValueError(
                f"the generator has {generator.conditions} conditions, the front end {len(known)} bandwidths"
            )
        if bandwidth is not None and bandwidth not in known:
            raise ValueError(
                f"bandwidth {bandwidth} kbit/s: {f'expected one of {known}' if known else 'takes no codes'}"
            )
        self.bandwidth = bandwidth
        self._number = known.index(max(known) if bandwidth is None else bandwidth) if known else 0

    @property
    def _synthesiser(self) -> WaveformGenerator:
        """The generator at its bandwidth."""
        return Conditioned(self.generator, self._number) if self.generator.conditions else self.generator

    @property
    def front_end(self) -> LogMel | EncodecFeatures:
        """The mel front end; refused where the generator takes other features."""
        if self.mel is None:
            raise ValueError("this vocoder takes features, not audio (it has no mel front end): use from_mel or stream")
        return self.mel

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Vocode the mel of audio (T,) or (C, T), see `as_audio` (copy synthesis).

        Returns:
            Audio at the model's rate, float32, as long as the resampled input; same number of dimensions.
        """
        audio = as_audio(audio, sample_rate)
        channels = np.atleast_2d(resample_array(audio, sample_rate, self.sample_rate))
        result = np.concatenate(list(self._copy([channels])), axis=1)
        return result if audio.ndim == 2 else result[0]

    def from_mel(self, mel: np.ndarray) -> np.ndarray:
        """Vocode a natural-log mel made like this model's, or other features where the generator takes those.

        Args:
            mel: (n_mels, F) or (B, n_mels, F) float32.

        Returns:
            Audio (F * hop,) or (B, F * hop) float32.
        """
        mel = np.asarray(mel, dtype=np.float32)
        batch = mel[None] if mel.ndim == 2 else mel
        bands = self.generator.in_channels
        if batch.ndim != 3 or batch.shape[1] != bands or batch.shape[2] == 0:
            raise ValueError(f"expected a mel ({bands}, F) or (B, {bands}, F), found {mel.shape}")
        result = np.concatenate(list(self._synthesise([batch])), axis=1)
        return result[0] if mel.ndim == 2 else result

    def stream(self, frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Vocode a mel that arrives in pieces (n_mels, n), 256 frames at a time, in constant memory.

        Args:
            frames: the pieces, of any length.

        Returns:
            Pieces (m,) float32 of the audio; joined they are `from_mel` of the joined input.

        Raises:
            ValueError: when the generator's conditioner depends on the whole input.
        """
        if self.generator.receptive_frames is None:
            name = type(getattr(self.generator, "conditioner", self.generator)).__name__
            raise ValueError(f"{name} depends on the whole input, so its generator cannot stream: use from_mel")
        return (piece[0] for piece in self._synthesise(np.asarray(each, np.float32)[None] for each in frames))

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Vocode an audio file (copy synthesis) or a mel (`.npy` or `.pt`, (n_mels, F)) in constant memory.

        Returns:
            `audio_seconds`, `sample_rate`, `channels`.
        """
        if source.suffix.lower() in FEATURE_SUFFIXES:
            channels, pieces = 1, self._synthesise(self._mel_blocks(source))
        else:
            header = files.info(source)
            channels, blocks = header.channels, files.read_blocks(source, CHUNK_FRAMES * self.generator.hop_length)
            pieces = self._copy(resample_blocks(blocks, header.sample_rate, self.sample_rate))
        samples = 0
        with files.AudioWriter(target, self.sample_rate, channels) as writer:
            for piece in pieces:
                writer.write(piece)
                samples += piece.shape[1]
        return {"audio_seconds": samples / self.sample_rate, "sample_rate": self.sample_rate, "channels": channels}

    def fields(self) -> tuple[InputField, ...]:
        """A recording where there is a mel front end, else features."""
        suffixes = FEATURE_SUFFIXES
        return super().fields() if self.mel else (InputField("input", "Features", "file", allowed=suffixes),)

    @property
    def usage(self) -> str:
        """Python lines that vocode a recording, or features where that is all it takes."""
        return AUDIO_USAGE if self.mel else FEATURES_USAGE

    def dry_run(self) -> str:
        """Synthesise eight frames of zeros."""
        audio = self.from_mel(np.zeros((self.generator.in_channels, 8), np.float32))
        return f"8 frames to {len(audio)} samples at {self.sample_rate} Hz"

    def onnx_graph(self) -> OnnxGraph:
        """Return the generator, from frames to audio; see `generator_graph`."""
        return generator_graph(self._synthesiser)

    def _mel_blocks(self, source: Path) -> Iterator[np.ndarray]:
        """A mel file in pieces (1, n_mels, n)."""
        shape = load_features(source).shape
        if shape[0] != self.generator.in_channels:
            raise ValueError(f"{source}: expected a mel ({self.generator.in_channels}, F), found {tuple(shape)}")
        for start in range(0, shape[1], CHUNK_FRAMES):
            # mapped anew for every piece: pages of a mapping that stays open count as memory once touched
            yield np.array(load_features(source)[:, start : start + CHUNK_FRAMES], dtype=np.float32)[None]

    def _synthesise(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Mel pieces (B, n_mels, n) to audio pieces (B, m)."""
        yield from self._windows(blocks, 1, self.generator.receptive_frames, self._from_frames)

    def _copy(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Audio pieces (C, n) at the model's rate to vocoded pieces (C, m) of the same total length."""
        mel, hop = self.front_end, self.generator.hop_length
        given = made = 0

        def whole_frames() -> Iterator[np.ndarray]:
            nonlocal given
            for block in blocks:
                given += block.shape[1]
                yield block
            wanted = hop * math.ceil(max(given, mel.min_samples) / hop)
            yield np.zeros((len(block), wanted - given), np.float32)
            given = max(given, 1)  # so little may resample to nothing

        frames = self.generator.receptive_frames
        reach = mel.padding_samples
        context = None if frames is None or reach is None else frames + math.ceil(reach / hop)
        for piece in self._windows(whole_frames(), hop, context, self._from_audio):
            # samples beyond the input exist in its last frame only, when all of the input has been given
            length = min(piece.shape[1], max(given - made, 0))
            made += length
            if length:
                yield piece[:, :length]

    @torch.inference_mode()
    def _from_frames(self, window: np.ndarray) -> np.ndarray:
        """Frames (B, C, F) to audio (B, F * hop)."""
        return self._synthesiser(self._tensor(window))[:, 0].float().cpu().numpy()

    @torch.inference_mode()
    def _from_audio(self, window: np.ndarray) -> np.ndarray:
        """Audio (B, T) of whole frames to as much vocoded audio."""
        audio = self._tensor(window)
        front_end = self.front_end
        frames = front_end(audio, self._number) if isinstance(front_end, EncodecFeatures) else front_end(audio)
        made = self._synthesiser(frames)[:, 0, : audio.shape[-1]]  # a centred front end has a frame more
        return made.float().cpu().numpy()

    def _tensor(self, window: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(window)).to(self.device)

    def _windows(
        self,
        blocks: Iterable[np.ndarray],
        hop: int,
        context: int | None,
        compute: Callable[[np.ndarray], np.ndarray],
    ) -> Iterator[np.ndarray]:
        """Compute on windows of equal size whose inner edges lie in the overlap; see `Chunker.follow`.

        Args:
            hop: input samples per frame (1 for mels); the input is whole frames in total.
            context: frames on each side that a frame's output depends on; None computes everything in one window.
            compute: window (..., n * hop) to audio (B, n * generator hop).
        """
        overlap = 0 if context is None else 2 * context
        window = sys.maxsize if context is None else CHUNK_FRAMES + overlap
        yield from Chunker(window, overlap, hop, fades=False).process_stream(blocks, compute)


def generator_graph(generator: WaveformGenerator) -> OnnxGraph:
    """Describe a generator without weight norm as a graph: `frames` (B, C, F) to `audio` (B, 1, T), any B and F.

    Args:
        generator: left as it is; a fused copy is taken.

    Raises:
        ValueError: when the generator has no ONNX export.
    """
    if isinstance(generator, MagnitudeVocos):
        kind = type(generator).__name__
        raise ValueError(f"{kind} has no ONNX export: Griffin-Lim computes on complex numbers, ONNX has none")
    fused = copy.deepcopy(generator).cpu().float().eval().remove_weight_norm_()
    random = torch.Generator().manual_seed(0)
    examples = [(torch.randn(batch, fused.in_channels, frames, generator=random),) for batch, frames in _ONNX_SHAPES]
    return OnnxGraph(fused, {"frames": {0: "batch", 2: "time"}}, ["audio"], examples)


def export_onnx(generator: WaveformGenerator, path: Path | str) -> float:
    """Write a generator as an ONNX file; see `generator_graph` and `zoo.runs.onnx_export.write_onnx`."""
    return write_onnx(generator_graph(generator), Path(path))
