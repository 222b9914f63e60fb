from __future__ import annotations

import pytest
import torch

from zoo.flow.nets.frozen import FrozenNet

CONFIG = {
    "class_path": "zoo.flow.DiT",
    "init_args": {"image_resolution": 4, "in_channels": 1, "depth": 1, "dim": 8, "heads": 2, "num_classes": 2},
}


def test_a_copy_is_the_same_net(tmp_path):
    first = FrozenNet(config=CONFIG, seed=3)
    assert first.is_local and not any(each.requires_grad for each in first.parameters()) and not first.train().training
    first.save_source(tmp_path)
    again = FrozenNet(str(tmp_path))
    assert again.fingerprint() == first.fingerprint() != FrozenNet(config=CONFIG).fingerprint()
    x, label = torch.randn(2, 1, 4, 4), torch.tensor([1, 0])
    assert torch.equal(first(x, 0.5, label), again.net(x, 0.5, label))


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="give source"):
        FrozenNet()
    with pytest.raises(FileNotFoundError, match="no run, checkpoint or export at"):
        FrozenNet(str(tmp_path / "none"))
