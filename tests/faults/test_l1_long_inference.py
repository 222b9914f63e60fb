"""L1: long files are vocoded in flat memory, to the exact length, without seams."""

from pathlib import Path

import numpy as np
import pytest

from scripts.bench.tools import peak_memory
from zoo.audio.analysis.mel import LogMel
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.hifigan import inference
from zoo.hifigan.nets.generator import Generator

RATE = 22050


def build() -> inference.Vocoder:
    generator = Generator(
        40, 16, (8, 8, 4), (16, 16, 8), "2", resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 2),)
    )
    return inference.Vocoder(generator, LogMel(RATE, n_mels=40))


def process(source: Path, target: Path) -> None:
    build().process_file(source, target)


def write(path: Path, seconds: float) -> int:
    speech = SyntheticSpeech(RATE).utterance(0)
    samples = round(seconds * RATE)
    with files.AudioWriter(path, RATE, 1) as writer:
        for start in range(0, samples, len(speech)):
            writer.write(speech[: samples - start])
    return samples


def test_chunks_join_without_seams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = write(tmp_path / "in.wav", 5.01)
    model = build()
    full = model(files.read_mono(tmp_path / "in.wav"), RATE)
    monkeypatch.setattr(inference, "CHUNK_FRAMES", 32)
    pieces = model(files.read_mono(tmp_path / "in.wav"), RATE)
    model.process_file(tmp_path / "in.wav", tmp_path / "out.wav")
    assert len(full) == files.info(tmp_path / "out.wav").samples == samples
    np.testing.assert_allclose(pieces, full, atol=1e-6)
    np.testing.assert_allclose(files.read_mono(tmp_path / "out.wav"), full, atol=1 / 2**15)


@pytest.mark.slow
def test_an_hour_takes_no_more_memory_than_a_minute(tmp_path: Path) -> None:
    peaks = {}
    for minutes in (1, 60):
        samples = write(tmp_path / "in.wav", 60 * minutes)
        _, peaks[minutes] = peak_memory(process, tmp_path / "in.wav", tmp_path / "out.wav")
        assert files.info(tmp_path / "out.wav").samples == samples
    assert peaks[60] <= 1.3 * peaks[1]
