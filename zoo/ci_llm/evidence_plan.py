"""The trainings that the evidence rests on: `demo` with other weights and strategies of diversity, and one agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from zoo.systems import recipe_root

RECIPE, BACKBONE = "demo", "demo_backbone"
# weight, strategy and target of the arms beside the recipe's own and the one without diversity
ARMS: tuple[tuple[float, str, float | None], ...] = (
    (0.3, "answer_mean", None),
    (0.03, "last_token", None),
    (0.3, "last_token", None),
    (0.3, "answer_mean", 1.0),
)


def plan(root: Path, seeds: Sequence[int]) -> Iterator[tuple[str, Path, list[str]]]:
    """What is to be trained, one after the other.

    Args:
        root: folder of the runs.
        seeds: of the agents, their data and everything else; the backbone is one for all.

    Yields:
        The group as `gather` calls it (empty for the backbone), the run folder, and the arguments of `zoo`.
    """
    recipes = recipe_root() / "ci_llm"
    recipe = yaml.safe_load((recipes / f"{RECIPE}.yaml").read_text(encoding="utf-8"))
    agents = recipe["model"]["init_args"]["crowd"]["init_args"]["agents"]["init_args"]
    count, rank, alpha = (agents[key] for key in ("count", "rank", "alpha"))
    form, kind = "model.init_args.crowd.init_args", "model.init_args.diversity.init_args"
    alone = {f"{form}.agents.init_args.count": 1, f"{kind}.weight": 0}
    alone |= {f"{form}.agents.init_args.rank": count * rank, f"{form}.agents.init_args.alpha": count * alpha}
    batch, steps = recipe["data"]["init_args"]["batch_size"], recipe["trainer"]["max_steps"]
    arms: list[tuple[str, str, dict[str, Any]]] = [
        ("runs", "demo", {}),
        ("baseline", "no_diversity", {f"{kind}.weight": 0}),
    ]
    for weight, strategy, target in ARMS:
        changes = {f"{kind}.weight": weight, f"{kind}.strategy": strategy}
        hinge = {} if target is None else {f"{kind}.target": target}
        arms.append(("others", f"{strategy}_{weight:g}{'_hinge' if hinge else ''}", changes | hinge))
    arms += [
        ("single", "single_larger_batches", {**alone, "data.init_args.batch_size": count * batch}),
        ("single", "single_more_steps", {**alone, "trainer.max_steps": count * steps}),
    ]
    base = root / "backbone"
    yield "", base, ["fit", f"--config={recipes / BACKBONE}.yaml", f"--trainer.default_root_dir={base}"]
    for seed in seeds:
        for group, name, changes in arms:
            folder = root / f"{name}_{seed}"
            seeded = dict.fromkeys(("seed_everything", f"{form}.agents.init_args.seed", "data.init_args.seed"), seed)
            changed = {**seeded, f"{form}.backbone.init_args.source": base / "backbone", **changes}
            arguments = ["fit", f"--config={recipes / RECIPE}.yaml", f"--trainer.default_root_dir={folder}"]
            yield group, folder, [*arguments, *(f"--{key}={value}" for key, value in changed.items())]
