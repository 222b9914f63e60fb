"""What `zoo.load` returns and `zoo predict` runs: a system's parts behind one call, without a Trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from zoo.common.reports import replace_non_finite
from zoo.runs.export import CALL_USAGE, OnnxForm
from zoo.runs.interactive import Field, Part, Report

_figures = ContextVar("figures", default=True)


@contextmanager
def without_figures() -> Iterator[None]:
    """Within it answers hold results alone: no input beside them, no spectrograms."""
    token = _figures.set(False)
    try:
        yield
    finally:
        _figures.reset(token)


def figures_enabled() -> bool:
    """Whether answers hold figures; see `without_figures`."""
    return _figures.get()


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """What a call returns, or the error of what it was given; a lost device and the end of its memory are raised."""
    try:
        return function(*args)
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except (ValueError, OSError, RuntimeError) as error:
        return error


def facts_table(facts: Mapping[str, Any], title: str = "Facts") -> Part:
    """What is known of a result, as a table of two columns."""
    rows = [[name.replace("_", " "), _cell(value)] for name, value in replace_non_finite(facts).items()]
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

        Audio systems take `(audio, sample_rate)`, see `zoo.audio.inference`; they return audio of the same kind.
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
        return (Field("input", "File", "file", suffixes=tuple(self.input_suffixes)),)

    def answer(self, values: Mapping[str, Any], folder: Path, report: Report) -> list[Part]:
        """Compute what a person asked for.

        Args:
            values: of all `fields`, as `interactive.checked` gives them.
            folder: for the files of the answer; it is there and empty.
            report: called now and then with the finished share, 0 to 1, and a message.

        Returns:
            What is to be shown, the most important first.

        Raises:
            ValueError: when what was given cannot be used, in one line.
            OSError: when a file cannot be read or written.
        """
        target = folder / f"result{self.output_suffix}"
        report(0.0, "computing")
        facts = self.process_file(values["input"], target)
        return [Part("file", "Result", target.name), facts_table(facts)]

    def answer_together(
        self, asked: Sequence[tuple[Mapping[str, Any], Path]], report: Report
    ) -> list[list[Part] | Exception]:
        """`answer` for several, each the values and a folder: parts, or the error of one that failed alone.

        One after the other; a system that computes them together defines this, with results that differ from those
        of one by one by rounding only.
        """
        return [attempt(self.answer, values, folder, report) for values, folder in asked]

    def dry_run(self) -> str:
        """Predict once on a made-up input, for `zoo doctor --config`; returns one line on the result.

        Raises:
            ValueError: when this system has none.
        """
        raise ValueError(f"{type(self).__name__} has no dry_run")

    def write_example(self, stem: Path) -> Path:
        """Write a small input that `process_file` reads.

        Args:
            stem: path of the file without its suffix; its folder is made.

        Returns:
            The path with the suffix.

        Raises:
            ValueError: when this system has none.
        """
        raise ValueError(f"{type(self).__name__} has no write_example")

    @property
    def usage(self) -> str:
        """Python lines for a model card that load it and call it once."""
        return CALL_USAGE

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
