"""`zoo plan`: what a run will need, from some of its own steps."""

from __future__ import annotations

import json as text
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.common.hardware import describe_device
from zoo.common.ranges import at_least, positive
from zoo.common.report import show_table, terminal_table
from zoo.runs.details import duration
from zoo.runs.listing import size_of

if TYPE_CHECKING:
    from zoo.training.cost import Cost

GIB = 2**30
SHARDED = {  # how a strategy shares out (weights, gradients, optimizer states)
    "DDP": (False, False, False),
    "ZeRO-1": (False, False, True),
    "ZeRO-2": (False, True, True),
    "FSDP, ZeRO-3": (True, True, True),
}


def main(
    *fit: str,
    gpus: int = 1,
    target_steps: int | None = None,
    steps: int = 5,
    step_seconds: float | None = None,
    bandwidth: float = 25.0,
    price: float | None = None,
    json: bool = False,
) -> int:
    """Estimate memory, hours, disk and cost of a run: zoo plan RECIPE [FRAGMENT | KEY=VALUE | options of fit ...].

    The recipe is built and some steps are trained here, on one device, in a temporary folder; what is counted or
    measured there and what is extrapolated from it is told apart.

    Args:
        *fit: a recipe, fragments such as `trainer/gpu`, then settings as KEY=VALUE or as options of `zoo fit`.
        gpus: devices of the planned run, one process each.
        target_steps: batches of the planned run; by default the recipe's.
        steps: that are timed.
        step_seconds: of a step on the planned device, in place of the one measured here.
        bandwidth: between devices, in GB/s, for the time of exchanging gradients.
        price: of a device for an hour, in any currency.
        json: print JSON.

    Returns:
        0.

    Raises:
        ValueError: without a recipe, or a number is out of its range.
    """
    from zoo.training.callbacks.checkpoint import Checkpoints
    from zoo.training.callbacks.progress import steps_of
    from zoo.training.cost import WARM_UP_STEPS, Cost

    if not fit:
        raise ValueError("plan needs a recipe: `zoo list` names them")
    at_least(1, gpus=gpus, steps=steps, target_steps=target_steps or 1)
    positive(step_seconds=step_seconds or 1.0, bandwidth=bandwidth, price=price or 1.0)
    cost = Cost(steps)
    trainer, written = _train(fit, cost)
    if len(cost.worked) < WARM_UP_STEPS + steps:
        raise ValueError(f"the recipe ends after {len(cost.worked)} steps, {WARM_UP_STEPS + steps} are needed")
    keeper = next(each for each in trainer.callbacks if isinstance(each, Checkpoints))
    total = target_steps or steps_of(trainer)
    if total == math.inf:
        raise ValueError("the recipe names no end: give --target_steps")
    plan = estimate(cost, gpus, int(total), step_seconds, bandwidth)
    plan["recipe"] = next((word for word in fit if not word.startswith("-")), fit[-1])
    plan["measured_on"] = describe_device(trainer.strategy.root_device)
    plan["checkpoints"] = {"bytes": written, "kept": keeper.keep_last + keeper.save_best * (keeper.monitor is not None)}
    if price is not None:
        plan["price"] = {name: round(price * gpus * hours, 2) for name, hours in plan["hours"].items()}
    print(text.dumps(plan, indent=1)) if json else _tell(plan)
    return 0


def _train(recipe: Sequence[str], cost: Cost) -> tuple[Any, int]:
    """Train some steps of a recipe on one device; gives the Trainer and the bytes of a checkpoint."""
    from zoo.cli.trainer import fit
    from zoo.cli.trials import trial

    with trial(recipe) as cli:
        trainer: Any = cli.trainer
        trainer.callbacks.append(cost)
        fit(cli)
        written = max((size_of(path) for path in cli.folder.glob("step_*.ckpt")), default=0)
    return trainer, written


def estimate(cost: Cost, gpus: int, steps: int, step_seconds: float | None, bandwidth: float) -> dict[str, Any]:
    """Extrapolate the cost of a step to a run.

    Gradients are exchanged once a step (2 (W - 1) / W of their bytes by device in a ring), shared weights are gathered
    twice and their gradients scattered once (3 (W - 1) / W); none of it is taken to hide behind computation. Every
    device is taken to be as fast as the one measured.

    Args:
        gpus: W, devices that share the run.
        steps: of the run.
        step_seconds: in place of the measured one.
        bandwidth: in GB/s.

    Returns:
        `memory`: bytes by device, by strategy and kind; `step_seconds`, `exchange_seconds` and `hours` by strategy.
    """
    measured = step_seconds is None
    seconds = cost.step_seconds + cost.wait_seconds if step_seconds is None else step_seconds
    plan: dict[str, Any] = {"devices": gpus, "steps": steps, "step_seconds": seconds, "step_is_measured": measured}
    plan |= {"waiting_seconds": cost.wait_seconds, "bandwidth": bandwidth}
    plan |= {"memory": {}, "exchange_seconds": {}, "hours": {}}
    for name, (weights, gradients, states) in SHARDED.items():
        if gpus == 1 and name != "DDP":
            continue
        parts = {
            "trained weights": cost.weight_bytes / (gpus if weights else 1),
            "frozen weights, buffers": cost.frozen_bytes / (gpus if weights else 1),
            "gradients": cost.gradient_bytes / (gpus if gradients else 1),
            "optimizer states": cost.optimizer_bytes / (gpus if states else 1),
            "moving average": cost.average_bytes / (gpus if weights else 1),
            "activations": cost.activation_bytes,
        }
        plan["memory"][name] = {kind: round(count) for kind, count in parts.items()}
        traffic = (cost.gradient_bytes * 2 + (cost.weight_bytes + cost.frozen_bytes) * weights) * (gpus - 1) / gpus
        exchange = traffic / (bandwidth * 1e9)
        plan["exchange_seconds"][name] = exchange
        plan["hours"][name] = steps * (seconds + exchange) / 3600
    return plan


def _tell(plan: Mapping[str, Any]) -> None:
    names = list(plan["memory"])
    kinds = [kind for kind in plan["memory"]["DDP"] if any(plan["memory"][name][kind] for name in names)]
    rows = [(kind, *(_size(plan["memory"][name][kind]) for name in names)) for kind in kinds]
    rows.append(("memory of a device", *(_size(sum(plan["memory"][name].values())) for name in names)))
    if plan["devices"] > 1:
        rows.append(("exchange a step", *(f"{1000 * plan['exchange_seconds'][name]:.3g} ms" for name in names)))
    rows.append((f"time of {plan['steps']:,} steps", *(duration(3600 * plan["hours"][name]) for name in names)))
    if "price" in plan:
        rows.append(("price", *(f"{plan['price'][name]:,.2f}" for name in names)))
    count, kept = plan["devices"], plan["checkpoints"]["kept"]
    heads = names if count > 1 else ["one device"]
    show_table(
        terminal_table([plan["recipe"], *heads], rows, None if count == 1 else f"{count} devices", [plan["recipe"]])
    )
    size = plan["checkpoints"]["bytes"]
    print(f"disk: {kept} checkpoints of {_size(size)} are kept, {_size((kept + 1) * size)} while one is written")
    source = f"measured on {plan['measured_on']}" if plan["step_is_measured"] else "given"
    print(
        f"step: {plan['step_seconds']:.4g} s, {source}; waiting for its batch took {plan['waiting_seconds']:.2g} s here"
    )
    print("counted: weights, gradients, states and activations of one process, and a checkpoint")
    if count > 1:
        print(
            f"extrapolated: {count} devices as fast as that of the step, {plan['bandwidth']:g} GB/s between them, the "
            "whole exchange added to the step, even shares; a library's own buffers come on top"
        )
    print("not in it: validation, and the memory of the device's libraries")


def _size(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:.2f} MiB"
