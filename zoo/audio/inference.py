"""Inference of systems that take audio: arrays by one rule, the form's recording, results beside their input."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zoo.audio.analysis.features import write_features
from zoo.audio.analysis.figures import plot_features, plot_spectrogram_difference
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, match_length, mix_to_mono, resample_blocks
from zoo.common.reports import write_figure
from zoo.runs.export import AUDIO_USAGE
from zoo.runs.inference.base import Inference, table_output
from zoo.runs.inference.forms import InputField, Output, Progress

BLOCK_SECONDS = 4  # of a file, read and written at once
MAX_RECORDING_SECONDS = 60.0  # of a recording that is answered at once; longer ones are for `zoo predict`
_EXAMPLE_RATE = 16000  # Hz
_FULL_SCALE = {"int8": (0, 2**7), "uint8": (128, 2**7), "int16": (0, 2**15), "int32": (0, 2**31)}  # centre, scale


def as_audio(audio: Any, sample_rate: float) -> np.ndarray:
    """Check an array of audio (T,) or (C, T), C <= T, by one rule for all systems; returns it as float32.

    Integers (int8, int16, int32, uint8 around 128) are samples at full scale of their type, as sound files hold them.

    Raises:
        ValueError: the type, the shape, a value that is not finite, or a sample rate that is not positive.
    """
    array = np.asarray(audio)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"expected finite audio (T,) or (C, T) with samples, found shape {array.shape}")
    if array.ndim == 2 and array.shape[0] > array.shape[1]:
        raise ValueError(
            f"expected audio (C, T), found shape {array.shape}: {array.shape[0]} channels of {array.shape[1]} samples; "
            "pass audio.T where the channels are the last axis"
        )
    if array.dtype.kind not in "iuf" or (array.dtype.kind != "f" and array.dtype.name not in _FULL_SCALE):
        kinds = ", ".join(_FULL_SCALE)
        raise ValueError(f"expected audio of floats or of {kinds}, found {array.dtype}; convert it to float32, -1 to 1")
    if not sample_rate > 0:
        raise ValueError(f"expected a sample rate in Hz above 0, found {sample_rate}")
    if array.dtype.kind != "f":
        centre, scale = _FULL_SCALE[array.dtype.name]
        return ((array.astype(np.float64) - centre) / scale).astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError("expected finite audio, found NaN or infinite samples")
    return array.astype(np.float32)


class AudioInference(Inference):
    """An `Inference` that is called as `model(audio, sample_rate)`, see `as_audio`, and reads audio files."""

    input_suffixes: ClassVar[tuple[str, ...]] = files.AUDIO_SUFFIXES

    def fields(self) -> tuple[InputField, ...]:
        """One recording."""
        limit = f"at most {MAX_RECORDING_SECONDS:g} seconds; zoo predict takes files of any length and whole folders"
        return (InputField("input", "Recording", "audio", allowed=files.AUDIO_SUFFIXES, help=limit),)

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Process the recording, see `answer_file`."""
        return answer_file(self, values["input"], folder, progress)

    def dry_run(self) -> str:
        """Predict on half a second of a tone."""
        result = self(np.sin(np.arange(_EXAMPLE_RATE // 2, dtype=np.float32) / 10), _EXAMPLE_RATE)
        return f"1 prediction of shape {np.shape(result)}"

    def write_example(self, stem: Path) -> Path:
        """Write one second of a tone."""
        path = stem.with_name(f"{stem.name}.wav")
        files.write(path, 0.1 * np.sin(np.arange(_EXAMPLE_RATE, dtype=np.float32) / 10), _EXAMPLE_RATE)
        return path

    @property
    def usage(self) -> str:
        """Python lines that read a recording and process it."""
        return AUDIO_USAGE


class FeatureLayout(NamedTuple):
    """Features (C, F) of audio, and the type of their files."""

    sample_rate: int  # of the audio in Hz
    hop_length: int  # samples per frame
    channels: int
    dtype: str


class FeatureInference(AudioInference):
    """Base of a net from audio to features on overlapping chunks that are cross-faded; files are `.npy`, (C, F).

    Frame follows frame in a file (Fortran order): a crop of a mapped file is one read.
    """

    output_suffix: ClassVar[str] = ".npy"
    chunker: Chunker  # of the audio at the net's rate

    @property
    @abstractmethod
    def layout(self) -> FeatureLayout:
        """What the net makes of audio at which rate."""

    @abstractmethod
    def compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        """Compute features (N, C, F) of chunks (N, T), of which so many samples are valid."""

    def computed_samples(self, samples: int, sample_rate: int) -> int:
        """Count the samples that a clip is computed as, at the net's rate."""
        return math.ceil(samples * self.layout.sample_rate / sample_rate)

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Compute features (C, F) float32 of an array (T,) or (C, T), its channels mixed; see `as_audio`."""
        audio = np.atleast_2d(as_audio(audio, sample_rate))
        return np.concatenate(list(self._pieces([audio], audio.shape[1], sample_rate)), axis=1)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Write the features of an audio file; ValueError when it is not valid, or a value exceeds the file's type.

        Returns `audio_seconds` and `sample_rate` of the input, `frames`, `dim` and `chunks`.
        """
        header, layout = files.info(source), self.layout
        frames = self._frames(header.samples, header.sample_rate)
        blocks = files.read_blocks(source, BLOCK_SECONDS * header.sample_rate)
        pieces = self._pieces(blocks, header.samples, header.sample_rate)
        write_features(target, (layout.channels, frames), layout.dtype, pieces)
        return {
            "audio_seconds": header.samples / header.sample_rate,
            "sample_rate": header.sample_rate,
            "frames": frames,
            "dim": layout.channels,
            "chunks": len(self.chunker.spans(self.computed_samples(header.samples, header.sample_rate))),
        }

    def _frames(self, samples: int, sample_rate: int) -> int:
        return -(-math.ceil(samples * self.layout.sample_rate / sample_rate) // self.layout.hop_length)

    def _pieces(self, blocks: Iterable[np.ndarray], samples: int, sample_rate: int) -> Iterator[np.ndarray]:
        """Features (C, n)."""
        length = self.computed_samples(samples, sample_rate)
        stream = match_length(resample_blocks(mix_to_mono(blocks), sample_rate, self.layout.sample_rate), length)
        features = self.chunker.process(stream, length, self.compute)
        yield from match_length((piece[0] for piece in features), self._frames(samples, sample_rate))


def answer_file(
    inference: Inference, source: Path, folder: Path, progress: Progress, shown_facts: Sequence[str] = ()
) -> list[Output]:
    """Answer with what `process_file` makes of a file, and a table of those of its facts that are named, or all.

    Where figures are enabled, the input and spectrograms, or a picture of features, go with the result.

    Raises:
        ValueError: the recording is longer than `MAX_RECORDING_SECONDS`, or cannot be used.
    """
    is_audio = source.suffix.lower() in files.AUDIO_SUFFIXES
    if is_audio and (seconds := files.info(source).seconds) > MAX_RECORDING_SECONDS:
        raise ValueError(
            f"the recording has {seconds:.0f} seconds, at most {MAX_RECORDING_SECONDS:g} are answered at once: cut it, "
            "or use zoo predict"
        )
    target = folder / f"result{inference.output_suffix}"
    progress(0.0, "computing")
    facts = inference.process_file(source, target)
    progress(0.9, "drawing")
    facts = {name: facts[name] for name in shown_facts or facts if name in facts}
    return [
        *_result_parts(inference.with_figures, source if is_audio else None, target, facts.get("cutoff_hz")),
        table_output(facts),
    ]


def _result_parts(with_figures: bool, source: Path | None, target: Path, cutoff_hz: float | None) -> list[Output]:
    is_audio = target.suffix in files.AUDIO_SUFFIXES
    if with_figures and is_audio and source is not None:
        files.write(target.parent / "input.wav", *files.read(source))  # as every browser plays it
        parts = [
            Output("audio", "Result", target.name, group="listen"),
            Output("audio", "Input", "input.wav", group="listen"),
        ]
        rate = files.info(target).sample_rate
        before, after = (files.read_mono(path, rate) for path in (source, target))
        figure = plot_spectrogram_difference(before, after, rate, cutoff_hz)
        write_figure(target.parent / "spectrograms.png", figure)
        return [*parts, Output("image", "Spectrograms of input and result, and what is new", "spectrograms.png")]
    if with_figures and target.suffix == ".npy" and (values := np.load(target, mmap_mode="r")).ndim == 2:
        write_figure(target.with_suffix(".png"), plot_features(np.array(values)))
        return [Output("image", "Result", "result.png"), Output("file", "Result as numbers", target.name)]
    return [Output("audio" if is_audio else "file", "Result", target.name)]
