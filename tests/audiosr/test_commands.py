"""The tools preprocess, splice, cache and compare, called as the command line calls them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.audio.io import files
from zoo.cli import main as cli

RATE = 16000


def write(path: Path, audio: np.ndarray, rate: int = RATE, subtype: str | None = None) -> None:
    files.write(path, audio.astype(np.float32), rate, subtype)


def hiss(samples: int) -> np.ndarray:
    return 0.1 * np.random.default_rng(0).standard_normal(samples)


def test_preprocess_pairs_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in" / "a.wav", hiss(8000))
    write(tmp_path / "in" / "b" / "a.flac", np.stack([hiss(8000)] * 2))
    (tmp_path / "in" / "bad.mp3").write_bytes(b"nothing")
    high, low = tmp_path / "out" / "high", tmp_path / "out" / "low"
    call = ["preprocess", str(tmp_path / "in"), str(high), str(low), "--sample_rate=24000", "--low_sample_rate=12000"]
    assert cli.main(call) == 1
    assert "done 2, skipped 0, failed 1" in capsys.readouterr().out
    for name in ("a.wav", "b/a.wav"):
        (one,), rate = files.read(high / name)
        (two,), _ = files.read(low / name)
        assert rate == 24000 and len(one) == len(two) == 12000
        spectra = [np.abs(np.fft.rfft(signal)) for signal in (one, two)]
        bins = np.fft.rfftfreq(12000, 1 / 24000)
        assert spectra[1][bins > 6100].max() < 0.01 * spectra[0][bins < 6000].mean()
        np.testing.assert_allclose(spectra[0][bins < 2000], spectra[1][bins < 2000], rtol=0.05, atol=0.05)
    (low / "a.wav").unlink()
    (tmp_path / "in" / "bad.mp3").unlink()
    assert cli.main(call) == 0
    assert "done 1, skipped 1, failed 0" in capsys.readouterr().out
    assert cli.main([*call, "--mp3_lpf_hz=5000"]) == 1
    assert "other settings" in capsys.readouterr().err
    assert cli.main(["preprocess", str(tmp_path / "in"), str(tmp_path / "in" / "high"), str(low)]) == 1


@pytest.mark.slow
def test_preprocess_in_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        write(tmp_path / "in" / f"{name}.wav", hiss(800))
    outputs = [str(tmp_path / "high"), str(tmp_path / "low")]
    assert cli.main(["preprocess", str(tmp_path / "in"), *outputs, "--sample_rate=16000", "--workers=2"]) == 0
    assert "done 2" in capsys.readouterr().out


def test_splice_joins_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = np.linspace(-0.5, 0.5, 300_000)
    write(tmp_path / "in" / "1.wav", left)
    write(tmp_path / "in" / "2.flac", np.stack([left[:100], -left[:100]]), subtype="PCM_24")
    target = tmp_path / "all.wav"
    assert cli.main(["splice", str(tmp_path / "in"), str(target)]) == 0
    joined, rate = files.read(target)
    assert rate == RATE and joined.shape == (2, 300_100) and files.info(target).subtype == "PCM_24"
    np.testing.assert_allclose(joined[:, :300_000], np.stack([left] * 2), atol=1e-4)
    np.testing.assert_allclose(joined[1, 300_000:], -left[:100], atol=1e-6)
    assert cli.main(["splice", str(tmp_path / "in"), str(target)]) == 0
    assert "skipped 1" in capsys.readouterr().out
    assert cli.main(["splice", str(tmp_path / "in"), str(tmp_path / "in" / "all.wav")]) == 1


def test_splice_each_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("a/1", RATE), ("a/2", RATE // 2), ("b/c/1", RATE)):
        write(tmp_path / "in" / f"{name}.wav", hiss(rate // 4), rate)
    (tmp_path / "in" / "d").mkdir()
    (tmp_path / "in" / "d" / "bad.wav").write_bytes(b"RIFF")
    assert cli.main(["splice", str(tmp_path / "in"), str(tmp_path / "out"), "--each=true"]) == 1
    assert "done 2, skipped 0, failed 1" in capsys.readouterr().out
    assert files.info(tmp_path / "out" / "a.wav").samples == RATE // 2
    assert sorted(path.name for path in files.find_audio_files(tmp_path / "out")) == ["a.wav", "c.wav"]


def test_cache_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        write(tmp_path / "in" / f"{name}.wav", hiss(4000))
    recipe = tmp_path / "recipe.yaml"
    text = (
        "data:\n  class_path: zoo.audiosr.SuperResolutionData\n  init_args:\n"
        f"    root: {tmp_path / 'in'}\n    cache: {tmp_path / 'cache'}\n    sample_rate: {RATE}\n"
        "    simulation: {class_path: zoo.audiosr.Simulation, init_args: {cutoff_hz: [2000, 4000]}}\n"
    )
    recipe.write_text(text)
    assert cli.main(["cache", str(recipe)]) == 0
    assert "2 clips for training" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").glob("*/audio.i16"))) == 1
    recipe.write_text(text + "    cache_mode: none\n")
    assert cli.main(["cache", str(recipe)]) == 1
    assert "cache_mode" in capsys.readouterr().err


def test_compare_checkpoints_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"net.a.w": torch.ones(2), "net.b.w": torch.ones(2)}, tmp_path / "1.pt")
    torch.save({"net.a.w": torch.ones(2), "net.b.w": torch.zeros(2)}, tmp_path / "2.pt")
    call = [
        "compare-checkpoints",
        str(tmp_path / "1.pt"),
        str(tmp_path / "2.pt"),
        f"--output={tmp_path / 'found.json'}",
    ]
    assert cli.main(call) == 0
    assert "net.b.w" in capsys.readouterr().out
    assert (tmp_path / "found.json").is_file()
