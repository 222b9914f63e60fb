import pytest
from torch import nn

from zoo.training.freezing import freeze


def trained(module):
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def net():
    encoder, head = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)), nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    return nn.ModuleDict({"encoder": encoder, "encoder2": nn.Linear(3, 3), "head": head})


def test_a_prefix_ends_at_a_dot_and_frozen_parts_rest_with_their_dropout():
    module = net()
    assert freeze(module, ["encoder"]) == {"encoder": 9}
    assert trained(module) == [name for name, _ in module.named_parameters() if not name.startswith("encoder.")]
    assert not module["encoder"][1].training
    assert module["encoder2"].training and module.training


def test_globs_and_whole_names():
    module = net()
    assert freeze(module, ["*.bias", "encoder2.weight"]) == {"*.bias": 3 + 3 + 1 + 1, "encoder2.weight": 9}
    assert trained(module) == ["encoder.0.weight", "head.0.weight", "head.1.weight"]
    assert not module["encoder2"].training
    assert module["head"].training and module["head"][1].training
    with pytest.raises(ValueError, match=r"group .decoder. matches no .*: encoder, encoder2, head"):
        freeze(net(), ["encoder", "decoder"])
