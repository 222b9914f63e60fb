import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import reference_folder
from zoo.training.optimizers import LrScaling, set_total_steps
from zoo.training.schedules import StageCosine, WarmupConstant, WarmupCosine, WarmupLinear


def curve(build, steps, lr=2.0):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = build(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda o: WarmupConstant(o, 3), [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]),
        (
            lambda o: WarmupCosine(o, 3, 7, 0.1),
            [0.5, 1.0, 1.5] + [2 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1, s / 4)))) for s in range(7)],
        ),
        (lambda o: WarmupLinear(o, 0, 4, 0.5), [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]),
        (
            lambda o: WarmupCosine(o, 2, 6, start_at_zero=True),
            [0.0, 1.0] + [1 + math.cos(math.pi * min(1, s / 4)) for s in range(6)],
        ),
        (
            lambda o: StageCosine(o, [0, 6], 10, 4, 2, 0.5),
            [1.0, 1.25, 1.5, 1.75, 2.0, 1.5, 1.0, 1.5, 2.0, 1.5, 1.0, 1.0],
        ),
    ],
)
def test_curves_in_closed_form(build, expected):
    assert curve(build, len(expected)) == pytest.approx(expected)


@pytest.mark.shared
def test_schedules_of_compressed_ad_are_the_originals():
    golden = json.loads((reference_folder("compressed_ad") / "lr_schedules.json").read_text())
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    starts = [0, 30_000, 50_000, 75_000]
    for schedule, key in (
        (WarmupCosine(optimizer, 1000, 50_000, start_at_zero=True), "cosine_warmup1000_total50000"),
        (
            StageCosine(optimizer, starts, 100_000, 1000, 500, 0.1),
            "curriculum_0_30k_50k_75k_total100k_w1000_sw500_min0.1",
        ),
        (
            StageCosine(optimizer, [0, 30, 50, 75], 100, 10, 5, 0.1),
            "tiny_curriculum_0_30_50_75_total100_w10_sw5_min0.1",
        ),
    ):
        table = golden[key]
        pairs = table.items() if isinstance(table, dict) else enumerate(table)
        for step, expected in pairs:
            assert schedule.factor(int(step)) == pytest.approx(expected, abs=1e-15), (key, step)


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda o: WarmupConstant(o, 0.03), "warmup_steps is 0.03"),
        (lambda o: WarmupLinear(o, 2.5, 5), "warmup_steps is 2.5"),
        (lambda o: StageCosine(o, [5], 10), r"starts \[5\]"),
        (lambda o: StageCosine(o, [0], 10, 10), "from step 0 to 10"),
        (lambda o: LrScaling(4).scale(o, SimpleNamespace(datamodule=None)), "batch_size"),
        (
            lambda o: LrScaling(4).scale(o, SimpleNamespace(datamodule=SimpleNamespace(batch_size=4, token_budget=9))),
            "token_budget",
        ),
    ],
)
def test_out_of_range_arguments_are_named(build, key):
    with pytest.raises(ValueError, match=key):
        curve(build, 1)


def make_trainer(batch_size, world=1, accumulated=1):
    return SimpleNamespace(
        datamodule=SimpleNamespace(batch_size=batch_size), world_size=world, accumulate_grad_batches=accumulated,
        is_global_zero=True, max_steps=4, limit_train_batches=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("sqrt", 8**0.5), ("linear", 8.0)])
def test_rates_scale_with_the_effective_batch(rule, factor, caplog):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    with caplog.at_level(logging.INFO):
        LrScaling(128, rule).scale(optimizer, make_trainer(128, 2, 4))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * factor)
    assert LrScaling(64, rule).factor(64) == 1.0 and "effective batch 1024" in caplog.text


@pytest.mark.parametrize("schedule", [WarmupLinear, WarmupCosine])
def test_a_warmup_below_one_is_a_share_of_the_steps(schedule):
    rates = []
    for warmup, total in ((3, 30), (0.1, 30), (3, None), (0.1, None)):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        made = schedule(optimizer, warmup, total)
        set_total_steps(made, SimpleNamespace(max_steps=30))
        rates.append([optimizer.param_groups[0]["lr"], *(made.factor(step) for step in range(31))])
    assert rates[0] == rates[1] == rates[2] == rates[3] and rates[0][0] == 1 / 4
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert [schedule(optimizer, *each).rise for each in ((0.29, 100), (0.03, 10), (0.0, 10))] == [29, 1, 0]


def test_a_training_that_the_warmup_outlasts_is_told(caplog):
    made = WarmupCosine(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), 5)
    set_total_steps(made, make_trainer(4))
    assert "total_steps is above 5, not 4" in caplog.text and made.factor(3) < 1
