"""A seventh system outside zoo/: converts and is loaded, with no edit in zoo/."""

import json

import numpy as np
import pytest

from tests.harness import TOY_ARGS
from zoo.audio.io import files
from zoo.cli.main import main
from zoo.common import registry
from zoo.runs.load import load


def test_is_inspected_converted_and_loaded(tmp_path, monkeypatch, capsys):
    original = tmp_path / "original.json"
    original.write_text(json.dumps({"toy_gain": 1.5, "a.b": 0, "c": 0}))
    assert main(["inspect", str(original), *TOY_ARGS]) == 0
    assert "toy original" in capsys.readouterr().out
    args = ["convert", "toy_system", str(original), str(tmp_path / "ours"), *TOY_ARGS, "--allow_partial", "false"]
    assert main(args) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [["direction", "original -> ours"], ["tensors", "1"], ["missing", "none"], ["unexpected", "a.b, c"]]
    model = load(tmp_path / "ours", allow_import=["toy_system"])
    np.testing.assert_array_equal(model(np.ones(3, np.float32), 16000), np.full(3, 1.5, np.float32))
    files.write(tmp_path / "in.wav", np.full(100, 0.25, np.float32), 16000)
    args = ["--input", str(tmp_path / "in.wav"), "--output", str(tmp_path / "out"), *TOY_ARGS]
    assert main(["predict", "--ckpt_path", str(tmp_path / "ours"), *args]) == 0
    np.testing.assert_allclose(files.read(tmp_path / "out" / "in.wav")[0], 0.375, atol=1e-4)
    monkeypatch.setattr(registry, "_allowed", [])
    with pytest.raises(ValueError, match=r"toy_system\.Amplifier is no part of the zoo"):
        load(tmp_path / "ours")
