"""Prediction over many files: python -m scripts.bench.bulk real [--quick].

An identity model copies files of a few bytes, so what is measured is what `zoo predict` adds to the model.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.bench.tools import Finding, Settings, command, cost_of, in_folders
from zoo.common.reports import Row
from zoo.runs.inference.base import Inference
from zoo.runs.inference.predict import MANIFEST_NAME, list_input_files, predict_files, read_manifest

REAL = (5_000, 20_000, 200_000)
FILES_IN_FOLDER = 1000


class Identity(Inference):
    """Copies a file; what it writes is renamed into place and not synced."""

    input_suffixes = (".txt",)
    output_suffix = ".out"

    def __init__(self) -> None:
        self.layer = torch.nn.Linear(1, 1)

    def __call__(self, text: bytes) -> bytes:
        """The text."""
        return text

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Copy."""
        temporary = f"{target.parent}/.{target.name}.tmp-{os.getpid()}"
        with open(source, "rb") as read, open(temporary, "wb") as written:
            written.write(read.read())
        os.replace(temporary, target)
        return {}


def names(count: int) -> Iterator[str]:
    """Places of so many utterances, as a corpus would have them."""
    for number in range(count):
        folder = number // FILES_IN_FOLDER
        yield f"speaker{folder % 97:03d}/chapter{folder:05d}/utterance_{number:08d}.txt"


def write_inputs(folder: Path, count: int) -> Path:
    """Small files."""
    for name in names(count):
        path = os.path.join(folder, name)
        if name.endswith("000.txt"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"a few bytes")
    return folder


def predict(inputs: Path, output: Path) -> Row:
    """What `zoo predict` runs, without the command line; returns the summary."""
    model = Identity()
    files = list_input_files(inputs, output, model.input_suffixes, model.output_suffix)
    return predict_files(model, files, output, {"checkpoint": "none"}, show_progress=False)


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Growth of the costs from the smallest size to the largest: 1 where each file costs the same."""
    return math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0])


def real(settings: Settings) -> list[Finding]:
    """Real files: a whole run, and one with nothing left to do."""
    sizes = (100, 300) if settings.quick else REAL
    runs: dict[str, list[float]] = {"whole run": [], "run with nothing to do": []}
    findings = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=settings.folder) as place:
            inputs, output = write_inputs(Path(place) / "in", size), Path(place) / "out"
            for name in runs:
                cost = cost_of(partial(predict, inputs, output))
                runs[name].append(cost.cpu)
                details = {"cpu us a file": 1e6 * cost.cpu / size, "wall us a file": 1e6 * cost.wall / size}
                findings.append(Finding(f"{name}, {size} files", cost.cpu, "CPU-s", details=details))
            rows = read_manifest(output / MANIFEST_NAME)
            if len({row["source"] for row in rows if row["status"] == "done"}) != size:
                raise ValueError(f"{size} files gave {len(rows)} rows")
    for name, costs in runs.items():
        findings.append(Finding(f"{name}: growth exponent", exponent(sizes, costs), "", at_most=1.1))
    return findings


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {each.__name__: each for each in (real,)}

if __name__ == "__main__":
    from zoo.cli.trainer import ZooCLI  # not in the processes whose memory is measured

    command("bulk", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
