import json
import math
import pickle
import shutil

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from zoo.audio.corpora.synthetic import SpeechLike
from zoo.audio.evaluation.judges import (
    _BAK,
    _OVR,
    _SIG,
    ASR,
    DNSMOS,
    NISQA,
    InputDisagreement,
    MOSPredictor,
    SpeakerSimilarity,
    _mel,
    _windows,
    by_segments,
    cosine_distances,
    nisqa_segments,
    parts_of,
)
from zoo.audio.evaluation.run import evaluate_folders
from zoo.audio.io import files

RATE = 16000
VOICE = SpeechLike(RATE, seconds=(1.0, 1.0)).utterance(0)
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "conv_dim": (8,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


def write_onnx(path, nodes, shape, outputs):
    """A model with the given input shape."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "stand-in", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def mean_model(path, shape, axes, keep=0):
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=axes, keepdims=keep)
    return write_onnx(path, [node], shape, ["y"])


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


@pytest.fixture(scope="module")
def ssl_model(tmp_path_factory):
    from transformers import HubertConfig, HubertModel, Wav2Vec2FeatureExtractor

    folder = tmp_path_factory.mktemp("ssl")
    torch.manual_seed(0)
    HubertModel(HubertConfig(**SIZES)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    return folder


def test_distances_and_segments():
    found, wanted = np.array([[1.0, 0], [0, 0], [0, 2], [0, 0]]), np.array([[1.0, 0], [1, 0], [0, -1], [0, 0]])
    np.testing.assert_allclose(cosine_distances(found, wanted), [0, 1, 2, 0])
    assert by_segments(np.arange(10.0), 4).tolist() == [1.5, 5.5, 8.5]
    assert by_segments(np.arange(9.0), 4).tolist() == [1.5, 6.0]  # a short rest joins the segment before
    assert by_segments(np.arange(1.0), 4).tolist() == [0.0]


def test_segments_far_from_the_input_are_flagged(ssl_model, tmp_path, capsys):
    """A second of another voice in one of three files: the threshold is that of the clean files."""
    voices = SpeechLike(RATE, seconds=(3.0, 3.0))
    rng = np.random.default_rng(0)
    for index in range(3):
        clean = voices.utterance(index)
        restored = clean.copy()
        if index == 1:
            restored[RATE : 2 * RATE] = 0.3 * rng.standard_normal(RATE)
        for tree, audio in (("clean", clean), ("degraded", clean + 1e-4), ("restored", restored)):
            files.write(tmp_path / tree / f"{index}.wav", audio, RATE)
    trees = [tmp_path / tree for tree in ("clean", "restored", "out", "degraded")]
    assert evaluate_folders(*trees, metrics=["lsd"], sample_rate=RATE, ssl_model=str(ssl_model), ssl_layer=1) == 0
    report = capsys.readouterr().out
    assert "possible hallucinations" in report and "- restored 1 at 1 s" in report
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["flags"]
    assert summary["segments"] == {"clean": 9, "restored": 9} and summary["flagged"]["clean"] <= 1
    flagged = (tmp_path / "out" / "flagged.csv").read_text().splitlines()
    assert flagged[0] == "system,name,start_seconds,disagreement" and flagged[1].startswith("restored,1,1,")
    options = {"metrics": ["lsd"], "sample_rate": RATE, "ssl_model": str(ssl_model)}
    assert evaluate_folders(*trees, **options, flag_above=2.0) == 0
    assert (tmp_path / "out" / "flagged.csv").read_text().splitlines() == flagged[:1]
    assert "(as given)" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--degraded"):
        evaluate_folders(*trees[:3], **options)
    with pytest.raises(OSError, match="blocks 1 to 1, not 4"):
        InputDisagreement(str(ssl_model), 4).load()


def test_speaker_similarity(speaker_model):
    judge = SpeakerSimilarity(str(speaker_model))
    judge.load()
    assert judge(VOICE, VOICE, None)["speaker_similarity"] == pytest.approx(1.0, abs=1e-5)
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    assert judge(noise, VOICE, None)["speaker_similarity"] < 0.9999
    assert judge(VOICE, None, None) == {}


def test_models_stay_out_of_pickles(speaker_model):
    judge = SpeakerSimilarity(str(speaker_model))
    judge.load()
    assert len(pickle.dumps(judge)) < 1000 and pickle.loads(pickle.dumps(judge)) == judge


def test_torchscript_is_refused(tmp_path):
    path = tmp_path / "speaker.pt"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"speaker\.pt: expected a folder"):
        SpeakerSimilarity(str(path))


def test_speaker_similarity_of_a_missing_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        SpeakerSimilarity(str(tmp_path / "nowhere")).load()


@pytest.mark.parametrize("shape", [[1, "t"], [1, "f", 80]])
def test_speaker_similarity_of_an_onnx_model(tmp_path, shape):
    # The waveform itself, or the energy of each band, as the embedding.
    if len(shape) == 2:
        path = write_onnx(tmp_path / "e.onnx", [helper.make_node("Identity", ["x"], ["y"])], shape, ["y"])
    else:
        nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("ReduceMean", ["a"], ["y"], axes=[1])]
        path = write_onnx(tmp_path / "e.onnx", nodes, shape, ["y"])
    judge = SpeakerSimilarity(str(path))
    judge.load()
    assert judge(0.5 * VOICE, VOICE, None)["speaker_similarity"] == pytest.approx(1.0, abs=1e-3)
    if len(shape) == 2:
        assert judge(-VOICE, VOICE, None)["speaker_similarity"] == pytest.approx(-1.0, abs=1e-5)


def test_error_rates(asr_model):
    judge = ASR(str(asr_model))
    judge.load()
    heard = judge.transcribe(VOICE)
    assert heard.strip() and not set(heard) - set("abcdefgh ")  # without special tokens
    perfect = judge(VOICE, None, heard.upper() + "!")
    assert perfect["wer"] == 0 and perfect["cer"] == 0 and perfect["words"] == len(heard.split())
    wrong = judge(VOICE, None, "x y z")
    assert wrong["wer"] > 0 and wrong["characters"] == 5
    unspaced = judge(VOICE, None, "世界。")
    assert "wer" not in unspaced and unspaced["characters"] == 2
    assert judge(VOICE, None, None) == judge(VOICE, None, "...") == {}


def test_error_rates_of_a_sequence_to_sequence_model(tmp_path):
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    vocabulary = {token: index for index, token in enumerate([*bytes_to_unicode().values(), *special])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    WhisperTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")).save_pretrained(tmp_path)
    WhisperFeatureExtractor(feature_size=8).save_pretrained(tmp_path)
    end, sides = vocabulary[special[0]], ("encoder", "decoder")
    sizes = {f"{side}_{what}": 1 for side in sides for what in ("layers", "attention_heads")}
    tokens = {f"{name}_token_id": end for name in ("pad", "bos", "eos")} | {"decoder_start_token_id": end + 1}
    sizes |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_model": 16, "num_mel_bins": 8, **tokens}
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=len(vocabulary), max_target_positions=32, **sizes))
    model.generation_config.max_length = 12
    model.save_pretrained(tmp_path)
    judge = ASR(str(tmp_path))
    heard = judge.transcribe(VOICE)
    assert heard.strip() and "<|" not in heard
    assert judge(VOICE, None, "hello there")["words"] == 2 and judge(VOICE, None, heard + "x")["cer"] > 0


def test_programs_in_a_models_folder_are_not_run(asr_model, speaker_model, ssl_model, tmp_path):
    for name, (source, kind, judge) in {
        "asr": (asr_model, "AutoModelForCTC", ASR),
        "speaker": (speaker_model, "AutoModelForAudioXVector", SpeakerSimilarity),
        "ssl": (ssl_model, "AutoModel", InputDisagreement),
    }.items():
        folder = tmp_path / name
        shutil.copytree(source, folder)
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
        config = json.loads((folder / "config.json").read_text())
        config["auto_map"] = {"AutoConfig": "evil.Evil", kind: "evil.Evil"}
        (folder / "config.json").write_text(json.dumps(config))
        judge(str(folder)).load()
        assert not (tmp_path / "ran").exists()


def test_long_audio_is_heard_in_parts(asr_model):
    parts = parts_of(np.zeros(65 * RATE), RATE)
    assert [len(part) for part in parts] == [346667, 346667, 346666]
    assert parts_of(np.zeros(0), RATE)[0].shape == (0,)


def test_mos(tmp_path):
    judge = MOSPredictor(mean_model(tmp_path / "mos.onnx", [1, "t"], [1]))
    judge.load()
    assert judge(np.full(RATE, 3.5), None, None)["mos"] == pytest.approx(3.5)
    # the mean over parts of 30 s at most
    assert judge(np.concatenate([np.ones(30 * RATE), np.full(30 * RATE, 2.0)]), None, None)["mos"] == pytest.approx(1.5)


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        MOSPredictor(tmp_path / "none.onnx").load()
    (tmp_path / "bad.onnx").write_bytes(b"pickle?")
    with pytest.raises(ValueError, match=r"bad\.onnx: no ONNX model"):
        MOSPredictor(tmp_path / "bad.onnx").load()
    with pytest.raises(ValueError, match=r"takes .* got"):
        MOSPredictor(mean_model(tmp_path / "other.onnx", [1, 1, "t"], [2]))(VOICE, None, None)


def test_dnsmos(tmp_path):
    # Stand-ins: three times the mean of the window, and the mean of the mel.
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Concat", ["m", "m", "m"], ["y"], axis=1),
    ]
    write_onnx(tmp_path / "sig_bak_ovr.onnx", nodes, [1, 144160], ["y"])
    judge = DNSMOS(tmp_path)
    judge.load()
    values = judge(np.full(RATE, 0.5, dtype=np.float32), None, None)
    assert values == pytest.approx(
        {f"dnsmos_{name}": np.polyval(curve, 0.5) for name, curve in (("sig", _SIG), ("bak", _BAK), ("ovr", _OVR))}
    )
    mean_model(tmp_path / "model_v8.onnx", [1, 900, 120], [1, 2])
    values = DNSMOS(tmp_path)(VOICE, None, None)
    assert -1 <= values["dnsmos_p808"] <= 1


@pytest.mark.parametrize("counted", [False, True])
def test_nisqa(tmp_path, counted):
    """A stand-in: mean decibels of the first five bands, times the number of segments where it is given."""
    first = helper.make_tensor("first", TensorProto.INT64, [5], range(5))
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1, 2, 4], keepdims=0),  # (1, 48)
        helper.make_node("Gather", ["m", "first"], ["g"], axis=1),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT) if counted else None,
        helper.make_node("Mul", ["g", "f"], ["y"]) if counted else helper.make_node("Identity", ["g"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "s", 1, 48, 15])]
    inputs += [helper.make_tensor_value_info("n", TensorProto.INT64, [1])] if counted else []
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node for node in nodes if node is not None], "stand-in", inputs, outputs, [first])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "nisqa.onnx")
    judge = NISQA(tmp_path / "nisqa.onnx")
    judge.load()
    audio = np.random.default_rng(0).standard_normal(NISQA.sample_rate // 2).astype(np.float32)
    segments = nisqa_segments(audio)
    wanted = segments.mean((0, 1, 3))[:5] * (len(segments) if counted else 1)
    assert list(judge(audio, None, None).values()) == pytest.approx(wanted.tolist(), rel=1e-5)
    assert judge(audio[:6719], None, None) == {}
    if counted:
        with pytest.raises(ValueError, match="takes 2 inputs, expected 1"):
            MOSPredictor(judge.model)(audio, None, None)
    else:
        with pytest.raises(ValueError, match="expected 5 scores of a recording, found 48"):
            NISQA(mean_model(tmp_path / "other.onnx", [1, "s", 1, 48, 15], [1, 2, 4]))(audio, None, None)


@pytest.mark.parametrize("samples", [6720, 8639, 8640, 48001])
def test_nisqa_segments(samples):
    """Against plain numpy: reflected edges, a centred window, triangles of equal area, decibels, overlapping cuts."""
    audio = np.random.default_rng(samples).standard_normal(samples) / 8
    padded = np.pad(audio, 2048, mode="reflect")
    window = np.pad(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(960) / 960), 1568)
    frames = np.stack([padded[i : i + 4096] * window for i in range(0, samples + 1, 480)], 1)
    magnitude = np.abs(np.fft.rfft(frames, axis=0))

    def mel(hz):
        return np.where(hz < 1000, 3 * hz / 200, 15 + 27 * np.log(np.maximum(hz, 1) / 1000) / np.log(6.4))

    ends = np.linspace(0, mel(20000.0), 50)
    edges = np.where(ends < 15, 200 * ends / 3, 1000 * 6.4 ** ((ends - 15) / 27))
    hz = np.linspace(0, 24000, 2049)
    up = (hz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    down = (edges[2:, None] - hz) / np.diff(edges)[1:, None]
    bank = np.maximum(0, np.minimum(up, down)) * 2 / (edges[2:] - edges[:-2])[:, None]
    decibels = 20 * np.log10(np.maximum(bank @ magnitude, 1e-4))
    decibels = np.maximum(decibels, decibels.max() - 80)
    wanted = [decibels[:, i : i + 15] for i in range(0, decibels.shape[1] - 14, 4)]
    np.testing.assert_allclose(nisqa_segments(audio)[:, 0], wanted, atol=2e-3)


def test_dnsmos_windows():
    assert [len(_windows(np.zeros(seconds * RATE), RATE)) for seconds in (4, 9, 10, 11)] == [7, 9, 1, 2]
    assert {len(window) for window in _windows(np.zeros(30 * RATE), RATE)} == {144160}
    assert len(_windows(np.zeros(int(9.5 * RATE)), RATE)) == 1


def test_dnsmos_mel():
    time = np.arange(144160) / RATE
    mel = _mel(np.sin(2 * np.pi * 1000 * time).astype(np.float32))
    assert mel.shape == (900, 120) and mel.max() == pytest.approx(1.0) and mel.min() == pytest.approx(-1.0)
    assert math.isclose(np.median(mel.argmax(1)), 38, abs_tol=3)  # 1 kHz is 15 of 45.2 mel (Slaney)
