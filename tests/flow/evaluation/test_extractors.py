from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from zoo.flow.evaluation import extractors
from zoo.flow.evaluation.extractors import Pixels, TorchScriptExtractor, cached_features, extract


class Pool(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


class Map(nn.Module):
    def forward(self, images):
        return images


def script(path, net, channels=3, size=4):
    torch.jit.trace(net, torch.zeros(2, channels, size, size)).save(str(path))
    return path


def pixels(count=5, size=4, channels=1):
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def test_pixels_are_the_values_in_order():
    values = pixels(3)
    features = extract(Pixels(16), values, batch_size=2)
    assert torch.equal(features, torch.from_numpy(values.reshape(3, 16)).float() / 127.5 - 1)
    with pytest.raises(ValueError, match="images of 16 values"):
        extract(Pixels(16), pixels(2, size=5))


def test_a_torchscript_net_gets_its_size_and_channels(tmp_path):
    net = TorchScriptExtractor(script(tmp_path / "net.pt", Pool()), resolution=4)
    assert net.dims == 3
    grey = np.tile(pixels(5, size=1), (1, 8, 8, 1))
    features = extract(net, grey, batch_size=2)
    expected = torch.from_numpy(grey).float().mean(dim=(1, 2, 3)) / 127.5 - 1
    assert features.shape == (5, 3) and torch.equal(features[:, 0], features[:, 2])
    assert torch.allclose(features[:, 0], expected, atol=1e-6)


def test_torchscript_identity_follows_file_and_resolution(tmp_path):
    path = script(tmp_path / "net.pt", Pool())
    names = {TorchScriptExtractor(path, size).identity() for size in (4, 4, 8)}
    assert len(names) == 2


def test_files_that_are_no_feature_net_are_refused(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights.pt: not a TorchScript file; save"):
        TorchScriptExtractor(tmp_path / "weights.pt", 4)
    with pytest.raises(FileNotFoundError, match=r"gone.pt"):
        TorchScriptExtractor(tmp_path / "gone.pt", 4)
    with pytest.raises(ValueError, match=r"expected features \(B, dims\) of 2 images, found shape \(2, 3, 4, 4\)"):
        TorchScriptExtractor(script(tmp_path / "map.pt", Map()), 4)
    torch.export.save(torch.export.export(Pool(), (torch.zeros(2, 3, 4, 4),)), tmp_path / "net.pt2")
    with pytest.raises(ValueError, match="not a TorchScript file"):
        TorchScriptExtractor(tmp_path / "net.pt2", 4)


def test_a_torchscript_net_of_another_number_of_channels_is_named(tmp_path):
    path = script(tmp_path / "net.pt", nn.Sequential(nn.Conv2d(1, 2, 3), Pool()), channels=1)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4, 4\)"):
        TorchScriptExtractor(path, 4)
    assert TorchScriptExtractor(path, 4, channels=1).dims == 2


def test_extract_refuses_floats_and_features_that_are_not_finite():
    with pytest.raises(ValueError, match=r"uint8, N >= 1, found \(2, 4, 4, 1\) float32"):
        extract(Pixels(16), pixels(2).astype(np.float32))

    class Broken(Pixels):
        def forward(self, images):
            return super().forward(images) / 0

    with pytest.raises(ValueError, match="Broken gives features that are not finite"):
        extract(Broken(16), pixels(2))


def test_features_are_computed_once_per_images_and_extractor(tmp_path, monkeypatch):
    first = cached_features(Pixels(16), pixels(3), tmp_path)
    calls = []
    monkeypatch.setattr(extractors, "extract", lambda *args: calls.append(1) or extract(*args))
    assert torch.equal(cached_features(Pixels(16), pixels(3), tmp_path), first) and not calls
    cached_features(Pixels(16), pixels(4), tmp_path)
    assert len(calls) == 1


def test_feature_files_there_and_back_and_broken(tmp_path):
    features = torch.randn(3, 2)
    extractors.write_features(tmp_path / "f.npz", features, [1, 2, 1])
    back, labels = extractors.read_features(tmp_path / "f.npz")
    assert torch.equal(back, features) and labels == [1, 2, 1]
    np.savez(tmp_path / "g.npz", features=np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match=r"g.npz: expected features \(N, D\), finite floats"):
        extractors.read_features(tmp_path / "g.npz")
    np.savez(tmp_path / "h.npz", features=np.zeros((2, 2)), labels=[0, 1])
    with pytest.raises(ValueError, match=r"h.npz: expected labels"):
        extractors.read_features(tmp_path / "h.npz")
    (tmp_path / "i.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"i.npz: cannot be read"):
        extractors.read_features(tmp_path / "i.npz")


def test_identity_follows_the_weights():
    class Net(extractors.Extractor):
        def __init__(self):
            super().__init__()
            self.dims = 2
            self.layer = nn.Linear(2, 2)

    torch.manual_seed(0)
    one, other = Net(), Net()
    assert one.identity() == one.identity() != other.identity()
