from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from zoo.flow.evaluation import inception
from zoo.flow.evaluation.inception import AFHQInception, load_inception, read_weights

# children of torchvision.models.inception_v3(), in its order
TORCHVISION = (
    "Conv2d_1a_3x3 Conv2d_2a_3x3 Conv2d_2b_3x3 maxpool1 Conv2d_3b_1x1 Conv2d_4a_3x3 maxpool2 Mixed_5b Mixed_5c "
    "Mixed_5d Mixed_6a Mixed_6b Mixed_6c Mixed_6d Mixed_6e AuxLogits Mixed_7a Mixed_7b Mixed_7c avgpool dropout fc"
).split()


class Block(nn.Module):
    """Stands in for a layer of torchvision's: multiplies by its number."""

    def __init__(self, number):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.eye(3).reshape(3, 3, 1, 1) * number)

    def forward(self, x):
        return self.conv(x)


def stand_in(**options):
    net = nn.Module()
    for number, name in enumerate(TORCHVISION, start=1):
        pool = nn.AdaptiveAvgPool2d(1) if name == "avgpool" else nn.MaxPool2d(3, 2)
        net.add_module(name, pool if "pool" in name else Block(number))
    return net


def weights(net):
    return {key: value.clone() for key, value in net.state_dict().items()}


def test_all_layers_of_torchvision_are_used_once_in_order_or_named_as_unused():
    used = [name for names in inception.BLOCKS.values() for name in names]
    assert [name for name in TORCHVISION if name not in inception.UNUSED] == used
    assert set(used) | set(inception.UNUSED) == set(TORCHVISION)


def test_torchvisions_own_net_is_taken_apart_as_expected():
    models = pytest.importorskip("torchvision.models")  # the extra images
    with torch.device("meta"):
        net = AFHQInception(models.inception_v3(weights=None, aux_logits=False, init_weights=False))
        features = net.eval()(torch.zeros(2, 1, 8, 8))
    assert features.shape == (2, 2048) and net.logits(features).shape == (2, 3)


def test_names_are_those_of_the_assignments_file():
    names = {key.rpartition(".conv.")[0] for key in AFHQInception(stand_in(), dims=3).state_dict()} - {""}
    counts = {"block1": 3, "block2": 2, "block3": 8, "block4": 3}
    assert names == {f"{block}.{index}" for block, count in counts.items() for index in range(count)}


def test_features_run_through_every_layer_at_256_pixels():
    net = AFHQInception(stand_in(), dims=3).eval()
    seen = []
    net.block1[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    features = net(torch.full((2, 1, 8, 8), 0.5))
    product = 1.0
    for number, name in enumerate(TORCHVISION, start=1):
        product *= 1 if "pool" in name or name in inception.UNUSED else number
    assert seen == [torch.Size([2, 3, 256, 256])]
    assert torch.allclose(features, torch.full((2, 3), 0.5 * product), rtol=1e-5)
    assert net.logits(features).shape == (2, 3)


def test_a_trunk_without_a_layer_is_refused():
    trunk = stand_in()
    del trunk.Mixed_6a
    with pytest.raises(ValueError, match="it has no Mixed_6a"):
        AFHQInception(trunk, dims=3)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_files_are_read(tmp_path, prefix):
    state = weights(AFHQInception(stand_in(), dims=3))
    torch.save({"state_dict": {prefix + key: value for key, value in state.items()}}, tmp_path / "w.ckpt")
    torch.save(state, tmp_path / "flat.ckpt")
    for name in ("w.ckpt", "flat.ckpt"):
        read = read_weights(tmp_path / name)
        assert read.keys() == state.keys() and all(torch.equal(read[key], state[key]) for key in state)


def test_other_files_are_refused(tmp_path):
    state = weights(AFHQInception(stand_in(), dims=3))
    del state["block3.7.conv.weight"]
    torch.save({**state, "head.weight": torch.zeros(1)}, tmp_path / "w.ckpt")
    with pytest.raises(ValueError, match=r"w.ckpt is no weights .* missing block3.7, unknown head"):
        read_weights(tmp_path / "w.ckpt")
    torch.save([1], tmp_path / "list.ckpt")
    with pytest.raises(ValueError, match="expected tensors by name, found list"):
        read_weights(tmp_path / "list.ckpt")


def test_loading_with_a_stand_in_for_torchvision(tmp_path, monkeypatch):
    models = type(sys)("torchvision.models")
    models.inception_v3 = stand_in
    monkeypatch.setitem(sys.modules, "torchvision", type(sys)("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(inception, "DIMS", 3)
    monkeypatch.setattr(AFHQInception.__init__, "__defaults__", (3, 3))
    state = weights(AFHQInception(stand_in(), num_classes=4))
    torch.save(state, tmp_path / "w.ckpt")
    net = load_inception(tmp_path / "w.ckpt")
    assert net.num_classes == 4 and not net.training
    state["block1.0.conv.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.ckpt")
    with pytest.raises(ValueError, match=r"^[^\n]*w.ckpt does not fit torchvision's Inception-v3[^\n]*$"):
        load_inception(tmp_path / "w.ckpt")


def test_without_torchvision_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    torch.save(weights(AFHQInception(stand_in(), dims=3)), tmp_path / "w.ckpt")
    with pytest.raises(ImportError, match=r"pip install zoo\[images\]"):
        load_inception(tmp_path / "w.ckpt")
