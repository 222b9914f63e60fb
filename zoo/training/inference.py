"""What `zoo.load` returns and `zoo predict` runs: a system's parts behind one call, without a Trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from zoo.audio import files


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

        Audio systems take `(audio, sample_rate)`: (T,) or (C, T) float32 and Hz; they return audio of the same kind.
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

    def export_onnx(self, path: Path) -> float:
        """Write the net as ONNX.

        Args:
            path: file to write.

        Returns:
            The largest difference between onnxruntime's and torch's output.

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
