import pytest
import torch

from scripts.bench import audio_peers as benchmark
from scripts.bench.audio_peers_others import TransformersPackage

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
