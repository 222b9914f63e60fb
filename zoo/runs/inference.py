"""What `zoo.load` returns and `zoo predict` runs: a system's parts behind one call, without a Trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from zoo.audio.io import files
from zoo.common.report import plain, write_figure
from zoo.runs.export import AUDIO_USAGE, OnnxForm
from zoo.runs.interactive import Field, Part, Report

_FULL_SCALE = {"int8": (0, 2**7), "uint8": (128, 2**7), "int16": (0, 2**15), "int32": (0, 2**31)}


def as_audio(audio: Any, sample_rate: float) -> np.ndarray:
    """Check what a caller gives for audio, by one rule for all systems.

    Integers are samples at full scale of their type, as sound files hold them: int16 is divided by 2**15, int32 by
    2**31, int8 by 2**7, and uint8 is centred at 128. Floats are taken as they are. A signal has at most as many
    channels as samples: arrays as soundfile reads them, (T, C), are refused and not guessed at.

    Args:
        audio: (T,) or (C, T), float or one of these integers.

    Returns:
        (T,) or (C, T) float32, T >= 1.

    Raises:
        ValueError: the type, the shape, a value that is not finite, or a sample rate that is not positive.
    """
    given = np.asarray(audio)
    if given.ndim not in (1, 2) or given.size == 0:
        raise ValueError(f"expected finite audio (T,) or (C, T) with samples, found shape {given.shape}")
    if given.ndim == 2 and given.shape[0] > given.shape[1]:
        raise ValueError(
            f"expected audio (C, T), found shape {given.shape}: {given.shape[0]} channels of {given.shape[1]} samples; "
            "pass audio.T where the channels are the last axis"
        )
    if given.dtype.kind not in "iuf" or (given.dtype.kind != "f" and given.dtype.name not in _FULL_SCALE):
        raise ValueError(
            f"expected audio of floats or of {', '.join(_FULL_SCALE)}, found {given.dtype}; convert it to float32, "
            "-1 to 1"
        )
    if not sample_rate > 0:
        raise ValueError(f"expected a sample rate in Hz above 0, found {sample_rate}")
    if given.dtype.kind != "f":
        centre, scale = _FULL_SCALE[given.dtype.name]
        return ((given.astype(np.float64) - centre) / scale).astype(np.float32)
    if not np.isfinite(given).all():
        raise ValueError("expected finite audio, found NaN or infinite samples")
    return given.astype(np.float32)


_pictured = ContextVar("pictured", default=True)


@contextmanager
def without_pictures() -> Iterator[None]:
    """Within it answers hold what was computed, not what shows it to people: no input beside it, no spectrograms."""
    before = _pictured.set(False)
    try:
        yield
    finally:
        _pictured.reset(before)


MOST_SECONDS = 60.0  # of a recording that is answered at once; longer ones are for `zoo predict`


def recording_field() -> Field:
    """The field of a system that takes one recording."""
    told = f"at most {MOST_SECONDS:g} seconds; zoo predict takes files of any length and whole folders"
    return Field("input", "Recording", "audio", suffixes=files.AUDIO_SUFFIXES, help=told)


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """What a call returns, or the error of what it was given; a lost device and the end of its memory are raised."""
    try:
        return function(*args)
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except (ValueError, OSError, RuntimeError) as error:
        return error


def answer_file(
    inference: Inference, source: Path, folder: Path, report: Report, facts_shown: Sequence[str] = ()
) -> list[Part]:
    """Answer with what `process_file` makes of a file: beside its input where both are audio, as a picture of features.

    Args:
        facts_shown: which of the facts are; all when there are none.
    """
    _check_length(source)
    target = folder / f"result{inference.output_suffix}"
    report(0.0, "computing")
    facts = inference.process_file(source, target)
    report(0.9, "drawing")
    return _shown_facts(source, target, facts, facts_shown)


def _check_length(source: Path) -> None:
    audio_in = source.suffix.lower() in files.AUDIO_SUFFIXES
    if audio_in and (seconds := files.info(source).seconds) > MOST_SECONDS:
        raise ValueError(
            f"the recording has {seconds:.0f} seconds, at most {MOST_SECONDS:g} are answered at once: cut it, or use "
            "zoo predict"
        )


def _shown_facts(source: Path, target: Path, facts: Mapping[str, Any], facts_shown: Sequence[str]) -> list[Part]:
    facts = {name: facts[name] for name in facts_shown or facts if name in facts}
    audio_in = source.suffix.lower() in files.AUDIO_SUFFIXES
    return [*_shown(source if audio_in else None, target, facts.get("cutoff_hz")), facts_table(facts)]


def _shown(source: Path | None, target: Path, cutoff_hz: float | None) -> list[Part]:
    """A result, and what it was made of."""
    from zoo.audio.analysis.figures import compared_spectra, matrix_figure

    if not _pictured.get():
        return [Part("audio" if target.suffix in files.AUDIO_SUFFIXES else "file", "Result", target.name)]
    if target.suffix in files.AUDIO_SUFFIXES and source is not None:
        parts = [Part("audio", "Result", target.name, beside="listen"), input_part(source, target.parent)]
        rate = files.info(target).sample_rate
        before, after = (files.read_mono(path, rate) for path in (source, target))
        figure = compared_spectra(before, after, rate, cutoff_hz)
        write_figure(target.parent / "spectrograms.png", figure)
        return [*parts, Part("image", "Spectrograms of input and result, and what is new", "spectrograms.png")]
    if target.suffix == ".npy" and (values := np.load(target, mmap_mode="r")).ndim == 2:
        write_figure(target.with_suffix(".png"), matrix_figure(np.array(values)))
        return [Part("image", "Result", "result.png"), Part("file", "Result as numbers", target.name)]
    return [Part("audio" if target.suffix in files.AUDIO_SUFFIXES else "file", "Result", target.name)]


def input_part(source: Path, folder: Path) -> Part:
    """The input beside the result, as a file that every browser plays."""
    files.write(folder / "input.wav", *files.read(source))
    return Part("audio", "Input", "input.wav", beside="listen")


def facts_table(facts: Mapping[str, Any], title: str = "Facts") -> Part:
    """What is known of a result, as a table of two columns."""
    rows = [[name.replace("_", " "), _cell(value)] for name, value in plain(facts).items()]
    return Part("table", title, data={"columns": ["", ""], "rows": rows})


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return ", ".join(str(_cell(each)) for each in value) if isinstance(value, list) else value


class Inference(ABC):
    """A system ready to use on arrays and files.

    A subclass takes its parts (nets, front ends) as constructor arguments, keeps each under the argument's name, and
    defines the call and the file form of it. It holds no state between calls, so one object serves many files.
    """

    input_suffixes: ClassVar[tuple[str, ...]]
    """Suffixes of the files it reads, lower case with the dot."""
    output_suffix: ClassVar[str]
    """Suffix of the files it writes, with the dot."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute on arrays.

        Audio systems take `(audio, sample_rate)`, see `as_audio`; they return audio of the same kind.
        """

    @abstractmethod
    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Read one file, compute, and write the result so that `target` appears only when it is whole.

        Args:
            source: an existing file with one of the input suffixes.
            target: the file to write; its folder exists.

        Returns:
            Facts for the manifest that JSON can hold, such as `audio_seconds`.

        Raises:
            ValueError: when the file's content cannot be used.
            OSError: when it cannot be read or the result cannot be written.
        """

    def fields(self) -> tuple[Field, ...]:
        """What a person may give for one answer: a file of those it reads, unless a system says more."""
        if set(files.AUDIO_SUFFIXES) <= set(self.input_suffixes):
            return (recording_field(),)
        return (Field("input", "File", "file", suffixes=tuple(self.input_suffixes)),)

    def answer(self, values: Mapping[str, Any], folder: Path, report: Report) -> list[Part]:
        """Compute what a person asked for.

        Args:
            values: of all `fields`, as `interactive.checked` gives them.
            folder: for the files of the answer; it is there and empty.
            report: told the share that is done, 0 to 1, and a word on it, now and then.

        Returns:
            What is to be shown, the most important first.

        Raises:
            ValueError: when what was given cannot be used, in one line.
            OSError: when a file cannot be read or written.
        """
        return answer_file(self, values["input"], folder, report)

    def answer_together(
        self, asked: Sequence[tuple[Mapping[str, Any], Path]], report: Report
    ) -> list[list[Part] | Exception]:
        """`answer` for several, each the values and a folder: parts, or the error of one that failed alone.

        One after the other; a system that computes them together defines this, with results that differ from those
        of one by one by rounding only.
        """
        return [attempt(self.answer, values, folder, report) for values, folder in asked]

    def dry_run(self) -> str:
        """Predict once on a made-up input, for `zoo doctor --config`; returns a word on the result."""
        result = self(np.sin(np.arange(8000, dtype=np.float32) / 10), 16000)
        return f"1 prediction of shape {np.shape(result)}"

    def write_example(self, stem: Path) -> Path:
        """Write a small input that `process_file` reads; for audio one second of a tone.

        Args:
            stem: path of the file without its suffix; its folder is made.

        Returns:
            The path with the suffix.
        """
        path = stem.with_name(f"{stem.name}.wav")
        files.write(path, 0.1 * np.sin(np.arange(16000, dtype=np.float32) / 10), 16000)
        return path

    @property
    def usage(self) -> str:
        """Python lines for a model card that load it and call it once."""
        return AUDIO_USAGE

    def onnx_form(self) -> OnnxForm:
        """The nets as ONNX graphs.

        Raises:
            ValueError: when this system has no ONNX form.
        """
        raise ValueError(f"{type(self).__name__} has no ONNX export")

    def parts(self) -> dict[str, nn.Module]:
        """The modules it was built from, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}

    @property
    def device(self) -> torch.device:
        """Where the parts are (the CPU when they hold no tensor)."""
        for part in self.parts().values():
            for tensor in (*part.parameters(), *part.buffers()):
                return tensor.device
        return torch.device("cpu")

    def to(self, device: torch.device | str) -> Self:
        """Move all parts to a device, in place."""
        for part in self.parts().values():
            part.to(device)
        return self

    def eval(self) -> Self:
        """Put all parts into evaluation mode, in place."""
        for part in self.parts().values():
            part.eval()
        return self
