"""The base class of trained systems, which `zoo.load` returns and `zoo predict` runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from zoo.common.registry import public_name
from zoo.common.reports import replace_non_finite
from zoo.runs.export import CALL_USAGE
from zoo.runs.inference.forms import InputField, Output, Progress
from zoo.runs.onnx_export import OnnxGraph


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call, or the error of its input; a lost device or exhausted memory is raised."""
    try:
        return function(*args)
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except (ValueError, OSError, RuntimeError) as error:
        return error


def table_output(facts: Mapping[str, Any]) -> Output:
    """Return facts on a result as a table of two columns."""
    rows = [[name.replace("_", " "), _format_value(value)] for name, value in replace_non_finite(facts).items()]
    return Output("table", "Facts", data={"columns": ["", ""], "rows": rows})


def _format_value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return ", ".join(str(_format_value(each)) for each in value) if isinstance(value, list) else value


class Inference(ABC):
    """A system ready to use on arrays and files, without state between calls.

    A subclass takes its modules (nets, front ends) as constructor arguments and keeps each under the argument's name.
    It names the suffixes of the files that it reads and writes, lower case with the dot. `with_figures` is whether
    `answer` adds the input and figures to the results.
    """

    input_suffixes: ClassVar[tuple[str, ...]]
    output_suffix: ClassVar[str]
    with_figures: bool = True

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute on arrays; audio systems take `(audio, sample_rate)`, see `zoo.audio.inference`."""

    @abstractmethod
    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Read a file, compute, and write the result atomically; return JSON values for the manifest (`audio_seconds`).

        Raises:
            ValueError, OSError: the content cannot be used, or a file cannot be read or written.
        """

    def more_files(self, source: Path) -> list[Path]:
        """Return the files that an input names and its result depends on; none by default."""
        return []

    def fields(self) -> tuple[InputField, ...]:
        """Return the fields of this system's form; one file by default."""
        return (InputField("input", "File", "file", allowed=tuple(self.input_suffixes)),)

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Compute the results for a form into an empty folder, the most important first; errors as of `process_file`.

        `values` are those of all `fields`, validated by `read_form`.
        """
        target = folder / f"result{self.output_suffix}"
        progress(0.0, "computing")
        facts = self.process_file(values["input"], target)
        return [Output("file", "Result", target.name), table_output(facts)]

    def answer_batch(
        self, requests: Sequence[tuple[Mapping[str, Any], Path]], progress: Progress
    ) -> list[list[Output] | Exception]:
        """Compute several forms, values and folder each: the results of `answer`, or the error of a form's input."""
        return [attempt(self.answer, values, folder, progress) for values, folder in requests]

    def dry_run(self) -> str:
        """Predict once on a generated input; return a line on the result. ValueError: this system has none."""
        raise ValueError(f"{type(self).__name__} has no dry_run")

    def write_example(self, stem: Path) -> Path:
        """Write a small input to `stem` plus a suffix; return its path. ValueError: this system has none."""
        raise ValueError(f"{type(self).__name__} has no write_example")

    @property
    def usage(self) -> str:
        """Python lines that load the system and call it once, for a model card."""
        return CALL_USAGE

    def onnx_graph(self) -> OnnxGraph:
        """Return the nets as one graph for ONNX. ValueError: this system has no ONNX export."""
        raise ValueError(f"{type(self).__name__} has no ONNX export")

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}

    def __repr__(self) -> str:
        """Name the class, its modules with their sizes, and the device."""
        sizes = {name: sum(each.numel() for each in module.parameters()) for name, module in self.modules().items()}
        modules = [f"{name}={type(vars(self)[name]).__name__} ({size:,} parameters)" for name, size in sizes.items()]
        return f"{public_name(type(self))}({', '.join([*modules, f'device={self.device}'])})"

    @property
    def device(self) -> torch.device:
        """The device of the modules; the CPU when they hold no tensor."""
        tensors = (each for module in self.modules().values() for each in (*module.parameters(), *module.buffers()))
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """Move all modules to a device, in place."""
        for module in self.modules().values():
            module.to(device)
        return self

    def eval(self) -> Self:
        """Put all modules into evaluation mode, in place."""
        for module in self.modules().values():
            module.eval()
        return self
