"""EnCodec as a front end: transformers' own codes and embeddings, bandwidths, odd lengths, refusals."""

import numpy as np
import pytest
import torch

from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.hifigan.nets.vocos import Vocos

TINY = {
    "upsampling_ratios": [5, 4, 2], "num_filters": 4, "hidden_size": 12, "codebook_size": 16, "num_lstm_layers": 1,
    "target_bandwidths": [2.5, 5.0, 7.5, 7.6, 24.0],
}  # fmt: skip


@pytest.fixture(scope="module")
def codec() -> EncodecFeatures:
    return EncodecFeatures(config=TINY, bandwidths=TINY["target_bandwidths"][:4])


@pytest.mark.parametrize("samples", [4000, 1237, 60, 1])
def test_codes_and_features_are_those_of_transformers(codec, samples):
    audio = torch.randn(2, samples) / 4
    for number, bandwidth in enumerate(codec.bandwidths):
        codes = codec.codes(audio, number)
        assert codes.shape == (min(number + 1, 3), 2, -(-max(samples, codec.min_samples) // 40))
        if samples >= codec.min_samples:
            reference = codec.model.encode(audio[:, None], bandwidth=bandwidth).audio_codes[0].transpose(0, 1)
            assert torch.equal(codes, reference)
        torch.testing.assert_close(codec.embed(codes), codec.model.quantizer.decode(codes))
    assert torch.equal(codec.embed(codes[:, :1])[0], codec.embed(codes[:, 0])[0])


def test_a_vocoder_has_one_of_its_bandwidths(codec, tmp_path):
    torch.manual_seed(0)
    net = Vocos(12, 16, 20, 1, 160, 40, "same", conditions=4).eval()
    for norm in (net.backbone.norm, net.backbone.convnext[0].norm):
        torch.nn.init.normal_(norm.scale.weight)
    audio = np.random.default_rng(0).normal(0, 0.1, 3001).astype(np.float32)
    low, high = (Vocoder(net, codec, bandwidth=bandwidth) for bandwidth in (2.5, None))
    assert low(audio, 24000).shape == (3001,) and not np.allclose(low(audio, 24000), high(audio, 24000))
    padded = torch.nn.functional.pad(torch.from_numpy(audio)[None], (0, -len(audio) % 40))
    features = codec(padded, 3)
    with torch.no_grad():
        required = net(features, torch.tensor(3))[0, 0, :3001].numpy()
    np.testing.assert_allclose(high(audio, 24000), required, atol=1e-6)
    np.testing.assert_allclose(high.from_mel(features[0].numpy())[:3001], required, atol=1e-6)
    pieces = np.concatenate(list(high.stream(np.split(features[0].numpy(), [30], 1))))
    np.testing.assert_allclose(pieces[:3001], required, atol=1e-6)
    assert high.onnx_graph().examples


def test_what_does_not_fit_is_refused(codec):
    for make, message in (
        (lambda: EncodecFeatures(config=TINY, bandwidths=[3.0]), r"bandwidths: \[3.0\]"),
        (lambda: EncodecFeatures(config={**TINY, "audio_channels": 2}, bandwidths=[2.5]), "one channel"),
        (lambda: Vocoder(Vocos(12, 16, 20, 1, 160, 40), codec), "'bandwidths': 0"),
        (lambda: Vocoder(Vocos(12, 16, 20, 1, 160, 40, conditions=4), codec, bandwidth=3.0), "expected one of"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
