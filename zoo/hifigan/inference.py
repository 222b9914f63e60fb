"""Vocoding arrays, streams and files: copy synthesis from audio and synthesis from mels, in constant memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from zoo.audio.analysis.features import FEATURE_SUFFIXES, load_features, read_frames
from zoo.audio.analysis.mel import LogMel
from zoo.audio.inference import AudioInference, as_audio
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, resample_blocks
from zoo.audio.io.resample import resample_array
from zoo.hifigan.nets.base import Conditioned, WaveformGenerator, check_front_end
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.runs.export import AUDIO_USAGE, FEATURES_USAGE
from zoo.runs.inference.forms import InputField
from zoo.runs.onnx_export import OnnxGraph

CHUNK_FRAMES = 256  # new frames per step (3 s at 22.05 kHz); the context adds 30 or so
_ONNX_SHAPES = ((2, 16), (1, 37), (3, 20))  # (batch, frames)


class Vocoder(AudioInference):
    """A generator with its mel front end.

    Long inputs are computed in windows that overlap by the exact receptive field, so the result equals that of the
    whole input; a generator whose conditioner sees everything is run on the whole. Channels are vocoded one by one.
    Audio is resampled to the model's rate; the output is as long as the resampled input.

    Args:
        generator: mel (or other features) to waveform.
        mel: waveform to mel; its hop and bands must be the generator's. None for a generator of other features, which
            takes them through `from_mel`, `stream` and feature files, not audio.
        sample_rate: of the output in Hz; the mel's when None.
        bandwidth: of EnCodec's codes in kbit/s, one of the front end's; the largest when None.
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
        if mel is not None:
            check_front_end(generator, mel)
        rates = {rate for rate in (sample_rate, None if mel is None else mel.sample_rate) if rate is not None}
        if len(rates) != 1:
            raise ValueError(f"sample_rate and the mel's must be equal, and one of them given; found {sorted(rates)}")
        bandwidths = mel.bandwidths if isinstance(mel, EncodecFeatures) else ()
        if bandwidth is not None and bandwidth not in bandwidths:
            raise ValueError(f"bandwidth {bandwidth} kbit/s: expected one of {bandwidths or 'an EnCodec front end'}")
        self.generator = generator
        self.mel = mel
        self.sample_rate = rates.pop()
        self.bandwidth = bandwidth
        self._number = bandwidths.index(bandwidth or max(bandwidths)) if bandwidths else 0

    @property
    def _conditioned(self) -> WaveformGenerator:
        """The generator at its bandwidth."""
        return Conditioned(self.generator, self._number) if self.generator.conditions else self.generator

    @property
    def front_end(self) -> LogMel | EncodecFeatures:
        """The mel front end; a ValueError where the generator takes other features."""
        if self.mel is None:
            raise ValueError("this vocoder takes features, not audio (it has no mel front end): use from_mel or stream")
        return self.mel

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Vocode the mel of audio (T,) or (C, T), see `as_audio` (copy synthesis).

        Returns audio at the model's rate, float32, as long as the resampled input; same number of dimensions.
        """
        audio = as_audio(audio, sample_rate)
        channels = np.atleast_2d(resample_array(audio, sample_rate, self.sample_rate))
        result = np.concatenate(list(self._copy([channels])), axis=1)
        return result if audio.ndim == 2 else result[0]

    def from_mel(self, mel: np.ndarray) -> np.ndarray:
        """Vocode a natural-log mel made like this model's, or other features where the generator takes those.

        Takes (n_mels, F) or (B, n_mels, F), returns audio (F * hop,) or (B, F * hop) float32.
        """
        mel = np.asarray(mel, dtype=np.float32)
        batch = mel[None] if mel.ndim == 2 else mel
        bands = self.generator.in_channels
        if batch.ndim != 3 or batch.shape[1] != bands or batch.shape[2] == 0:
            raise ValueError(f"expected a mel ({bands}, F) or (B, {bands}, F), found {mel.shape}")
        result = np.concatenate(list(self._synthesize([batch])), axis=1)
        return result[0] if mel.ndim == 2 else result

    def stream(self, frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Vocode a mel that arrives in pieces (n_mels, n) of any length, 256 frames at a time, in constant memory.

        Returns pieces (m,) float32; joined they are `from_mel` of the joined input. ValueError when the generator's
        conditioner depends on the whole input.
        """
        if self.generator.receptive_frames is None:
            name = type(getattr(self.generator, "conditioner", self.generator)).__name__
            raise ValueError(f"{name} depends on the whole input, so its generator cannot stream: use from_mel")
        return (piece[0] for piece in self._synthesize(np.asarray(each, np.float32)[None] for each in frames))

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Vocode an audio file (copy synthesis) or a mel (`.npy` or `.pt`, (n_mels, F)) in constant memory.

        Returns `audio_seconds`, `sample_rate`, `channels`.
        """
        if source.suffix.lower() in FEATURE_SUFFIXES:
            channels, pieces = 1, self._synthesize(self._mel_blocks(source))
        else:
            header = files.info(source)
            channels, blocks = header.channels, files.read_blocks(source, CHUNK_FRAMES * self.generator.hop_length)
            pieces = self._copy(resample_blocks(blocks, header.sample_rate, self.sample_rate))
        samples = 0
        with files.AudioWriter(target, self.sample_rate, channels, files.RESULT_SUBTYPE) as writer:
            for piece in pieces:
                writer.write(piece)
                samples += piece.shape[1]
        return {"audio_seconds": samples / self.sample_rate, "sample_rate": self.sample_rate, "channels": channels}

    def fields(self) -> tuple[InputField, ...]:
        """Return the form's field: a recording where there is a mel front end, else features."""
        features = InputField("input", "Features", "file", allowed=FEATURE_SUFFIXES)
        return super().fields() if self.mel else (features,)

    @property
    def usage(self) -> str:
        """Python lines that vocode a recording, or features where there is no front end."""
        return AUDIO_USAGE if self.mel else FEATURES_USAGE

    def dry_run(self) -> str:
        """Synthesise eight frames of zeros."""
        audio = self.from_mel(np.zeros((self.generator.in_channels, 8), np.float32))
        return f"8 frames to {len(audio)} samples at {self.sample_rate} Hz"

    def onnx_graph(self) -> OnnxGraph:
        """Describe a copy of the generator, without weight norm, as a graph: `frames` (B, C, F) to `audio` (B, 1, T).

        B and F are variable. ValueError when it has no ONNX export.
        """
        if isinstance(self.generator, MagnitudeVocos):
            kind = type(self.generator).__name__
            raise ValueError(f"{kind} has no ONNX export: Griffin-Lim computes on complex numbers, ONNX has none")
        net = copy.deepcopy(self._conditioned).cpu().float().eval().remove_weight_norm_()
        random = torch.Generator().manual_seed(0)
        examples = [(torch.randn(batch, net.in_channels, frames, generator=random),) for batch, frames in _ONNX_SHAPES]
        return OnnxGraph(net, {"frames": {0: "batch", 2: "time"}}, ["audio"], examples)

    def _mel_blocks(self, source: Path) -> Iterator[np.ndarray]:
        """A mel file in pieces (1, n_mels, n)."""
        shape = load_features(source).shape
        if shape[0] != self.generator.in_channels:
            raise ValueError(f"{source}: expected a mel ({self.generator.in_channels}, F), found {tuple(shape)}")
        for start in range(0, shape[1], CHUNK_FRAMES):
            # mapped again for every piece: pages of an open mapping count as memory once touched
            yield read_frames(source, start, start + CHUNK_FRAMES)[None]

    def _synthesize(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Mel pieces (B, n_mels, n) to audio pieces (B, m)."""
        yield from self._windows(blocks, 1, self.generator.receptive_frames, self._from_frames)

    def _copy(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Audio pieces (C, n) at the model's rate to vocoded pieces (C, m) of the same total length."""
        mel, hop = self.front_end, self.generator.hop_length
        samples_in = samples_out = 0

        def pad_to_frames() -> Iterator[np.ndarray]:
            nonlocal samples_in
            for block in blocks:
                samples_in += block.shape[1]
                yield block
            padded = hop * math.ceil(max(samples_in, mel.min_samples) / hop)
            yield np.zeros((len(block), padded - samples_in), np.float32)
            samples_in = max(samples_in, 1)  # so little may resample to nothing

        frames, padding = self.generator.receptive_frames, mel.padding_samples
        context = None if frames is None or padding is None else frames + math.ceil(padding / hop)
        for piece in self._windows(pad_to_frames(), hop, context, self._from_audio):
            # samples beyond the input exist in its last frame only, after the last block
            length = min(piece.shape[1], max(samples_in - samples_out, 0))
            samples_out += length
            if length:
                yield piece[:, :length]

    @torch.inference_mode()
    def _from_frames(self, window: np.ndarray) -> np.ndarray:
        """Frames (B, C, F) to audio (B, F * hop)."""
        return self._conditioned(self._tensor(window))[:, 0].float().cpu().numpy()

    @torch.inference_mode()
    def _from_audio(self, window: np.ndarray) -> np.ndarray:
        """Audio (B, T) of whole frames to as much vocoded audio."""
        audio = self._tensor(window)
        front_end = self.front_end
        frames = front_end(audio, self._number) if isinstance(front_end, EncodecFeatures) else front_end(audio)
        result = self._conditioned(frames)[:, 0, : audio.shape[-1]]  # a centred front end has a frame more
        return result.float().cpu().numpy()

    def _tensor(self, window: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(window)).to(self.device)

    def _windows(
        self,
        blocks: Iterable[np.ndarray],
        hop: int,
        context: int | None,
        compute: Callable[[np.ndarray], np.ndarray],
    ) -> Iterator[np.ndarray]:
        """Compute windows (..., n * hop) of whole frames to audio (B, n * generator hop), with context on each side.

        `hop` is the input samples per frame, 1 for mels; a context of None computes everything in one window.
        """
        if context is None:  # a conditioner may give no whole number of samples per frame
            yield compute(np.concatenate(list(blocks), axis=-1))
            return
        yield from Chunker(CHUNK_FRAMES + 2 * context, 2 * context, hop, fades=False).process_stream(blocks, compute)
