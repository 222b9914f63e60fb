"""Vocos' nets against what the original code computed."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml

from tests.conftest import reference_folder
from tests.hifigan.nets.test_encodec import TINY
from tests.parity.recorded import Recorded
from zoo.audio.analysis.mel import LogMel
from zoo.convert.engine import NO_TRAINING
from zoo.hifigan.convert import convert, describe, is_original
from zoo.hifigan.convert.layouts import to_zoo_names
from zoo.hifigan.convert.vocos import SOURCES
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.hifigan.nets.vocos import InverseSTFT, Vocos
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.load import load

pytestmark = pytest.mark.shared
GOLDEN = reference_folder("vocos")
RECORDED = Recorded(GOLDEN, exact=4e-6)
META, arrays, close = RECORDED.cases, RECORDED.arrays, RECORDED.close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["mel_center", "mel_same"])
def test_generators(case, dtype):
    config = yaml.safe_load((GOLDEN / case / "config.yaml").read_text())
    mel, back, head = (config[key]["init_args"] for key in ("feature_extractor", "backbone", "head"))
    net = Vocos(
        back["input_channels"], back["dim"], back["intermediate_dim"], back["num_layers"], mel["n_fft"],
        mel["hop_length"], head["padding"], back.get("layer_scale_init_value"),
    )  # fmt: skip
    front = LogMel(
        mel["sample_rate"], mel["n_fft"], mel["hop_length"], mel["n_fft"], mel["n_mels"], 0, None, mel["padding"],
        "htk", 0.0, 1e-7,
    )  # fmt: skip
    state = torch.load(GOLDEN / case / "pytorch_model.bin", weights_only=True)
    actual = {key: value for key, value in state.items() if not key.startswith(("feature_extractor.", "head.istft"))}
    net.load_state_dict(to_zoo_names(actual))
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
    for index, (hop, padding) in enumerate([(16, "same"), (16, "center"), (20, "same")]):
        required = stored[f"istft{index}.out.f32"]
        spectrum = torch.view_as_real(stored[f"istft{index}.spec"].transpose(1, 2))
        results = InverseSTFT(2 * (spectrum.shape[2] - 1), hop, padding)(*spectrum.unbind(-1))
        torch.testing.assert_close(results[:, : required.shape[-1]], required, rtol=0, atol=5e-6)


@pytest.mark.parametrize("case", ["mel_center", "mel_same"])
def test_files_there_and_back(case, tmp_path):
    assert is_original(GOLDEN / case) and describe(GOLDEN / case)["format"] == "vocos"
    convert(GOLDEN / case, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    folders = (GOLDEN / case, tmp_path / "back")
    before, after = (torch.load(each / "pytorch_model.bin", weights_only=True) for each in folders)
    assert before.keys() == after.keys()
    for key, value in before.items():
        if key.endswith("mel_scale.fb"):
            bound = 2e-5  # the original takes differences of tens of Hz of frequencies, whose float32 is 1e-3 Hz
        else:
            bound = 2e-7 if key.startswith(("head.i", "feature_extractor.")) else 0
        torch.testing.assert_close(after[key], value, rtol=0, atol=bound)
    written, original = (yaml.safe_load((each / "config.yaml").read_text()) for each in folders[::-1])
    assert written == original
    convert(GOLDEN / case, tmp_path / "export")
    stored = arrays(f"{case}/io.npz")
    model = load(tmp_path / "export")
    results = torch.from_numpy(model.from_mel(stored["features0.f32"].numpy()))
    required = stored["out0.f32"]
    bound = 2e-5 * float(required.abs().max())
    torch.testing.assert_close(results[:, : required.shape[-1]], required, rtol=0, atol=bound)
    wave = stored["wave1"][0].numpy()
    assert len(model(wave, model.sample_rate)) == len(wave)


def test_norms_that_adapt():
    """Frames from EnCodec's codebooks, and the bandwidth's id."""
    options = META["encodec_like"]
    back, head = options["backbone"], options["head"]
    net = Vocos(
        back["input_channels"], back["dim"], back["intermediate_dim"], back["num_layers"], head["n_fft"],
        head["hop_length"], head["padding"], conditions=back["adanorm_num_embeddings"],
    )  # fmt: skip
    state = torch.load(GOLDEN / "encodec_like" / "pytorch_model.bin", weights_only=True)
    rows = state.pop("feature_extractor.codebook_weights")
    state.pop("head.istft.window")
    net.load_state_dict(state)
    stored = arrays("encodec_like/io.npz")
    for name in (key for key in stored if key.startswith("out")):
        number, condition = name.removesuffix(".f32")[3:].split("_bw")
        if name.endswith("f64"):
            continue
        codes = stored[f"codes{number}"]
        codes = codes[:, None] if codes.dim() == 2 else codes
        offsets = options["bins"] * torch.arange(len(codes))[:, None, None]
        features = rows[codes + offsets].sum(0).transpose(1, 2)
        torch.testing.assert_close(features, stored[f"features{number}.f32"], rtol=0, atol=1e-6)
        results = net(features, torch.tensor(int(condition)))
        torch.testing.assert_close(results[:, 0], stored[name], rtol=0, atol=2e-5)
    with pytest.raises(ValueError, match="expected a condition"):
        net(features)


def test_a_vocoder_of_codes_there_and_back(tmp_path, monkeypatch):
    """As charactr/vocos-encodec-24khz: the codec comes from elsewhere, here a tiny one with the same codebooks."""
    options, weights = META["encodec_like"], GOLDEN / "encodec_like" / "pytorch_model.bin"
    rows = torch.load(weights, weights_only=True)["feature_extractor.codebook_weights"]
    codec = EncodecFeatures(config=TINY, bandwidths=[2.5])
    for layer, entries in zip(codec.model.quantizer.layers, rows.split(options["bins"]), strict=False):
        layer.codebook.embed.copy_(entries)
    codec.save_source(tmp_path / "codec")
    monkeypatch.setitem(SOURCES, "encodec_24khz", str(tmp_path / "codec"))
    bandwidths = TINY["target_bandwidths"][:4]
    settings = {
        "feature_extractor": {
            "class_path": "vocos.feature_extractors.EncodecFeatures",
            "init_args": {"encodec_model": "encodec_24khz", "bandwidths": bandwidths},
        },
        "backbone": {"class_path": "vocos.models.VocosBackbone", "init_args": options["backbone"]},
        "head": {"class_path": "vocos.heads.ISTFTHead", "init_args": options["head"]},
    }
    source = tmp_path / "original"
    source.mkdir()
    (source / "config.yaml").write_text(yaml.safe_dump(settings))
    (source / "pytorch_model.bin").write_bytes(weights.read_bytes())
    convert(source, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    before, after = (torch.load(each / "pytorch_model.bin", weights_only=True) for each in (source, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items() if key != "head.istft.window")
    assert yaml.safe_load((tmp_path / "back" / "config.yaml").read_text()) == settings
    convert(source, tmp_path / "export")
    stored = arrays("encodec_like/io.npz")
    for number, name in ((0, "out0_bw0.f32"), (3, "out0_bw3.f32")):
        model = load(tmp_path / "export", bandwidth=bandwidths[number])
        features = model.mel.embed(stored["codes0"])
        torch.testing.assert_close(features, stored["features0.f32"], rtol=0, atol=1e-6)
        results = torch.from_numpy(model.from_mel(features.numpy()))
        torch.testing.assert_close(results, stored[name], rtol=0, atol=2e-5)
    audio = np.random.default_rng(0).normal(0, 0.1, 1001).astype(np.float32)
    assert len(model(audio, 24000)) == 1001
    state = dict(before, **{"feature_extractor.codebook_weights": rows + 1})
    torch.save(state, source / "pytorch_model.bin")
    with pytest.raises(ValueError, match="another codec"):
        convert(source, tmp_path / "wrong.ckpt")


def test_a_checkpoint_of_the_training(tmp_path):
    layout = json.loads((GOLDEN / "lightning_layout.json").read_text())["state_dict"]
    state = {key: torch.randn(shape) for key, shape in layout.items()}
    torch.save({"state_dict": state, "global_step": 84, "epoch": 3}, tmp_path / "last.ckpt")
    config = yaml.safe_load((GOLDEN / "mel_center" / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": {"init_args": config | {"mrd_loss_coeff": 0.1}}}))
    report = convert(tmp_path / "last.ckpt", tmp_path / "ours.ckpt")
    actual = load_checkpoint(tmp_path / "ours.ckpt")
    assert actual["global_step"] == 42 and actual["zoo"]["config"]["loss_weights"]["d/mrd"] == pytest.approx(0.1 / 3)
    prefixes = {key.partition(".")[0] for key in actual["state_dict"]}
    assert prefixes == {"generator", "mpd", "mrd"} and report["notes"] == [NO_TRAINING]


def test_what_is_not_known_is_refused(tmp_path):
    shutil.copytree(GOLDEN / "mel_same", tmp_path / "x")
    config = yaml.safe_load((tmp_path / "x" / "config.yaml").read_text())
    config["head"]["class_path"] = "os.system"
    (tmp_path / "x" / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match=r"head 'system' is not supported"):
        convert(tmp_path / "x", tmp_path / "ours.ckpt")
