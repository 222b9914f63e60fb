import json

import pytest
import torch
from torch import nn

from zoo.cli.commands.plan import estimate
from zoo.cli.main import main
from zoo.training.cost import Cost, _Saved


def test_activations_are_counted_once_and_at_their_peak():
    first, second = nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)
    inputs = torch.randn(32, 8)
    saved = _Saved([*first.parameters(), *second.parameters()])
    with saved:
        for _ in range(3):
            hidden = torch.sigmoid(first(inputs))  # kept by the sigmoid and by the second layer: one storage
            second(hidden).sum().backward()
            assert saved._now == 0
            del hidden
    assert saved.peak == 4 * 32 * (8 + 16)


def test_a_recipe_is_measured_and_its_memory_counted(capsys):
    assert main(["plan", "flow/smoke", "--gpus", "4", "--target_steps", "3600", "--steps", "2", "--json", "true"]) == 0
    plan = json.loads(capsys.readouterr().out)
    ddp, sharded = plan["memory"]["DDP"], plan["memory"]["FSDP, ZeRO-3"]
    assert ddp["optimizer states"] > 2 * ddp["trained weights"] == 2 * ddp["gradients"]  # AdamW, and its counters
    assert ddp["moving average"] == ddp["trained weights"] == pytest.approx(4 * sharded["trained weights"], abs=4)
    assert plan["memory"]["ZeRO-1"]["gradients"] == ddp["gradients"] > plan["memory"]["ZeRO-2"]["gradients"]
    assert ddp["activations"] == sharded["activations"] > 0
    assert plan["checkpoints"]["bytes"] > ddp["trained weights"] + ddp["optimizer states"]
    assert plan["hours"]["DDP"] == pytest.approx(plan["step_seconds"] + plan["exchange_seconds"]["DDP"])
    assert (
        main(["plan", "flow/smoke", "--step_seconds", "0.5", "--target_steps", "7200", "--price", "2", "--steps", "1"])
        == 0
    )
    out = capsys.readouterr().out
    assert "1.0 h" in out and "2.00" in out and "given" in out and "extrapolated" not in out


def test_exchange_grows_with_the_devices():
    cost = Cost(1)
    cost.gradient_bytes, cost.weight_bytes, cost.frozen_bytes = 8 * 10**9, 8 * 10**9, 2 * 10**9
    cost._waited = cost.worked = [1.0]
    two, four = (estimate(cost, count, 100, 1.0, 100.0)["exchange_seconds"] for count in (2, 4))
    assert two["DDP"] == pytest.approx(2 * 0.08 / 2) and four["DDP"] == pytest.approx(2 * 0.08 * 3 / 4)
    assert two["FSDP, ZeRO-3"] == pytest.approx((2 * 0.08 + 0.1) / 2)
    assert estimate(cost, 1, 100, 1.0, 100.0)["exchange_seconds"] == {"DDP": 0}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "needs a recipe"),
        (["flw/smoke"], "did you mean flow/smoke"),
        (["flow/smoke", "trainer.max_stps=3"], "did you mean max_steps"),
        (["flow/smoke", "--gpus", "0"], "gpus is at least 1"),
        (["flow/smoke", "trainer.max_steps=3", "--steps", "4"], "ends after 3 steps"),
    ],
)
def test_mistakes_are_told_in_a_line(capsys, args, told):
    assert main(["plan", *args]) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error:" in error and told in error
