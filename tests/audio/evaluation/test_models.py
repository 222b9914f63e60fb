import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.evaluation.asr import ASR
from zoo.audio.evaluation.dnsmos import DNSMOS
from zoo.audio.evaluation.models import MOSPredictor
from zoo.audio.evaluation.similarity import SpeakerSimilarity

RATE = 16000
VOICE = SyntheticSpeech(RATE, seconds=(1.0, 1.0)).utterance(0)
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "conv_dim": (8,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


def write_onnx(path, nodes, shape, outputs):
    """A model with the given input shape."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "stand-in", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def speaker_model(tmp_path_factory):
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

    folder = tmp_path_factory.mktemp("speaker")
    torch.manual_seed(0)
    sizes = SIZES | {"tdnn_dim": (8, 8), "tdnn_kernel": (3, 1), "tdnn_dilation": (1, 1), "xvector_output_dim": 6}
    WavLMForXVector(WavLMConfig(**sizes)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def asr_model(tmp_path_factory):
    from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    folder = tmp_path_factory.mktemp("asr")
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefgh"]
    (folder / "vocab.json").write_text(json.dumps({letter: index for index, letter in enumerate(letters)}))
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    torch.manual_seed(1)
    model = Wav2Vec2ForCTC(Wav2Vec2Config(**SIZES, vocab_size=len(letters)))
    torch.nn.init.normal_(model.lm_head.weight, std=2.0)
    model.save_pretrained(folder)
    return folder


def test_speaker_similarity(speaker_model):
    model = SpeakerSimilarity(str(speaker_model))
    model.load()
    assert model(VOICE, VOICE, None)["speaker_similarity"] == pytest.approx(1.0, abs=1e-5)
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    assert model(noise, VOICE, None)["speaker_similarity"] < 0.9999
    assert model(VOICE, None, None) == {}


def test_error_rates(asr_model):
    model = ASR(str(asr_model))
    model.load()
    transcript = model.transcribe(VOICE)
    assert transcript.strip() and not set(transcript) - set("abcdefgh ")  # without special tokens
    perfect = model(VOICE, None, transcript.upper() + "!")
    assert perfect["wer"] == 0 and perfect["cer"] == 0 and perfect["words"] == len(transcript.split())
    wrong = model(VOICE, None, "x y z")
    assert wrong["wer"] > 0 and wrong["characters"] == 5
    unspaced = model(VOICE, None, "世界。")
    assert "wer" not in unspaced and unspaced["characters"] == 2
    assert model(VOICE, None, None) == model(VOICE, None, "...") == {}


def test_programs_in_a_models_folder_are_not_run(asr_model, speaker_model, tmp_path):
    for name, (source, kind, model) in {
        "asr": (asr_model, "AutoModelForCTC", ASR),
        "speaker": (speaker_model, "AutoModelForAudioXVector", SpeakerSimilarity),
    }.items():
        folder = tmp_path / name
        shutil.copytree(source, folder)
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
        config = json.loads((folder / "config.json").read_text())
        config["auto_map"] = {"AutoConfig": "evil.Evil", kind: "evil.Evil"}
        (folder / "config.json").write_text(json.dumps(config))
        model(str(folder)).load()
        assert not (tmp_path / "ran").exists()


def test_mos(tmp_path):
    mean = helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)
    model = MOSPredictor(write_onnx(tmp_path / "mos.onnx", [mean], [1, "t"], ["y"]))
    model.load()
    assert model(np.full(RATE, 3.5), None, None)["mos"] == pytest.approx(3.5)
    # the mean over parts of 30 s at most
    assert model(np.concatenate([np.ones(30 * RATE), np.full(30 * RATE, 2.0)]), None, None)["mos"] == pytest.approx(1.5)


def test_dnsmos(tmp_path):
    # a stand-in: three times the mean of the window
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Concat", ["m", "m", "m"], ["y"], axis=1),
    ]
    write_onnx(tmp_path / "sig_bak_ovr.onnx", nodes, [1, 144160], ["y"])
    model = DNSMOS(tmp_path)
    model.load()
    values = model(np.full(RATE, 0.5, dtype=np.float32), None, None)
    # its polynomials at 0.5, as in the published script
    published = {"dnsmos_sig": 0.59467047, "dnsmos_bak": 0.37561489, "dnsmos_ovr": 0.58684198}
    assert values == pytest.approx(published, abs=1e-6)
