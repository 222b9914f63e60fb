"""Inference of conditional flows on sequences: from degraded audio to a clean log-mel, or from features to features."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from zoo.audio.analysis.features import load_features, write_features
from zoo.audio.analysis.figures import plot_mels
from zoo.audio.analysis.griffin_lim import griffin_lim
from zoo.audio.analysis.mel import LogMel
from zoo.audio.inference import AudioInference, answer_file, as_audio, input_part, recording_field
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker, check_finite, match_length, mix_to_mono, resample_blocks
from zoo.common.atomic import write_atomic
from zoo.common.ranges import at_least
from zoo.common.report import write_figure
from zoo.flow.process.guidance import Guidance, velocity_field
from zoo.flow.process.paths import AffinePath, Prediction
from zoo.flow.process.solvers import METHODS, Solver
from zoo.flow.sequence.net import Conditioned, Normaliser, SequenceNet, valid_frames
from zoo.runs.export import AUDIO_USAGE, CALL_USAGE
from zoo.runs.interactive import Field, Part, Report

FEATURE_SUFFIX = ".npy"
BLOCK_FRAMES = 4096  # of features, read at once
BLOCK_SECONDS = 4  # of audio, likewise
EXAMPLE_FRAMES = 32
MOST_STEPS = 100  # of one answer


class SequenceRestorer(AudioInference):
    """A sequence net with its scale, its path and, for audio, its mel front end.

    Long inputs are restored in overlapping chunks that are cross-faded (`zoo.audio.io.chunking`), in constant memory;
    the noise of a frame is the same in all chunks. Results are `.npy`, (C, F) float32; those of a mel are what the
    vocoder of the same mel takes. Audio is mixed to mono and taken at its own level, zero-padded to whole frames.

    Args:
        net: trained.
        path: that it was trained along.
        normaliser: the scale of its training.
        mel: waveform to log-mel; None for a net of other features, which takes feature files only.
        prediction: what it predicts: "velocity", "x1" or "noise".
        solver: how to integrate; 8 Euler steps by default.
        guidance: null for the conditional field.
        temperature: standard deviation of the noise that the flow starts from; 0 for a deterministic restoration.
        seed: of that noise; the same for every file.
        chunk_frames: length of a chunk; about that of the training crops is what the net knows.
        overlap_frames: shared by neighbouring chunks, at most half a chunk.
        chunk_batch: chunks restored at once.
    """

    input_suffixes: ClassVar[tuple[str, ...]] = (*files.AUDIO_SUFFIXES, FEATURE_SUFFIX)
    output_suffix: ClassVar[str] = FEATURE_SUFFIX

    def __init__(
        self,
        net: SequenceNet,
        path: AffinePath,
        normaliser: Normaliser,
        mel: LogMel | None = None,
        prediction: Prediction = "velocity",
        solver: Solver | None = None,
        guidance: Guidance | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        chunk_frames: int = 1024,
        overlap_frames: int = 128,
        chunk_batch: int = 4,
    ) -> None:
        at_least(0, temperature=temperature)
        sizes, scaled = ((part.channels, part.condition_channels) for part in (net, normaliser))
        if sizes != scaled:
            raise ValueError(f"channels and condition_channels differ: net {sizes}, normaliser {scaled}")
        if mel is not None and sizes != (mel.n_mels, mel.n_mels):
            raise ValueError(f"the mel has {mel.n_mels} bands, net.channels and condition_channels are {sizes}")
        self.net = net
        self.path = path
        self.normaliser = normaliser
        self.mel = mel
        self.prediction: Prediction = prediction
        self.solver = solver or Solver(steps=4)
        self.guidance = guidance
        self.temperature = temperature
        self.seed = seed
        self.chunk_frames = chunk_frames
        self.overlap_frames = overlap_frames
        self.chunk_batch = chunk_batch
        context = self._chunker(1).context
        if mel is not None and context * mel.hop_length < mel.padding_samples:
            least = math.ceil(math.ceil(mel.padding_samples / mel.hop_length) * 8 / 3)
            raise ValueError(
                f"overlap_frames is at least {least} with this mel, whose frames overlap; not {overlap_frames}"
            )

    @property
    def usage(self) -> str:
        """Python lines that restore a recording, or features where that is all it takes."""
        return (
            AUDIO_USAGE
            if self.mel
            else CALL_USAGE.format('numpy.load("features.npy")')
            .replace("import zoo", "import numpy, zoo")
            .replace("model(", "model.from_features(")
        )

    @torch.inference_mode()
    def restore(
        self,
        condition: Tensor,
        lengths: Tensor | None = None,
        noise: Tensor | None = None,
        solver: Solver | None = None,
    ) -> Tensor:
        """Restore a batch as (B, channels, T) float32, zero beyond the lengths; no item depends on the others.

        Args:
            condition: degraded sequences (B, condition_channels, T), float, in their own units.
            lengths: frames of each item (B,), 1 to T; None for T.
            noise: standard normal (B, channels, T); needed unless the temperature is 0.
            solver: in the place of the own one.
        """
        if condition.device.type == "cpu":  # a device is not asked for every batch
            self._check_fitted()
        batch, _, frames = condition.shape
        start = condition.new_zeros(batch, self.net.channels, frames)
        if self.temperature:
            if noise is None:
                raise ValueError(f"noise is needed at temperature {self.temperature}")
            start = self.temperature * noise
        outside = None if lengths is None else ~valid_frames(lengths, frames)[:, None]
        if outside is not None:  # the field is zero there, so that it stays
            start = start.masked_fill(outside, 0)
        net = Conditioned(self.net, self.normaliser.normalise_condition(condition), lengths)
        label = torch.ones(batch, dtype=torch.int64, device=condition.device)
        field = velocity_field(net, self.path, label, self.guidance, self.prediction)
        result = self.normaliser.restore((solver or self.solver).solve(field, start).x.float())
        return result if outside is None else result.masked_fill(outside, 0)

    def __call__(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Restore audio (T,) or (C, T), its channels mixed, as a log-mel (n_mels, F) float32; see `as_audio`."""
        audio = np.atleast_2d(as_audio(audio, sample_rate))
        frames = self._frames(audio.shape[1], sample_rate)
        return self._joined(self._audio_rows([audio], frames, sample_rate), frames, self.mel)

    def from_features(self, features: np.ndarray) -> np.ndarray:
        """Restore features (condition_channels, F), or a log-mel made like this model's, as (channels, F) float32."""
        features = np.asarray(features)
        if features.ndim != 2 or len(features) != self.net.condition_channels or features.shape[1] == 0:
            raise ValueError(f"expected features ({self.net.condition_channels}, F), found {features.shape}")
        return self._joined([features.T], features.shape[1], None)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Restore an audio or a feature file as `.npy` (channels, F) float32, frame after frame (Fortran order).

        Returns:
            `frames`, `channels`, and of audio `audio_seconds` and `sample_rate` of the input.
        """
        facts: dict[str, Any] = {}
        mel = None
        if source.suffix.lower() == FEATURE_SUFFIX:
            frames = self._open(source).shape[1]
            rows = self._feature_rows(source, frames)
        else:
            header = files.info(source)
            facts = {"audio_seconds": header.samples / header.sample_rate, "sample_rate": header.sample_rate}
            frames = self._frames(header.samples, header.sample_rate)
            blocks = files.read_blocks(source, BLOCK_SECONDS * header.sample_rate)
            rows, mel = self._audio_rows(blocks, frames, header.sample_rate), self.mel
        write_features(target, (self.net.channels, frames), "<f4", self._pieces(rows, frames, mel))
        return {**facts, "frames": frames, "channels": self.net.channels}

    def dry_run(self) -> str:
        """Restore a short input."""
        if self.mel is not None:
            return super().dry_run()
        result = self.from_features(np.zeros((self.net.condition_channels, EXAMPLE_FRAMES), np.float32))
        return f"1 prediction of shape {result.shape}"

    def write_example(self, stem: Path) -> Path:
        """Write a tone where there is a mel front end, else features that are noise."""
        if self.mel is not None:
            return super().write_example(stem)
        path = stem.with_name(f"{stem.name}{FEATURE_SUFFIX}")
        features = np.random.default_rng(0).standard_normal((self.net.condition_channels, EXAMPLE_FRAMES))
        write_atomic(path, lambda file: np.save(file, features.astype(np.float32)))
        return path

    def fields(self) -> tuple[Field, ...]:
        """A recording, or features where there is no mel, and how to integrate."""
        given = recording_field() if self.mel else Field("input", "Features", "file", suffixes=(FEATURE_SUFFIX,))
        drawn = "of the noise that the flow starts from; 0 gives the same for every seed"
        chosen = [
            Field("steps", "Steps", "int", min(self.solver.steps, MOST_STEPS), 1, MOST_STEPS),
            Field("method", "Solver", "choice", self.solver.method, choices=METHODS, advanced=True),
            Field("temperature", "Temperature", "float", self.temperature, 0, 2, help=drawn),
            Field("seed", "Seed", "int", self.seed, 0, 2**31),
        ]
        if self.guidance is not None:
            chosen.append(Field("guidance", "Guidance", "float", self.guidance.scale, 0, 20))
        return (given, *chosen)

    def answer(self, values: Mapping[str, Any], folder: Path, report: Report) -> list[Part]:
        """Restore a recording as a log-mel, heard through the Griffin-Lim algorithm; or features as features."""
        changed = copy.copy(self)
        changed.solver = self.solver.using(values["method"], values["steps"])
        changed.temperature, changed.seed = values["temperature"], values["seed"]
        if self.guidance is not None:
            changed.guidance = copy.copy(self.guidance)
            changed.guidance.scale = values["guidance"]
        parts = answer_file(changed, values["input"], folder, report)
        return parts if self.mel is None else [*self._heard(values["input"], folder, report), *parts]

    def _heard(self, source: Path, folder: Path, report: Report) -> list[Part]:
        """Input and result as audio of their log-mels, and the mels."""
        assert self.mel is not None
        report(0.95, "making audio of the log-mels")
        audio = torch.from_numpy(files.read_mono(source, self.mel.sample_rate)).to(self.device)
        with torch.inference_mode():
            before = self.mel(audio[None])
            after = torch.from_numpy(np.load(folder / "result.npy")).to(before)[None, :, : before.shape[2]]
            for name, mel in (("input_mel", before), ("result", after)):
                waveform = griffin_lim(mel, self.mel)[0]
                files.write(folder / f"{name}.wav", waveform.cpu().numpy(), self.mel.sample_rate)
        write_figure(folder / "result.png", plot_mels(before[0], after[0], ("input", "result")))
        return [
            Part("audio", "Result, by Griffin-Lim", "result.wav", beside="listen"),
            Part("audio", "Input, by Griffin-Lim", "input_mel.wav", beside="listen"),
            input_part(source, folder),
        ]

    def _check_fitted(self) -> None:
        if not self.normaliser.is_fitted:
            raise ValueError("the normaliser has no statistics: a training sets them, a checkpoint brings them")

    def _chunker(self, values: int) -> Chunker:
        """Chunks of frames that are so many values each."""
        return Chunker(self.chunk_frames, self.overlap_frames, values, self.chunk_batch)

    def _frames(self, samples: int, sample_rate: int) -> int:
        """Frames of so many samples of audio."""
        if self.mel is None:
            raise ValueError("this restorer takes features (.npy), not audio: it has no mel front end")
        return math.ceil(math.ceil(samples * self.mel.sample_rate / sample_rate) / self.mel.hop_length)

    def _audio_rows(self, blocks: Iterable[np.ndarray], frames: int, sample_rate: int) -> Iterator[np.ndarray]:
        """Frames (n, hop_length) of audio blocks (C, n)."""
        assert self.mel is not None  # _frames has looked
        hop = self.mel.hop_length
        rest = np.zeros(0, np.float32)
        for piece in match_length(
            resample_blocks(mix_to_mono(blocks), sample_rate, self.mel.sample_rate), frames * hop
        ):
            rest = np.concatenate([rest, piece[0]])
            whole = len(rest) // hop * hop
            yield rest[:whole].reshape(-1, hop)
            rest = rest[whole:]

    def _feature_rows(self, source: Path, frames: int) -> Iterator[np.ndarray]:
        """Frames (n, condition_channels) of a feature file."""
        for start in range(0, frames, BLOCK_FRAMES):
            # mapped anew for every piece: pages of a mapping that stays open count as memory once touched
            yield np.array(self._open(source)[:, start : start + BLOCK_FRAMES].T, dtype=np.float32)

    def _open(self, source: Path) -> np.ndarray:
        features = load_features(source)
        if len(features) != self.net.condition_channels:
            raise ValueError(f"{source}: expected features ({self.net.condition_channels}, F), found {features.shape}")
        return features

    def _joined(self, rows: Iterable[np.ndarray], frames: int, mel: LogMel | None) -> np.ndarray:
        return np.concatenate(list(self._pieces(rows, frames, mel)), axis=1)

    def _pieces(self, rows: Iterable[np.ndarray], frames: int, mel: LogMel | None) -> Iterator[np.ndarray]:
        """Restore a stream of pieces (n, values), samples of audio or features, as pieces (channels, n) float32.

        A frame travels through the chunks as one unit: what it is made of and, behind that, its noise. A mel turns the
        rows into the condition; without one they are it.
        """
        self._check_fitted()
        values = self.net.condition_channels if mel is None else mel.hop_length
        noise_values = self.net.channels if self.temperature else 0
        rng = np.random.default_rng(self.seed)

        def stream() -> Iterator[np.ndarray]:
            for block in rows:
                noise = rng.standard_normal((len(block), noise_values), dtype=np.float32)
                yield np.concatenate([block, noise], axis=1, dtype=np.float32).reshape(1, -1)

        def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
            units = torch.from_numpy(np.ascontiguousarray(chunks)).to(self.device)
            units = units.unflatten(1, (-1, values + noise_values))
            content, noise = units[..., :values], units[..., values:].transpose(1, 2)
            condition = content.transpose(1, 2) if mel is None else mel(content.flatten(1))[..., : units.shape[1]]
            return check_finite(self.restore(condition, noise=noise).cpu().numpy())

        chunker = self._chunker(values + noise_values)
        for piece in chunker.process(stream(), frames * chunker.unit_samples, compute):
            yield piece[0]
