"""`zoo evaluate SYSTEM`: found by its name in the system's commands, exit code, named systems."""

import numpy as np
import pytest

from tests.harness import forked, good
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files

RATE = 22050
VOICES = SyntheticSpeech(RATE, seconds=(0.5, 0.5))


@pytest.fixture
def trees(tmp_path):
    rng = np.random.default_rng(0)
    for index in range(3):
        clean = VOICES.utterance(index)
        for tree, level in (("clean", 0.0), ("degraded", 0.05), ("ours", 0.01), ("theirs", 0.02)):
            noise = rng.standard_normal(len(clean)).astype(np.float32)
            files.write(tmp_path / tree / f"{index}.wav", clean + level * noise, RATE)
    return tmp_path


COMMON = ("evaluate", "miipher", "--clean", "clean", "--degraded", "degraded", "--output", "out")


def test_evaluate(trees):
    named = ("--restored.ours", "ours", "--restored.theirs", "theirs")
    result = good(forked(*COMMON, *named, cwd=trees))
    assert "| ours | 3 |" in result.stdout and "| theirs | 3 |" in result.stdout and "pesq_wb" in result.stdout
    (trees / "ours" / "1.wav").write_bytes(b"RIFF")
    result = forked(*COMMON, "--restored", "ours", cwd=trees)
    assert result.returncode == 1 and "restored/1: AudioFileError" in result.stdout
    assert "restored,failed,AudioFileError" in (trees / "out" / "per_file.csv").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--restored", "nowhere"), "nowhere: no such folder"),
        (("--restored", "ours", "--models.asr_model", "x"), "--models.asr_model and --texts belong together"),
    ],
)
def test_mistakes_are_one_line(trees, options, message):
    result = forked(*COMMON, *options, cwd=trees)
    assert result.returncode in (1, 2) and message in result.stderr and "Traceback" not in result.stderr
