"""Log-mels through the autoencoder: chunks, lengths, files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.audiosr.task_parts import AUTOENCODER, RATE, features
from zoo.audio.analysis.features import load_features
from zoo.audio.io import files
from zoo.audiosr.inference.reconstruct import Reconstructor
from zoo.blocks.autoencoder import AutoencoderKL, posterior_mean


def test_one_chunk_is_the_autoencoder_itself() -> None:
    net = AutoencoderKL(**AUTOENCODER).eval()
    audio = np.random.default_rng(0).normal(0, 0.1, 6400).astype(np.float32)
    mel = features()(torch.from_numpy(audio)[None, None])
    with torch.no_grad():
        expected = net.decode(posterior_mean(net.encode(mel)))[0, 0].T.numpy()
    np.testing.assert_allclose(Reconstructor(net, features())(audio, RATE), expected, atol=1e-5)


@pytest.mark.parametrize("samples", [100, 6401, 20000])
def test_files_of_any_length_and_rate(samples: int, tmp_path: Path) -> None:
    model = Reconstructor(AutoencoderKL(**AUTOENCODER).eval(), features(), chunk_seconds=0.32)
    audio = np.random.default_rng(0).normal(0, 0.1, (2, samples)).astype(np.float32)
    files.write(tmp_path / "a.wav", audio, 8000)
    facts = model.process_file(tmp_path / "a.wav", tmp_path / "a.npy")
    written = load_features(tmp_path / "a.npy")
    assert written.shape == (32, -(-2 * samples // 160)) and facts["frames"] == written.shape[1]
    np.testing.assert_allclose(written, model(files.read(tmp_path / "a.wav")[0], 8000), atol=1e-6)
