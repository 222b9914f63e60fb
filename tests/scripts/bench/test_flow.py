"""What a benchmark compares computes the same."""

from functools import partial

import torch
from torch import nn

from scripts.bench import flow as benchmark
from scripts.bench.flow import PlainStep
from zoo.flow import ConditionalOT, FlowTask, Guidance, UNet, UniformTimes
from zoo.flow.process.guidance import velocity_field
from zoo.training.schedules import WarmupConstant


def build_task() -> FlowTask:
    torch.manual_seed(0)
    net = UNet(4, 1, 4, (1,), (), 1, dropout=0.0, num_classes=2)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)  # at its start a net predicts nothing
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    return FlowTask(net, ConditionalOT(0.1), UniformTimes(), optimizer, scheduler=WarmupConstant, label_drop=0.5)


def build_plain(task: FlowTask) -> PlainStep:
    images = torch.randn(10, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return PlainStep(task, images, torch.arange(10) % 2 + 1, batch_size=4, clip=1.0, decay=0.9)


def test_plain_loop_and_task_have_the_same_loss_and_gradient() -> None:
    task = build_task()
    plain = build_plain(task)
    x1, label = plain.batch()
    x0, t = torch.randn_like(x1), torch.tensor([0.0, 0.3, 0.6, 0.9])
    losses = task.loss(x1, x0, t, label), plain.loss(x1, x0, t, label)
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(task.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_both_ways_of_guiding_agree() -> None:
    task = build_task().eval()
    label, x = torch.tensor([1, 2, 1]), torch.randn(3, 1, 4, 4)
    joint = velocity_field(task.net, task.path, label, Guidance(benchmark.SCALE))
    with torch.no_grad():
        torch.testing.assert_close(joint(0.4, x), benchmark.two_passes(task, label)(0.4, x))
        assert not torch.allclose(joint(0.4, x), velocity_field(task.net, task.path, label)(0.4, x))
