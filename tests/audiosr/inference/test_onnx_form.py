import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.audiosr.task_parts import AUTOENCODER, RATE, VOCODER, denoiser, features
from zoo.audiosr.diffusion.samplers import DDIM, row_noise
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.inference.chunks import Chunks, copied_bands, tagged
from zoo.audiosr.inference.restore import Restorer
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.training.resume import item_seed

CUTOFF_HZ, STEPS = 3000.0, 3


def restorer(fusion: str, front_end: MelFeatures, prediction: Any, rescale: float) -> Restorer:
    net = denoiser(fusion)
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():  # the last layers begin at zero
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    net.latent_scale.fill_(0.7)
    parts = FrozenAutoencoder(config=AUTOENCODER), FrozenVocoder(config=VOCODER), front_end
    return Restorer(
        net,
        *parts,
        CosineDiffusion(40, prediction),
        DDIM(STEPS),
        2.5,
        rescale,
        chunk_seconds=0.16,
        overlap_seconds=0.04,
    ).eval()


@torch.inference_mode()
def of_torch(model: Restorer, audio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the nets generate of a clip, and the noise that they start from."""
    unit = model.unit_samples
    units = -(-len(audio) // unit)
    whole = np.pad(audio, (0, units * unit - len(audio)))
    chunk = np.concatenate(list(tagged([whole[None]], units, unit)), axis=1)
    mel = model.features(torch.from_numpy(whole)[None, None])[:, :, : len(whole) // model.features.hop_length]
    copied = copied_bands(model.features, np.full(units, CUTOFF_HZ))
    encoded = None if model.net.global_encoder is None else model.net.encode_clip(mel)
    parts = (model.net, model.autoencoder, model.features, model.diffusion, model.settings, copied, encoded)
    restored = torch.from_numpy(Chunks(*parts).restore(chunk, [units]))
    wave = model.vocoder(restored.transpose(1, 2)[:, None])[0, 0, : len(audio)].numpy()
    shape = (
        model.autoencoder.latent_channels,
        model.net.unet.factor,
        model.features.n_mels // model.autoencoder.factor,
    )
    noise = next(row_noise([item_seed(model.settings.seed, 0, number) for number in range(units)], shape))
    return wave, noise.transpose(0, 1).flatten(1, 2)[None].numpy()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fusion", "kind", "prediction", "rescale"),
    [("film", "audiosr", "v", 0.5), pytest.param("none", "projectlily", "noise", 0.0, marks=pytest.mark.slow)],
)
def test_numpy_generates_what_torch_does(fusion, kind, prediction, rescale, tmp_path: Path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model = restorer(fusion, MelFeatures(kind, RATE, 512, 160, 32), prediction, rescale)
    before = copy.deepcopy(model.net.state_dict())
    differences = model.onnx_form().write(tmp_path)
    graphs = ["encoder", "decoder", "vocoder", "denoiser", *(["clip_encoder"] if fusion == "film" else [])]
    assert set(differences) == {f"{name}.onnx" for name in graphs} and max(differences.values()) <= 1e-4
    assert {path.name for path in tmp_path.iterdir()} == {*differences, "onnx_audiosr.npz", "onnx_audiosr.py"}
    torch.testing.assert_close(model.net.state_dict(), before, rtol=0, atol=0)
    spec = importlib.util.spec_from_file_location("onnx_audiosr", tmp_path / "onnx_audiosr.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    alone = module.AudioSR(tmp_path)
    for samples in (640, 1280, 1500, 2001, 2560):
        audio = (0.3 * np.random.default_rng(samples).standard_normal(samples)).astype(np.float32)
        wanted, noise = of_torch(model, audio)
        found = alone(audio, CUTOFF_HZ, noise=noise)  # in the exported sampler's steps
        assert found.shape == audio.shape and np.abs(wanted).max() > 1e-3
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
        assert np.abs(alone(audio, CUTOFF_HZ, STEPS) - wanted).max() > 0  # of other noise
    if fusion == "film":
        with pytest.raises(ValueError, match="at most 2560 samples"):
            alone(np.zeros(2561, np.float32), CUTOFF_HZ)


def test_what_cannot_be_written_is_refused():
    model = restorer("none", features(), "v", 0.0)
    model.condition_autoencoder = FrozenAutoencoder(config={**AUTOENCODER, "multipliers": [1, 2, 2]})
    with pytest.raises(ValueError, match="of another size"):
        model.onnx_form()
