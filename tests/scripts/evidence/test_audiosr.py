"""Evidence of AudioSR by its command; trainings and evaluations are stood in for."""

from pathlib import Path

import numpy as np
import pytest

from scripts.evidence import audiosr
from zoo.audio.io import files


def test_clips_are_cut_by_recording_and_by_time(tmp_path: Path) -> None:
    rate = audiosr.SAMPLE_RATE
    for name, seconds in [(f"ljspeech/wavs/a{number}", 5.0) for number in range(5)] + [("noise/b", 15.0)]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        time = np.arange(round(seconds * rate), dtype=np.float32) / 32768 / 8
        files.write(tmp_path / f"{name}.wav", time, rate)
    output = audiosr.lay_out(tmp_path / "mixed", tmp_path)
    train = sorted(path.name for path in (output / "train/high").iterdir())
    assert train == [*(f"noise_b_{n}.wav" for n in range(3)), *(f"speech_a{n}_{m}.wav" for n in (0, 1) for m in (0, 1))]
    pieces = [files.read_mono(output / f"train/high/noise_b_{number}.wav", rate) for number in range(3)]
    assert [len(piece) for piece in pieces] == [3.5 * rate] * 3  # all of the 10.5 s that are not held out
    valid = sorted(f"valid/high/{path.name}" for path in (output / "valid/high").iterdir())
    assert len(valid) == 8 and valid == sorted((output / "valid.txt").read_text().split())
    first = files.read_mono(output / "valid/high/noise_b_0.wav", rate)
    assert len(first) == 1.5 * rate and first[0] == pytest.approx(10.5 * rate / 32768 / 8, abs=1e-4)
    assert audiosr.lay_out(output) == output
    with pytest.raises(FileNotFoundError, match="wavs"):
        audiosr.lay_out(tmp_path / "other", tmp_path / "nothing")
