from __future__ import annotations

import importlib.util

import pytest
import torch

from zoo.hifigan.inference import export_onnx
from zoo.hifigan.nets.generator import Generator

SIZES = {
    "in_channels": 4,
    "initial_channels": 8,
    "upsample_rates": (4, 2),
    "upsample_kernel_sizes": (8, 4),
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3),),
}


@pytest.mark.filterwarnings("ignore")
def test_export_agrees_with_torch_at_any_batch_and_length(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    generator = Generator(**SIZES)
    keys = list(generator.state_dict())
    assert export_onnx(generator, tmp_path / "generator.onnx") < 1e-6
    assert list(generator.state_dict()) == keys
    assert [path.name for path in tmp_path.iterdir()] == ["generator.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "generator.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(4, 4, 51)
    (audio,) = session.run(None, {"frames": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(audio), generator(x).detach(), atol=1e-6, rtol=0)


def test_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install zoo\[export\]"):
        export_onnx(Generator(**SIZES), tmp_path / "generator.onnx")
    assert list(tmp_path.iterdir()) == []
