import pytest
import torch

from zoo.flow.data.augmentation import Augmentation
from zoo.flow.data.datamodule import ImageData
from zoo.flow.data.latents import LatentData
from zoo.flow.nets.unet import UNet
from zoo.flow.process.coupling import PooledTransport
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.time_samplers import UniformTimes
from zoo.flow.task import FlowTask


def digits(**options):
    data = ImageData(image_resolution=8, channels=1, max_per_class=20, **options)
    data.setup("fit")
    return data


def test_shifts_are_whole_pixels_where_they_are_asked_for():
    images = torch.rand(3, 2, 8, 8) * 2 - 1
    how = torch.zeros(3, 6)
    how[1, 4], how[2, 5] = 1.0, -1.0  # the first stays, the second goes right, the third up
    found = Augmentation(shift=1 / 8, padding="dark")(images, how)
    assert torch.equal(found[0], images[0])
    torch.testing.assert_close(found[1, :, :, 1:], images[1, :, :, :-1])
    torch.testing.assert_close(found[2, :, :-1], images[2, :, 1:])
    assert found[1, :, :, 0].max() == -1
    edge = Augmentation(shift=1 / 8)(images, how)
    torch.testing.assert_close(edge[1, :, :, 0], images[1, :, :, 0])


def test_a_quarter_turn_and_twice_the_size():
    image = torch.full((1, 1, 8, 8), -1.0)
    image[0, 0, :4, :4] = 1.0  # the upper left quarter
    turned = Augmentation(rotation=90, padding="dark")(image, torch.tensor([[1.0, 0, 0, 0, 0, 0]]))
    assert turned[0, 0, 1, 6] == pytest.approx(1, abs=1e-5) and turned[0, 0, 1, 1] == pytest.approx(-1, abs=1e-5)
    dot = torch.full((1, 1, 8, 8), -1.0)
    dot[0, 0, 3:5, 3:5] = 1.0
    larger = Augmentation(scale=0.7, padding="dark")(dot, torch.tensor([[0.0, 1, 0, 0, 0, 0]]))
    assert (larger + 1).sum() / (dot + 1).sum() == pytest.approx(4.0, rel=0.05)


def test_what_is_done_belongs_to_the_item():
    drawn = Augmentation(0.4).drawn(range(4000))
    done = drawn.any(dim=1)
    assert done.float().mean() == pytest.approx(0.4, abs=0.03) and drawn.abs().max() <= 1
    assert drawn[done].mean(dim=0).abs().max() < 0.06
    assert torch.equal(Augmentation(0.4).drawn([7, 5]), drawn[[7, 5]])
    assert not Augmentation(0.0).drawn(range(50)).any()


def test_items_are_augmented_in_training_alone_and_say_how():
    plain, data = digits().train_set, digits(augmentation=Augmentation(0.5), pooled=PooledTransport()).train_set
    keys = [(3, item) for item in range(40)]
    batch, before = data.__getitems__(keys), plain.__getitems__(keys)
    changed = batch["augmentation"].any(dim=1)
    assert 0 < changed.sum() < 40
    assert torch.equal((batch["x1"] != before["x1"]).flatten(1).any(dim=1), changed)
    assert torch.equal(batch["x1"], Augmentation(0.5)(before["x1"], batch["augmentation"]))
    one = data[3, 7]
    assert torch.equal(one["x1"], batch["x1"][7]) and torch.equal(one["augmentation"], batch["augmentation"][7])
    assert not torch.equal(data.__getitems__([(4, item) for item in range(40)])["x1"], batch["x1"])
    evaluated = data.__getitems__([1, 2])
    assert "augmentation" not in evaluated and torch.equal(evaluated["x1"], plain.__getitems__([1, 2])["x1"])


def test_the_net_is_told_and_nothing_said_is_nothing_done():
    torch.manual_seed(0)
    net = UNet(8, 1, 8, (1, 2), (), 1, 0.0, 10, augmentations=6).eval()
    torch.nn.init.normal_(net.tail[-1].weight)
    torch.nn.init.normal_(net.tail[-1].bias)
    x, t, label = torch.randn(4, 1, 8, 8), torch.rand(4), torch.arange(1, 5)
    zeros = net(x, t, label, {"augmentation": torch.zeros(4, 6)})
    assert torch.equal(net(x, t, label), zeros)
    assert not torch.allclose(net(x, t, label, {"augmentation": torch.ones(4, 6)}), zeros)
    task = FlowTask(net, ConditionalOT(0.0), UniformTimes(), torch.optim.SGD, label_drop=0.0)
    task.log_terms = lambda *args, **kwargs: None
    batch = digits(augmentation=Augmentation(1.0)).train_set.__getitems__([(0, item) for item in range(4)])
    task.training_step(batch, 0).backward()
    assert net.augmentation_embedding.weight.grad.abs().max() > 0


def test_augmentation_that_would_leak_is_refused():
    net = UNet(8, 1, 8, (1, 2), (), 1, 0.0, 10)
    task = FlowTask(net, ConditionalOT(0.0), UniformTimes(), torch.optim.SGD)
    with pytest.raises(ValueError, match="tells a net 6 numbers"):
        task._check_augmentation(Augmentation())
    with pytest.raises(ValueError, match="latents are encoded once"):
        LatentData(ImageData(image_resolution=8, channels=1, augmentation=Augmentation()))
    with pytest.raises(ValueError, match="probability"):
        Augmentation(1.5)
    with pytest.raises(ValueError, match="padding"):
        Augmentation(padding="bright")
