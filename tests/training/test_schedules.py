import io
import json
import math

import pytest
import torch
from jsonargparse import ArgumentParser

from tests.conftest import reference_folder
from zoo.training.schedules import (
    RampedCosine,
    StageCosine,
    WarmupConstant,
    WarmupCosine,
    WarmupLinear,
)
from zoo.training.task import OptimizerCallable, SchedulerCallable


def curve(build, steps, lr=2.0):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = build(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def test_warm_up_is_a_ramp_without_zero_that_meets_the_base_rate():
    assert curve(lambda o: WarmupConstant(o, 3), 6) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0])
    assert curve(WarmupConstant, 2) == [2.0, 2.0]


def test_cosine():
    expected = [0.5, 1.0, 1.5] + [2 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1, s / 4)))) for s in range(7)]
    assert curve(lambda o: WarmupCosine(o, 3, 7, 0.1), 10) == pytest.approx(expected)


def test_linear():
    assert curve(lambda o: WarmupLinear(o, 0, 4, 0.5), 6) == pytest.approx([2.0, 1.75, 1.5, 1.25, 1.0, 1.0])


def test_a_ramped_cosine_begins_with_zero():
    expected = [0.0, 1.0] + [1 + math.cos(math.pi * min(1, s / 4)) for s in range(6)]
    assert curve(lambda o: RampedCosine(o, 2, 6), 8) == pytest.approx(expected)


def test_a_stage_rises_and_falls_back():
    rates = curve(lambda o: StageCosine(o, [0, 6], 10, 4, 2, 0.5), 12)
    assert rates == pytest.approx([1.0, 1.25, 1.5, 1.75, 2.0, 1.5, 1.0, 1.5, 2.0, 1.5, 1.0, 1.0])


@pytest.mark.shared
def test_schedules_of_compressed_ad_are_the_originals():
    golden = json.loads((reference_folder("compressed_ad") / "lr_schedules.json").read_text())
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    starts = [0, 30_000, 50_000, 75_000]
    ramped = RampedCosine(optimizer, 1000, 50_000)
    staged = StageCosine(optimizer, starts, 100_000, 1000, 500, 0.1)
    tiny = StageCosine(optimizer, [0, 30, 50, 75], 100, 10, 5, 0.1)
    for schedule, key in (
        (ramped, "cosine_warmup1000_total50000"),
        (staged, "curriculum_0_30k_50k_75k_total100k_w1000_sw500_min0.1"),
        (tiny, "tiny_curriculum_0_30_50_75_total100_w10_sw5_min0.1"),
    ):
        table = golden[key]
        pairs = table.items() if isinstance(table, dict) else enumerate(table)
        for step, expected in pairs:
            assert schedule.factor(int(step)) == pytest.approx(expected, abs=1e-15), (key, step)


def test_every_group_keeps_its_own_base_rate():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": parameters[:1], "lr": 1.0}, {"params": parameters[1:], "lr": 4.0}])
    schedule = WarmupLinear(optimizer, 0, 2)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 2.0]


def test_state_is_primitive_and_restores_the_curve():
    def build():
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
        return optimizer, WarmupCosine(optimizer, 2, 9)

    optimizer, schedule = build()
    for _ in range(4):
        optimizer.step()
        schedule.step()
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh, resumed = build()
    fresh.load_state_dict(saved["optimizer"])
    resumed.load_state_dict(saved["schedule"])
    for o, s in ((optimizer, schedule), (fresh, resumed)):
        o.step()
        s.step()
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda o: WarmupConstant(o, -1), "warmup_steps is at least 0, not -1"),
        (lambda o: WarmupCosine(o, 5, -1), "total_steps is -1, as trainer.max_steps .* set trainer.max_steps"),
        (lambda o: WarmupCosine(o, 5, 5), r"total_steps \(5\) .* exceeds warmup_steps \(5\)"),
        (lambda o: WarmupLinear(o, 0, 5, 2.0), "min_factor is 0 to 1"),
        (lambda o: StageCosine(o, [5], 10), r"starts at batch 0, found starts \[5\]"),
        (lambda o: StageCosine(o, [0], 10, 10), "from batch 0 to 10 is not longer than its rise of 10"),
        (lambda o: StageCosine(o, [0], 10, 1, 1, -0.1), "min_factor is 0 to 1"),
    ],
)
def test_out_of_range_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        curve(build, 1)


def test_a_recipe_can_name_optimizer_and_schedule():
    parser = ArgumentParser()
    parser.add_argument("--optimizer", type=OptimizerCallable)
    parser.add_argument("--scheduler", type=SchedulerCallable)
    parsed = parser.parse_object(
        {
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1.0}},
            "scheduler": {
                "class_path": "zoo.training.WarmupCosine",
                "init_args": {"warmup_steps": 1, "total_steps": 10, "min_factor": 0.1},
            },
        }
    )
    built = parser.instantiate(parsed)
    optimizer = built.optimizer([torch.nn.Parameter(torch.zeros(1))])
    schedule = built.scheduler(optimizer)
    assert isinstance(schedule, WarmupCosine)
    assert optimizer.param_groups[0]["lr"] == 0.5
