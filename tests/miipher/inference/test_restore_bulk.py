"""`predict` restores folders: done files are left alone, kills leave no halves."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.audio.bad_audio import RATE, TONE, corpus
from tests.miipher.stand_ins import restorer
from zoo.audio.io import files
from zoo.miipher.inference.restorer import Restorer
from zoo.runs.inference.base import Inference
from zoo.runs.inference.predict import list_input_files, predict_files


def predict(source: Path, output: Path, inference: Inference) -> dict[str, Any]:
    results = list_input_files(source, output, inference.input_suffixes, inference.output_suffix)
    return predict_files(inference, results, output, {"checkpoint": "none"})


class Dying(Restorer):
    """Kills its process in the middle of the second chunk of a long file."""

    computed = 0

    def compute(self, chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        self.computed += valid[0] > RATE
        if self.computed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(chunks, valid)


def killed(source: Path, output: Path) -> None:
    model = restorer(chunk_seconds=2.0, overlap_seconds=0.4, batch_size=1)
    model.__class__ = Dying
    predict(source, output, model)


def test_kill_leaves_no_half_file(tmp_path):
    source, output = corpus(tmp_path / "in", 3), tmp_path / "out"
    files.write(source / "long.wav", np.tile(TONE, 12), RATE)
    process = multiprocessing.get_context("spawn").Process(target=killed, args=(source, output))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert sorted(path.name for path in output.glob("*.wav")) == ["000.wav", "001.wav", "002.wav"]
    assert all(files.read(path)[0].any() for path in output.glob("*.wav"))
    summary = predict(source, output, restorer())
    assert (summary["done"], summary["skipped"]) == (1, 3)
    names = ["000.wav", "001.wav", "002.wav", "long.wav", "manifest.jsonl", "settings.json", "summary.json"]
    assert sorted(path.name for path in output.iterdir()) == names
