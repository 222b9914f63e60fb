"""Vocos' nets against what the original code computed."""

import json

import numpy as np
import pytest
import torch
import yaml

from tests.conftest import SHARED
from zoo.audio.analysis.mel import LogMel
from zoo.hifigan.convert.rules import to_our_keys
from zoo.hifigan.nets.vocos import InverseSTFT, Vocos, mdct_basis, overlap_add

GOLDEN = SHARED / "golden" / "vocos"
META = json.loads((GOLDEN / "meta.json").read_text())["cases"] if GOLDEN.is_dir() else {}
pytestmark = pytest.mark.shared
HEADS = {"ISTFTHead": "istft", "IMDCTSymExpHead": "mdct_symexp", "IMDCTCosHead": "mdct_cos"}


def arrays(name):
    return {key: torch.from_numpy(value) for key, value in np.load(GOLDEN / name).items()}


def close(found, stored, name, case):
    facts = META[case]["arrays"].get(f"{name}.f32", {})
    scale = max(float(stored[f"{name}.f32"].abs().max()), 1e-3)
    if found.dtype == torch.float64 and f"{name}.f64" in stored:
        torch.testing.assert_close(found, stored[f"{name}.f64"], rtol=0, atol=4e-6 * scale)
        return
    bound = max(20 * facts.get("max_abs_diff_to_f64", 0.0), 1e-6 * scale)
    torch.testing.assert_close(found.float(), stored[f"{name}.f32"], rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["mel_center", "mel_same", "resnet_imdct_cos", "imdct_symexp_same"])
def test_generators(case, dtype):
    config = yaml.safe_load((GOLDEN / case / "config.yaml").read_text())
    mel, back, head = (config[key]["init_args"] for key in ("feature_extractor", "backbone", "head"))
    kind = config["head"]["class_path"].rpartition(".")[2]
    net = Vocos(
        back["input_channels"], back["dim"], back.get("intermediate_dim", 1),
        back.get("num_layers") or back["num_blocks"], mel["n_fft"], mel["hop_length"], head["padding"],
        "resnet" if "ResNet" in config["backbone"]["class_path"] else "convnext", HEADS[kind],
        back.get("layer_scale_init_value"),
    )  # fmt: skip
    front = LogMel(
        mel["sample_rate"], mel["n_fft"], mel["hop_length"], mel["n_fft"], mel["n_mels"], 0, None, mel["padding"],
        "htk", 0.0, 1e-7,
    )  # fmt: skip
    state = torch.load(GOLDEN / case / "pytorch_model.bin", weights_only=True)
    ours = {
        key: value
        for key, value in state.items()
        if not key.startswith(("feature_extractor.", "head.istft", "head.imdct"))
    }
    net.load_state_dict(to_our_keys(ours))
    net.to(dtype), front.to(dtype)
    stored = arrays(f"{case}/io.npz")
    for index in range(3):
        features = front(stored[f"wave{index}"].to(dtype))
        close(features, stored, f"features{index}", case)
        out = net(stored[f"features{index}.f{'64' if dtype == torch.float64 else '32'}"])[:, 0]
        assert out.shape[-1] == features.shape[-1] * net.hop_length
        close(out[:, : stored[f"out{index}.f32"].shape[-1]], stored, f"out{index}", case)


def test_spectral_operations():
    stored = arrays("spectral_ops.npz")
    for index, (hop, window, padding) in enumerate(
        [(16, 64, "same"), (16, 64, "center"), (20, 60, "same"), (16, 48, "center")]
    ):
        wanted = stored[f"istft{index}.out.f32"]
        spectrum = torch.view_as_real(stored[f"istft{index}.spec"].transpose(1, 2))
        found = InverseSTFT(2 * (spectrum.shape[2] - 1), hop, window, padding)(*spectrum.unbind(-1))
        torch.testing.assert_close(found[:, : wanted.shape[-1]], wanted, rtol=0, atol=5e-6)
    for index, padding in enumerate(("same", "center")):
        basis = mdct_basis(16)
        pad = 8 if padding == "same" else 16
        frames = torch.nn.functional.pad(stored[f"mdct{index}.in"], (pad, pad)).unfold(-1, 32, 16)
        torch.testing.assert_close(frames @ basis.T, stored[f"mdct{index}.coef.f32"], rtol=0, atol=5e-6)
        back = overlap_add((stored[f"mdct{index}.coef.f32"] @ basis).transpose(1, 2), 16)[:, pad:-pad]
        torch.testing.assert_close(back, stored[f"mdct{index}.back.f32"], rtol=0, atol=5e-6)
