import pytest
import torch

from scripts.bench import audio_peers as benchmark
from scripts.bench.audio_peers_others import MaskNet, SpectralGate, TransformersPackage

TINY = {
    "in_channels": 4, "initial_channels": 8, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4], "resblock": "1",
    "resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 3]],
}  # fmt: skip


def test_equal_weights_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"class_path": "zoo.hifigan.Generator", "init_args": TINY}
    monkeypatch.setattr(benchmark, "PEERS", {"transformers": TransformersPackage})
    monkeypatch.setattr(benchmark, "_spec", lambda name: spec)
    assert [each.value > 0 for each in benchmark.speed(True)] == [True, True]
    monkeypatch.setattr(benchmark, "share", lambda ours, theirs: None)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="other audio from the same weights"):
        benchmark.speed(True)


def test_restorers_are_of_one_size_and_keep_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "_child", lambda make, first, whole: (1.0, 2.0))
    found = {each.name: each for each in benchmark.restore(True)}
    assert set(found) == {
        f"restore, {name}" for name in ("ours, Generator", "ours, Vocos", "mask net", "spectral gate")
    }
    assert all(each.value > 0 for each in found.values())
    audio = 0.1 * torch.randn(2, 5001)
    for net in (MaskNet(2), SpectralGate()):
        assert net(audio).shape == audio.shape
    tone = 0.5 * torch.sin(torch.arange(32000) * 0.4) * (torch.arange(32000) > 16000)
    noise = 0.02 * torch.randn(32000)
    left = SpectralGate()((tone + noise)[None])[0] - tone
    assert left[:15000].square().mean() < 0.25 * noise[:15000].square().mean()
