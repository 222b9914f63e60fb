"""Files computed together: equal to one by one, in batches that the calls alone decide."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.hifigan.inference.test_vocoder import build
from tests.miipher.parts import backbone
from zoo.audio.io import files
from zoo.audio.io.chunking import Chunker
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.inference.restore import Restorer
from zoo.runs.bulk import BulkRun, plan
from zoo.runs.jobs.together import own_seconds, together


def test_chunks_of_one_length_meet_and_errors_stay_with_their_call():
    seen = []

    def compute(rows, valid):
        if np.isnan(rows).any():
            raise ValueError("a bad row")
        seen.append(len(rows))
        return 2 * rows

    def call(samples, bad=False):
        signal = np.full((1, samples), np.nan if bad else samples, np.float32)
        try:
            pieces = list(Chunker(4, 0, 1, batch=1).run([signal], samples, compute))
        except ValueError as error:
            return str(error)
        return np.concatenate(pieces, 1)[0]

    calls = [lambda n=n, bad=n == 5: call(n, bad) for n in (8, 12, 5, 3, 3, 20)]
    found = together(calls, 3)
    assert found[2] == "a bad row"
    for result, length in zip(found[:2] + found[3:], (8, 12, 3, 3, 20), strict=True):
        np.testing.assert_array_equal(result, np.full(length, 2.0 * length))
    order, seen[:] = list(seen), []
    together(calls, 3)
    assert seen == order and max(order) > 1 and max(order) <= 3


def test_what_ends_the_run_ends_the_others():
    left = []

    def compute(rows):
        return rows

    def patient():
        try:
            list(Chunker(2, 0, 1, fades=False).follow([np.ones((1, 9))], compute))
        finally:
            left.append(True)

    def full():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        together([patient, full, patient], 2)
    assert left == [True]
    assert together([], 2) == [] and own_seconds() > 0
    with pytest.raises(ValueError, match="most"):
        together([], 0)


def test_recordings_of_different_lengths_are_restored_as_alone(tmp_path: Path):
    """An encoder that takes lengths gets them padded; the generator hears no padding."""
    random, sizes = np.random.default_rng(1), []
    torch.manual_seed(3)
    generator = Generator(32, 16, (8, 5, 4, 2), (16, 11, 8, 4), "1", (3,), ((1, 3),)).eval()
    restorer = Restorer(backbone().eval(), generator, 16000, overlap_seconds=4.0)
    forward = restorer.encoder.forward
    restorer.encoder.forward = lambda audio, *rest: (sizes.append(len(audio)), forward(audio, *rest))[1]  # type: ignore[method-assign]
    for number, seconds in enumerate((1.0, 1.11, 0.93, 2.5, 0.1)):
        files.write(tmp_path / f"{number}.wav", random.normal(0, 0.1, (1, int(16000 * seconds))), 16000)
    found = {}
    for name, most in (("alone", 1), ("together", 4)):
        sizes.clear()
        (tmp_path / name).mkdir()
        calls = [
            partial(restorer.process_file, path, tmp_path / name / path.name) for path in sorted(tmp_path.glob("*.wav"))
        ]
        together(calls, most)
        found[name] = list(sizes)
    assert found == {"alone": [1] * 5, "together": [3, 1, 1]}
    for path in tmp_path.glob("*.wav"):
        one, other = (files.read(tmp_path / name / path.name)[0] for name in found)
        assert one.shape == other.shape and np.abs(one - other).max() <= 1e-4


@pytest.mark.parametrize("tar", [None, 3])
def test_a_folder_vocoded_together_is_that_of_one_by_one(tmp_path: Path, tar):
    vocoder, random = build(), np.random.default_rng(0)
    seconds = (0.3, 9.0, 4.1, 0.3, 6.3, 5.0)
    for number, each in enumerate(seconds):
        audio = random.normal(0, 0.1, (1 + number % 2, int(each * vocoder.sample_rate))).astype(np.float32)
        files.write(tmp_path / "in" / f"{number}.wav", audio, vocoder.sample_rate)
    (tmp_path / "in" / "torn.wav").write_bytes(b"RIFF nothing")
    rows = {}
    for name, most in (("alone", 1), ("three", 3)):
        jobs = plan(tmp_path / "in", tmp_path / name, vocoder.input_suffixes, vocoder.output_suffix)
        run = BulkRun(tmp_path / name, tar=tar)
        run.begin(jobs)
        found = together([partial(run.process, vocoder, job) for job in jobs], most)
        summary = run.finish()
        assert summary["done"] == 6 and summary["failed"] == 1
        rows[name] = [{key: row[key] for key in row.keys() - {"seconds"}} for row in found]
    assert json.dumps(rows["alone"], sort_keys=True) == json.dumps(rows["three"], sort_keys=True)
    if tar is None:
        for number in range(len(seconds)):
            one, other = (files.read(tmp_path / name / f"{number}.wav")[0] for name in rows)
            assert np.abs(one - other).max() <= 2**-15  # a step of 16 bits, where rounding decides
