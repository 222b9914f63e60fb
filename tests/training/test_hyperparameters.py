"""A resumed run: the moments and the position of the checkpoint, the hyper-parameters of the command."""

import copy
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, MultiStepLR, OneCycleLR, StepLR

from zoo.training.hyperparameters import apply_hyperparameters
from zoo.training.schedules import StageCosine, WarmupConstant, WarmupCosine, WarmupLinear

DONE, TOTAL = 6, 12
LENGTHS = {  # schedules by the number of steps that they take
    "ramped": lambda total: partial(WarmupCosine, warmup_steps=2, total_steps=total, start_at_zero=True),
    "cosine": lambda total: partial(WarmupCosine, warmup_steps=2, total_steps=total),
    "linear": lambda total: partial(WarmupLinear, warmup_steps=2, total_steps=total),
    "stages": lambda total: partial(
        StageCosine, starts=[0, 4], total_steps=total, warmup_steps=1, stage_warmup_steps=1
    ),
    "torch cosine": lambda total: partial(CosineAnnealingLR, T_max=total),
    "torch linear": lambda total: partial(LinearLR, end_factor=0.1, total_iters=total),
    "torch one cycle": lambda total: partial(OneCycleLR, max_lr=0.2, total_steps=total + 1),
}
OTHERS = {
    "constant": partial(WarmupConstant, warmup_steps=3),
    "exponential": partial(ExponentialLR, gamma=0.9),
    "steps": partial(StepLR, step_size=2, gamma=0.5),
    "milestones": partial(MultiStepLR, milestones=[3, 7], gamma=0.5),
}
OPTIMIZERS = {"sgd": partial(SGD, momentum=0.9), "adamw": partial(AdamW, weight_decay=0.1)}


def build(optimizer, schedule, lr=0.1):
    weight = torch.nn.Parameter(torch.ones(3))
    built = optimizer([weight], lr=lr)
    return weight, built, schedule(built)


def train(weight, optimizer, scheduler, steps):
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        weight.grad = weight.detach() ** 2
        optimizer.step()
        scheduler.step()
    return rates


def save(optimizer, scheduler):
    states = {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()]}
    return copy.deepcopy({**states, "scheduler_classes": [type(scheduler).__name__]})


def resume(checkpoint, weight, optimizer, schedule, lr=0.1):
    """Resume as Lightning does, in new objects on the same weight."""
    change = apply_hyperparameters(checkpoint, *(lambda o: ([o], [schedule(o)]))(optimizer([weight], lr=lr)))
    built = optimizer([weight], lr=lr)
    scheduler = schedule(built)
    built.load_state_dict(checkpoint["optimizer_states"][0])
    scheduler.load_state_dict(checkpoint["lr_schedulers"][0])
    return change, built, scheduler


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("schedule", [*(make(TOTAL) for make in LENGTHS.values()), *OTHERS.values()])
def test_plain_resume_is_bit_exact(optimizer, schedule):
    weight, *built = build(optimizer, schedule)
    train(weight, *built, DONE)
    checkpoint = save(*built)
    before = copy.deepcopy(checkpoint)
    half = weight.detach().clone()
    expected = train(weight, *built, TOTAL - DONE), weight.detach().clone()

    weight = torch.nn.Parameter(half)
    change, *built = resume(checkpoint, weight, optimizer, schedule)
    assert change is None and str(checkpoint) == str(before)
    rates = train(weight, *built, TOTAL - DONE)
    assert rates == expected[0] and torch.equal(weight, expected[1])


@pytest.mark.parametrize("total", [9, 24])
@pytest.mark.parametrize("make", LENGTHS.values(), ids=LENGTHS)
def test_new_length_gives_rates_of_the_new_schedule(make, total):
    weight, *built = build(AdamW, make(total))
    expected = train(weight, *built, total)[DONE:]

    weight, *built = build(AdamW, make(TOTAL))
    train(weight, *built, DONE)
    change, optimizer, scheduler = resume(save(*built), weight, AdamW, make(total))
    assert str(total) in change and "(was " in change
    moments = optimizer.state[weight]["exp_avg"]
    assert torch.equal(moments, built[0].state[weight]["exp_avg"])
    assert train(weight, optimizer, scheduler, total - DONE) == pytest.approx(expected)


# the rates of OneCycleLR come from its max_lr alone
@pytest.mark.parametrize(
    "schedule", [*(make(TOTAL) for key, make in LENGTHS.items() if key != "torch one cycle"), *OTHERS.values()]
)
def test_new_rate_takes_effect(schedule):
    weight, *built = build(SGD, schedule, lr=0.01)
    expected = train(weight, *built, TOTAL)[DONE:]

    weight, *built = build(SGD, schedule, lr=0.1)
    train(weight, *built, DONE)
    change, *built = resume(save(*built), weight, SGD, schedule, lr=0.01)
    assert change == "lr 0.01 (was 0.1)"
    assert train(weight, *built, TOTAL - DONE) == pytest.approx(expected)


def test_other_options_take_effect_and_the_kernel_stays():
    weight, *built = build(partial(AdamW, fused=True), OTHERS["constant"])
    train(weight, *built, DONE)
    changed = partial(AdamW, weight_decay=0.5, betas=(0.5, 0.9))
    change, optimizer, _ = resume(save(*built), weight, changed, OTHERS["constant"])
    assert change == "betas (0.5, 0.9) (was (0.9, 0.999)), weight_decay 0.5 (was 0.01)"
    group = optimizer.param_groups[0]
    assert (group["weight_decay"], group["betas"], group["fused"]) == (0.5, (0.5, 0.9), True)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda w: ([AdamW([w], lr=0.1)], []), "is no AdamW"),
        (lambda w: ([Adam([w], lr=0.1), Adam([w], lr=0.1)], []), "1 optimizers"),
        (lambda w: ([Adam([w, torch.nn.Parameter(torch.ones(1))], lr=0.1)], []), "1.* weights a group"),
    ],
)
def test_other_optimizer_is_refused(other, named):
    weight = torch.nn.Parameter(torch.ones(3))
    checkpoint = {"optimizer_states": [Adam([weight], lr=0.1).state_dict()], "lr_schedulers": []}
    with pytest.raises(ValueError, match=named):
        apply_hyperparameters(checkpoint, *other(weight))
