"""Which floating-point precision a training should take: each is tried on a few batches and compared with float32."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from zoo.ci_llm.crowd import Crowd
from zoo.ci_llm.diversity import Diversity
from zoo.ci_llm.objective import Batch, Objective
from zoo.training.build import build

EXACT = "32-true"
DTYPES = {EXACT: None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}  # by trainer.precision
LOSS_SCALE = 2.0**10  # of float16's gradients while trying


@dataclass(frozen=True)
class Trial:
    """What became of one precision.

    Args:
        precision: value of `trainer.precision`.
        loss: mean over the batches.
        seconds: least time of a pass forth and back over the batches.
        sound: whether loss and gradients are finite, and the loss is float32's within the tolerance.
    """

    precision: str
    loss: float
    seconds: float
    sound: bool


def try_precisions(
    crowd: Crowd,
    batches: Sequence[Batch],
    diversity: Diversity | None = None,
    precisions: Sequence[str] | None = None,
    tolerance: float = 0.02,
    repeats: int = 3,
) -> list[Trial]:
    """Compute loss and gradients in each precision; weights stay as they are.

    The precisions take turns, so that a busy machine slows all of them. All see the same dropout masks.

    Args:
        crowd: on its device.
        batches: as in training, on the same device.
        diversity: the term of the training.
        precisions: of `DTYPES`; by default all that the device computes in: float16 not on the CPU.
        tolerance: largest relative difference of the loss from float32's.
        repeats: passes that are timed, after one that is not.

    Returns:
        A trial for each precision, float32 first.

    Raises:
        ValueError: when a precision is unknown, there is no batch, or float32's own loss is not finite.
    """
    device = next(crowd.agents.parameters()).device
    names = list(DTYPES) if device.type == "cuda" else [EXACT, "bf16-mixed"]
    if precisions is not None:
        names = [EXACT, *(name for name in precisions if name != EXACT)]
    unknown = [name for name in names if name not in DTYPES]
    if unknown or not batches or repeats < 1:
        raise ValueError(
            f"precisions are some of {', '.join(DTYPES)}, found {names}; at least one batch ({len(batches)}) and one "
            f"repeat ({repeats}) are needed"
        )
    results: dict[str, tuple[float, bool]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        for name in names:
            began = time.perf_counter()
            results[name] = _pass(crowd, batches, diversity, name)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    exact = results[EXACT][0]
    if not math.isfinite(exact):
        raise ValueError(f"the loss in float32 is {exact}: no precision helps there; look at data and learning rate")
    return [
        Trial(name, loss, min(seconds[name]), finite and abs(loss - exact) <= tolerance * abs(exact))
        for name, (loss, finite) in results.items()
    ]


def choose(trials: Sequence[Trial]) -> Trial:
    """The fastest sound trial."""
    return min((trial for trial in trials if trial.sound), key=lambda trial: trial.seconds)


def try_recipe(
    config: Path, device: str = "auto", batches: int = 2, tolerance: float = 0.02, packages: Sequence[str] = ()
) -> list[Trial]:
    """Try precisions with the crowd, the diversity term and the first training batches of a recipe.

    Args:
        config: the recipe, or a run's config.yaml.
        device: torch device; auto takes a GPU where there is one.
        batches: how many.
        tolerance: as in `try_precisions`.
        packages: of the user's own, whose classes the recipe may name.

    Returns:
        As `try_precisions`.

    Raises:
        FileNotFoundError: when there is no such recipe.
        ValueError: when it describes no crowd.
    """
    if not config.is_file():
        raise FileNotFoundError(f"{config}: no such recipe")
    recipe: Any = OmegaConf.to_container(OmegaConf.load(config), resolve=True)
    model = recipe.get("model", {}).get("init_args", {})
    if "crowd" not in model or "data" not in recipe:
        raise ValueError(f"{config}: no model.init_args.crowd and data; name a recipe of this wing")
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    crowd = build(model["crowd"], packages).to(where)
    data = build(recipe["data"], packages)
    data.prepare_data()
    data.setup("fit")
    some = islice(iter(data.train_dataloader()), batches)
    moved = [{name: value.to(where) for name, value in batch.items()} for batch in some]
    return try_precisions(crowd, moved, build(model.get("diversity"), packages), tolerance=tolerance)


def _pass(crowd: Crowd, batches: Sequence[Batch], diversity: Diversity | None, precision: str) -> tuple[float, bool]:
    """Mean loss, and whether it and all gradients are finite."""
    dtype = DTYPES[precision]
    weights = [weight for weight in crowd.parameters() if weight.requires_grad]
    device = weights[0].device
    scale = LOSS_SCALE if dtype == torch.float16 else 1.0
    losses, finite = [], True
    training = crowd.training
    crowd.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch in batches:
            with _autocast(device, dtype):
                total = Objective(batch, diversity).of(crowd, scale).total
            gradients = torch.autograd.grad(total * scale, weights)
            losses.append(float(total.detach()))
            norms = torch.stack([gradient.norm() for gradient in gradients])
            finite = finite and math.isfinite(losses[-1]) and bool(norms.isfinite().all())
    crowd.train(training)
    return sum(losses) / len(losses), finite


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
