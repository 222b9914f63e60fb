from __future__ import annotations

import copy

import pytest
import torch

from tests.miipher import parts
from tests.miipher.parts import backbone, cleaner
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.hifigan.nets.vocos import Vocos
from zoo.miipher.inference.onnx import SHAPES
from zoo.miipher.inference.restorer import Restorer
from zoo.runs.onnx_export import write_onnx


def vocos() -> Vocos:
    return Vocos(32, 16, 24, 1, 960, 480)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("encoder", "generator", "rate"),
    [
        pytest.param(cleaner, parts.generator, 22050, id="hubert-hifigan"),
        pytest.param(lambda: cleaner("wavlm"), vocos, 24000, id="wavlm-vocos", marks=pytest.mark.slow),
        pytest.param(lambda: cleaner("hubert_preln", normalize=True), vocos, 24000, id="preln", marks=pytest.mark.slow),
    ],
)
def test_one_graph_restores_as_torch_at_five_lengths(encoder, generator, rate, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = Restorer(encoder(), generator(), rate).eval()
    for part in model.modules().values():  # what starts at zero would hide a missing term, small gains the encoder
        for name, parameter in part.named_parameters():
            if "original0" in name:
                parameter.data *= 2
            elif parameter.dim() == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    before = copy.deepcopy(model.generator.state_dict())
    graph = model.onnx_graph()
    assert len({frames for _, frames in SHAPES}) == 5
    with torch.inference_mode():
        peak = min(float(graph.net(*example).abs().max()) for example in graph.examples)
    assert write_onnx(graph, tmp_path / "model.onnx") <= 1e-4 * peak
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert list(model.generator.state_dict()) == list(before)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    audio = 0.1 * torch.randn(1, 320 * 43)
    (results,) = session.run(None, {"waveform": audio.numpy()})
    expected = model.compute(audio.numpy(), [audio.shape[1]])  # as `predict` computes a chunk
    torch.testing.assert_close(results, expected, atol=1e-4 * peak, rtol=0)
    (other,) = session.run(None, {"waveform": audio.flip(1).numpy()})
    assert abs(other - results).max() > 1e-2 * peak  # the vocoder hears the encoder


def test_filter_banks_and_a_search_for_phases_are_refused():
    searching = MagnitudeVocos(32, 480, 2, 960, 8, 12, 1, iterations=2)
    for encoder, generator, reason in (("mel_hubert", vocos(), "filter banks"), ("hubert", searching, "phases")):
        with pytest.raises(ValueError, match=reason):
            Restorer(backbone(encoder), generator, 24000).onnx_graph()
