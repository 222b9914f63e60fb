from __future__ import annotations

import torch

from zoo.flow.nets.mlp import TimeLinear, ToyNet


def test_names_and_shapes():
    net = ToyNet(3, (8, 4))
    assert [key for key in net.state_dict() if key.endswith("fc.weight")] == [f"net.{i}.fc.weight" for i in (0, 2, 4)]
    assert net(torch.randn(5, 3), torch.rand(5)).shape == (5, 3)
    assert net.sample_shape == (3,) and net.num_classes == 0


def test_layer_is_a_product():
    layer = TimeLinear(2, 3)
    x, t = torch.randn(4, 2), torch.rand(4)
    torch.testing.assert_close(layer(x, t), layer.fc(x) * layer.time_embedding(t))
