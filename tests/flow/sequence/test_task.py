from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zoo.audio.analysis.mel import LogMel
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.solvers import Solver
from zoo.flow.process.time_samplers import UniformTimes
from zoo.flow.sequence.net import Normaliser, SequenceNet
from zoo.flow.sequence.task import SequenceTask, masked_mean

LENGTHS = [6, 4, 2]


class Spy(SequenceNet):
    """Predicts the condition and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__(2, 2, dim=4, layers=1, heads=1)
        self.calls: list[tuple[Any, ...]] = []

    def forward(self, x: Tensor, t: Tensor, condition: Tensor, *rest: Tensor) -> Tensor:
        self.calls.append((x, t, *rest))
        return condition


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 3e-3)


def build(net: SequenceNet, fitted: bool = True, **kwargs: object) -> SequenceTask:
    normaliser = Normaliser(net.channels, net.condition_channels)
    if fitted:
        generator = torch.Generator().manual_seed(9)
        clean, degraded = (torch.randn(n, 50, generator=generator) for n in (net.channels, net.condition_channels))
        normaliser.fit([(3 * clean - 5, 3 * degraded - 5)])
    task = SequenceTask(net, ConditionalOT(0.0), UniformTimes(), normaliser, adam, **kwargs)
    task.log_terms = lambda *args, **kwargs: None
    return task


def make(seed: int = 0, channels: int = 2) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    x1, condition, x0 = torch.randn(3, len(LENGTHS), channels, max(LENGTHS), generator=generator)
    outside = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None, None]
    batch = {"x1": 3 * x1 - 5, "condition": 3 * condition - 5, "x0": x0}
    batch = {key: value.masked_fill(outside, 0) for key, value in batch.items()}
    return {**batch, "lengths": torch.tensor(LENGTHS), "seeds": [7, 8, 9]}


def item(batch: dict[str, Any], i: int) -> dict[str, Any]:
    frames = LENGTHS[i]
    cut = {key: batch[key][i : i + 1, :, :frames] for key in ("x1", "condition", "x0")}
    return {**cut, "lengths": torch.tensor([frames]), "seeds": batch["seeds"][i : i + 1]}


def test_masked_mean_counts_valid_frames_only() -> None:
    values = torch.tensor([[[1.0, 2.0]], [[3.0, 100.0]]])
    assert masked_mean(values, torch.tensor([2, 1])) == 2


def test_loss_is_the_error_of_the_velocity_over_valid_frames() -> None:
    task, batch = build(Spy()), make()
    x1 = (batch["x1"] - task.normaliser.mean[:, None]) / task.normaliser.deviation[:, None]
    condition = task.normaliser.normalise_condition(batch["condition"])
    squares = (condition - (x1 - batch["x0"])).square()
    total = sum(float(squares[i, :, :n].sum()) for i, n in enumerate(LENGTHS))
    torch.testing.assert_close(task.training_step(batch, 0), torch.tensor(total / (sum(LENGTHS) * 2)))
    x, t, lengths, given = task.net.calls[0]
    at = t[:, None, None]
    torch.testing.assert_close(x, at * x1 + (1 - at) * batch["x0"])
    assert lengths.tolist() == LENGTHS and set(given.tolist()) <= {0, 1}


def test_a_batch_is_its_items() -> None:
    torch.manual_seed(0)
    net = SequenceNet(2, 2, dim=16, layers=1, heads=2)
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.2)
    task, batch = build(net.eval(), condition_drop=0.3), make()
    losses = [task.training_step(item(batch, i), 0).item() * n for i, n in enumerate(LENGTHS)]
    torch.testing.assert_close(task.training_step(batch, 0).item(), sum(losses) / sum(LENGTHS), rtol=1e-5, atol=0)


def test_condition_drop() -> None:
    for drop, wanted in ((0.0, [1, 1, 1]), (1.0, [0, 0, 0])):
        task = build(Spy(), condition_drop=drop)
        task.training_step(make(), 0)
        assert task.net.calls[0][3].tolist() == wanted


def test_evaluation_restores_and_is_deterministic() -> None:
    task, batch = build(Spy(), prediction="x1", solver=Solver("midpoint", 2)), item(make(), 1)
    task.normaliser.load_state_dict(
        {**task.normaliser.state_dict(), "condition_mean": task.normaliser.mean}
        | {"condition_deviation": task.normaliser.deviation}
    )
    terms, count = task.evaluate(batch, 0, "val")
    assert count == 1 and set(terms) == {"loss", "l1", "l1_one_step", "identity_l1"}
    torch.testing.assert_close(terms["identity_l1"], (batch["condition"] - batch["x1"]).abs().mean())
    for key in ("l1", "l1_one_step"):
        torch.testing.assert_close(terms[key], terms["identity_l1"])
    assert terms == task.evaluate(batch, 0, "val")[0]
    torch.testing.assert_close(task.net.calls[0][1], (torch.arange(10) + 0.5) / 10)


def test_no_identity_where_the_condition_is_of_another_kind() -> None:
    task, batch = build(SequenceNet(2, 3, dim=4, layers=1, heads=1)), item(make(), 0)
    batch["condition"] = torch.randn(1, 3, LENGTHS[0])
    assert set(task.evaluate(batch, 0, "val")[0]) == {"loss", "l1", "l1_one_step"}


def test_statistics_are_taken_once() -> None:
    task = build(Spy(), fitted=False)
    examples = [(torch.randn(2, 9), torch.randn(2, 9))]
    task._trainer = SimpleNamespace(datamodule=SimpleNamespace(examples=lambda: iter(examples)))
    task.on_fit_start()
    torch.testing.assert_close(task.normaliser.mean, examples[0][0].mean(dim=1))
    task._trainer = None
    task.on_fit_start()
    assert int(task.normaliser.frames) == 9


def test_a_small_net_learns_a_mapping() -> None:
    """Clean is a smooth function of the condition: restoring beats leaving it alone by far."""
    torch.manual_seed(0)
    task = build(SequenceNet(2, 2, dim=32, layers=1, heads=2), condition_drop=0.1, solver=Solver(steps=4))
    generator = torch.Generator().manual_seed(1)
    optimizer = task.configure_optimizers()
    for step in range(150):
        degraded, noise = torch.randn(2, 16, 2, 8, generator=generator)
        batch = {"x1": -3 * degraded.tanh() - 5, "condition": 3 * degraded - 5, "x0": noise}
        batch |= {"lengths": torch.full((16,), 8), "seeds": list(range(16 * step, 16 * step + 16))}
        loss = task.training_step(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    terms, _ = task.eval().evaluate(batch, 0, "val")
    assert terms["l1"] < 0.3 * terms["identity_l1"]


def test_what_contradicts_itself_is_named() -> None:
    with pytest.raises(ValueError, match="condition_drop is 0 to 1"):
        build(Spy(), condition_drop=1.5)
    with pytest.raises(ValueError, match="guidance needs a condition_drop"):
        build(Spy(), condition_drop=0.0, guidance=Guidance())
    with pytest.raises(ValueError, match="prediction is one of"):
        build(Spy(), prediction="score")
    mel = LogMel(8000, 256, 64, 256, 2, 0.0, 4000.0)
    with pytest.raises(ValueError, match="the mel has 2 bands"):
        build(SequenceNet(3, 3, 4, 1, 1), mel=mel)
    task = build(Spy(), mel=mel)
    other = LogMel(8000, 256, 32, 256, 2, 0.0, 4000.0)
    task._trainer = SimpleNamespace(datamodule=SimpleNamespace(mel=other))
    with pytest.raises(ValueError, match=r"hop_length 32, model.init_args.mel has 64"):
        task.setup("fit")
