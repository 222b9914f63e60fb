"""Average velocities, on Gaussian data whose flow is known."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zoo.flow import ConditionalOT, DiT, Guidance, Inpainting, MeanFlowTask, Solver, UniformTimes, VelocityNet
from zoo.flow.evaluation.solver_tables import evaluate_straightness
from zoo.flow.inference.sampler import MeanFlowSampler
from zoo.flow.losses import mean_flow_target, sample_intervals
from zoo.flow.process.sampling import invert
from zoo.training.resume import item_seed

MEAN, DEVIATION = 1.5, 0.4  # of the data, in each coordinate


def spread(t: Tensor) -> Tensor:
    return (t**2 * DEVIATION**2 + (1 - t) ** 2).sqrt()


def velocity(x: Tensor, t: Tensor) -> Tensor:
    """The exact field of Gaussian data."""
    t = t[:, None]
    return MEAN + (t * DEVIATION**2 - (1 - t)) / spread(t) ** 2 * (x - t * MEAN)


def average(x: Tensor, t: Tensor, span: Tensor) -> Tensor:
    """The exact average velocity: the flow's map, by the time it takes."""
    t, span = t[:, None], span[:, None]
    end = t + span
    return (end * MEAN + spread(end) / spread(t) * (x - t * MEAN) - x) / span


def points(count: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    t, span = torch.rand(2, count, generator=generator, dtype=torch.float64)
    return x, 0.9 * t, 0.05 + (0.95 - 0.9 * t) * span


def test_a_compiled_net_is_compiled_after_a_derivative():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    class Product(nn.Module):
        def forward(self, x: Tensor, t: Tensor, span: Tensor) -> Tensor:
            return x * (t * span)[:, None]

    net, (x, t, span) = Product(), points(4)
    net.compile(backend=backend)
    mean_flow_target(net, x, t, span, velocity(x, t))
    assert not compiled
    net(x, t, span)
    assert len(compiled) == 1


def test_the_exact_average_is_its_own_target():
    x, t, span = points()
    target, result = mean_flow_target(average, x, t, span, velocity(x, t))
    torch.testing.assert_close(target, result, atol=1e-8, rtol=0)
    wrong, _ = mean_flow_target(lambda *inputs: 1.1 * average(*inputs), x, t, span, velocity(x, t))
    assert (wrong - 1.1 * result).abs().max() > 1e-2


def test_no_span_is_flow_matching_and_derivatives_are_those_of_differences():
    torch.manual_seed(0)
    net = DiT(4, 1, depth=1, dim=16, heads=2, num_classes=2, spans=True)
    assert (net.time_scale, DiT(4, 1, depth=1, dim=16, heads=2).time_scale) == (1, 1000)
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    x, v = torch.randn(2, 3, 1, 4, 4)
    label = torch.tensor([1, 2, 0])

    def call(x: Tensor, t: Tensor, span: Tensor) -> Tensor:
        return net(x, t, label, {"span": span})

    t, span = torch.tensor([0.1, 0.3, 0.5]), torch.tensor([0.0, 0.4, 0.5])
    target, result = mean_flow_target(call, x, t, span, v)
    assert torch.equal(target[0], v[0]) and not target.requires_grad
    step = 1e-2
    with torch.no_grad():
        ahead = call(x + step * v, t + step, span - step)
        behind = call(x - step * v, t - step, span + step)
        slope = (ahead - behind) / (2 * step)
        torch.testing.assert_close(result, call(x, t, span), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(target, v + span[:, None, None, None] * slope, atol=5e-3, rtol=5e-3)


class Oracle(VelocityNet):
    num_classes, sample_shape, condition_shapes = 0, (2,), {"span": ()}

    def forward(self, x: Tensor, t: float, label: Tensor | None = None, conditions: Any = None) -> Tensor:
        return average(x, torch.full_like(conditions["span"], t), conditions["span"])


@pytest.mark.parametrize("steps", [1, 3])
def test_any_number_of_steps_ends_at_the_flow(steps):
    x0 = torch.randn(50, 2, dtype=torch.float64)
    solver = Solver("euler", steps)
    result = solver.solve(MeanFlowSampler(Oracle(), ConditionalOT(0.0), solver).field(), x0)
    torch.testing.assert_close(result.x, MEAN + DEVIATION * x0)
    assert result.nfe == steps


class Labels(Oracle):
    num_classes = 1

    def forward(self, x: Tensor, t: float, label: Tensor | None = None, conditions: Any = None) -> Tensor:
        assert label is not None
        return label[:, None].expand_as(x).float()


@pytest.mark.parametrize(("null_mode", "shift"), [("label0", 3.0), ("none", -1.0 + 3.0 * 2.0)])
def test_guidance_takes_the_branch_that_it_names(null_mode, shift):
    sampler = MeanFlowSampler(Labels(), ConditionalOT(0.0), guidance=Guidance(3.0, null_mode))
    torch.testing.assert_close(sampler.sample([1], [0]), sampler.noise([0]) + shift)


def test_intervals_belong_to_the_item():
    seeds = [item_seed(0, 0, item) for item in range(2000)]
    t, span, remaining = sample_intervals(UniformTimes(), 0.5, 0.25, seeds)
    apart = [sample_intervals(UniformTimes(), 0.5, 0.25, [seed]) for seed in seeds[:20]]
    assert [float(each[1]) for each in apart] == span[:20].tolist()
    assert (span > 0).float().mean().item() == pytest.approx(0.25, abs=0.03) and bool((t + span < 1).all())
    assert remaining.float().mean().item() == pytest.approx(0.5, abs=0.04)
    assert not sample_intervals(UniformTimes(), 0.0, 0.0, [1, 2])[1].any()


class SmallNet(VelocityNet):
    sample_shape, num_classes, condition_shapes = (2,), 0, {"span": ()}

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)]
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None, conditions: Any = None) -> Tensor:
        return self.net(torch.cat([x, t[:, None], conditions["span"][:, None]], dim=1))


def test_the_sampler_takes_one_euler_step_and_no_other_net():
    parts = SmallNet(), ConditionalOT(0.0)
    sampler = MeanFlowSampler(*parts)
    assert (sampler.solver.method, sampler.solver.steps) == ("euler", 1)
    exact = MeanFlowSampler(Oracle(), ConditionalOT(0.0))
    for call, message in (
        (lambda: MeanFlowSampler(*parts, solver=Solver("heun2", 2)), r"solver\.method"),
        (lambda: invert(exact.field(), torch.zeros(1, 2), exact.solver), "no way back"),
        (lambda: evaluate_straightness(exact, None, [1]), "no velocity"),
        (lambda: MeanFlowSampler(*parts, image_condition=Inpainting()), "neither texts nor images"),
        (lambda: MeanFlowSampler(*parts, guidance=Guidance()), "guidance"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
def test_training_finds_the_map_of_one_step():
    """Against the flow's map; a share of 0, flow matching alone, leaves spans untrained."""
    errors = {}
    for share in (0.0, 0.5):
        torch.manual_seed(0)
        net = SmallNet()
        adam = torch.optim.Adam(net.parameters(), 3e-3)
        parts = net, ConditionalOT(0.0), UniformTimes()
        task = MeanFlowTask(*parts, lambda _, made=adam: made, label_drop=0.0, share=share, power=0.0)
        task.log_terms = lambda *args, **kwargs: None
        for step in range(800):
            adam.param_groups[0]["lr"] = 3e-3 * (1 - step / 800)
            seeds = [item_seed(0, 0, 256 * step + item) for item in range(256)]
            batch = {"x1": MEAN + DEVIATION * torch.randn(256, 2), "x0": torch.randn(256, 2), "seeds": seeds}
            adam.zero_grad()
            task.training_step({**batch, "label": torch.zeros(256, dtype=torch.int64)}, 0).backward()
            adam.step()
        x0 = torch.randn(2000, 2)
        with torch.no_grad():
            result = x0 + net(x0, torch.zeros(2000), None, {"span": torch.ones(2000)})
        errors[share] = float((result - MEAN - DEVIATION * x0).square().mean().sqrt())
    assert errors[0.5] < 0.1 < 0.3 < errors[0.0]
