from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.numeric import exactly
from zoo.audio.analysis.features import load_features
from zoo.audio.analysis.mel import LogMel
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.solvers import Solver
from zoo.flow.sequence.net import Normaliser, SequenceNet
from zoo.flow.sequence.restore import SequenceRestorer
from zoo.hifigan.inference.vocoder import Vocoder
from zoo.hifigan.nets.generator import Generator

RATE = 8000
MEL = LogMel(RATE, 256, 64, 256, 4, 0.0, 4000.0)
SPEECH = SyntheticSpeech(RATE).utterance(0)[: 64 * 150 + 10]  # 151 frames, the last of 10 samples


class Copy(SequenceNet):
    """Takes the condition for the data (prediction x1): the result is the condition."""

    def __init__(self) -> None:
        super().__init__(4, 4, dim=4, layers=1, heads=1)

    def forward(self, x: Tensor, t: Tensor, condition: Tensor, *rest: Tensor) -> Tensor:
        return condition


class Still(Copy):
    """Moves nothing: the result is what the flow starts from."""

    def forward(self, x: Tensor, t: Tensor, condition: Tensor, *rest: Tensor) -> Tensor:
        return torch.zeros_like(x)


def fitted() -> Normaliser:
    normaliser = Normaliser(4, 4)
    normaliser.fit([(MEL(torch.from_numpy(SPEECH)[None])[0],) * 2])
    return normaliser


def build(net: SequenceNet, mel: LogMel | None = MEL, **kwargs: object) -> SequenceRestorer:
    arguments = {"prediction": "x1", "chunk_frames": 40, "overlap_frames": 12, "chunk_batch": 2, **kwargs}
    return SequenceRestorer(net, ConditionalOT(0.0), fitted(), mel, **arguments)


def random_net() -> SequenceNet:
    torch.manual_seed(0)
    net = SequenceNet(4, 4, dim=16, layers=2, heads=2)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape))
    return net.eval()


def whole_mel(audio: np.ndarray) -> np.ndarray:
    padded = np.pad(audio, (0, -len(audio) % 64))
    return MEL(torch.from_numpy(padded)[None])[0].numpy()


def test_chunks_of_audio_are_the_whole() -> None:
    result = build(Copy())(SPEECH, RATE)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, whole_mel(SPEECH), atol=2e-4)


@pytest.mark.parametrize("samples", [1, 64, 100, 64 * 40, 64 * 40 + 1])
def test_any_length_of_audio(samples: int) -> None:
    result = build(Copy())(SPEECH[:samples], RATE)
    assert result.shape == (4, -(-samples // 64))
    np.testing.assert_allclose(result, whole_mel(SPEECH[:samples])[:, : result.shape[1]], atol=2e-4)


def test_other_rates_and_channels() -> None:
    stereo = np.stack([SPEECH, -SPEECH / 2])
    np.testing.assert_allclose(build(Copy())(stereo, RATE), build(Copy())(SPEECH / 4, RATE), atol=1e-5)
    assert build(Copy())(SPEECH, 16000).shape == (4, 76)


def test_noise_of_a_frame_is_the_same_in_all_chunks() -> None:
    features = np.zeros((4, 150), np.float32)
    arguments = {"mel": None, "prediction": "velocity", "temperature": 0.5, "seed": 3}
    long = build(Still(), chunk_frames=500, **arguments).from_features(features)
    np.testing.assert_allclose(build(Still(), **arguments).from_features(features), long, atol=1e-5)
    assert not np.array_equal(build(Still(), **{**arguments, "seed": 4}).from_features(features), long)
    noise = (long - fitted().mean[:, None].numpy()) / fitted().deviation[:, None].numpy()
    assert 0.45 < noise.std() < 0.55


def test_without_temperature_the_start_is_the_mean() -> None:
    result = build(Still(), prediction="velocity").from_features(np.zeros((4, 3), np.float32))
    np.testing.assert_allclose(result, fitted().mean[:, None].expand(4, 3).numpy())


@pytest.mark.parametrize("prediction", ["velocity", "x1", "noise"])
def test_an_item_does_not_depend_on_its_batch(prediction: str) -> None:
    settings = {"solver": Solver("midpoint", 3), "guidance": Guidance(1.7), "temperature": 0.8}

    def restore(net: SequenceNet, *batch: Tensor | None) -> Tensor:
        return build(net, prediction=prediction, **settings).restore(*batch)

    condition, noise = torch.randn(2, 2, 4, 9, generator=torch.Generator().manual_seed(0))
    condition[1, :, 5:] = torch.nan
    together = exactly(restore, random_net(), condition, torch.tensor([9, 5]), noise)
    alone = exactly(restore, random_net(), condition[1:, :, :5], None, noise[1:, :, :5])
    torch.testing.assert_close(together[1:, :, :5], alone, atol=1e-10, rtol=1e-10)
    assert not together[1, :, 5:].any()


def test_guidance_changes_the_result() -> None:
    features = whole_mel(SPEECH)[:, :20]
    plain, guided = (build(random_net(), guidance=each).from_features(features) for each in (None, Guidance(2.0)))
    assert not np.allclose(plain, guided)
    np.testing.assert_allclose(build(random_net(), guidance=Guidance(1.0)).from_features(features), plain, atol=1e-5)


def test_files_are_restored_for_the_vocoder(tmp_path: Path) -> None:
    files.write(tmp_path / "a.wav", SPEECH, RATE, "FLOAT")
    facts = build(Copy()).process_file(tmp_path / "a.wav", tmp_path / "a.npy")
    assert (facts["frames"], facts["channels"], facts["sample_rate"]) == (151, 4, RATE)
    mel = np.load(tmp_path / "a.npy")
    assert mel.dtype == np.float32
    np.testing.assert_allclose(mel, whole_mel(SPEECH), atol=2e-4)
    vocoder = Vocoder(Generator(4, 8, (8, 8), (16, 16), "2", (3,), ((1, 2),)), MEL)
    vocoder.process_file(tmp_path / "a.npy", tmp_path / "again.wav")
    assert files.info(tmp_path / "again.wav").samples == 151 * 64


def test_feature_files_become_feature_files(tmp_path: Path) -> None:
    features = whole_mel(SPEECH)
    np.save(tmp_path / "in.npy", features[None].astype(np.float16))
    assert build(Copy()).process_file(tmp_path / "in.npy", tmp_path / "out.npy") == {"frames": 151, "channels": 4}
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), features, atol=5e-3)


@pytest.mark.parametrize("mel", [MEL, None])
def test_example_and_dry_run(mel: LogMel | None, tmp_path: Path) -> None:
    restorer = build(Copy(), mel)
    path = restorer.write_example(tmp_path / "deep" / "a")
    assert path.suffix == (".npy" if mel is None else ".wav")
    assert restorer.process_file(path, tmp_path / "out.npy")["frames"] > 0
    assert "1 prediction of shape (4, " in restorer.dry_run()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    restorer = build(Copy())
    (tmp_path / "bad.npy").write_bytes(b"no input")
    np.save(tmp_path / "wide.npy", np.zeros((5, 3), np.float32))
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "nan.npy", np.full((4, 3), np.nan, np.float32))
    for name, message in (("bad", "not an array"), ("wide", r"\(4, F\), found \(5, 3\)"), ("flat", r"found \(3,\)")):
        with pytest.raises(ValueError, match=message):
            restorer.process_file(tmp_path / f"{name}.npy", tmp_path / "out.npy")
    with pytest.raises(ValueError, match="NaN or infinite"):
        restorer.process_file(tmp_path / "nan.npy", tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()
    with pytest.raises(ValueError, match="takes features"):
        build(Copy(), None)(SPEECH, RATE)
    with pytest.raises(ValueError, match=r"found shape \(0,\)|with samples"):
        restorer(SPEECH[:0], RATE)
    assert load_features(tmp_path / "wide.npy").shape == (5, 3)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="temperature is at least 0"):
        build(Copy(), temperature=-1.0)
    with pytest.raises(ValueError, match="overlap_frames is at least 6"):
        build(Copy(), overlap_frames=4)
    with pytest.raises(ValueError, match="at most half a chunk"):
        build(Copy(), overlap_frames=30)
    with pytest.raises(ValueError, match="the mel has 4 bands"):
        SequenceRestorer(SequenceNet(4, 5, 4, 1, 1), ConditionalOT(), Normaliser(4, 5), MEL)
    with pytest.raises(ValueError, match=r"net \(4, 4\), normaliser \(4, 5\)"):
        SequenceRestorer(Copy(), ConditionalOT(), Normaliser(4, 5))
    with pytest.raises(ValueError, match="no statistics"):
        SequenceRestorer(Copy(), ConditionalOT(), Normaliser(4, 4)).restore(torch.zeros(1, 4, 3))
    with pytest.raises(ValueError, match="noise is needed"):
        build(Copy(), temperature=1.0).restore(torch.zeros(1, 4, 3))
