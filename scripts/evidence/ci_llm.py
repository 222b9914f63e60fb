"""What a crowd of agents brings: the runs of the demo and their likelihoods; `run.py` trains and judges them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo.ci_llm.evaluation.evaluate import evaluate
from zoo.common.configs import load_recipe, load_yaml
from zoo.common.systems import recipe_root
from zoo.runs.run_folder import find_config

RECIPE, BACKBONE = "demo", "demo_backbone"
CROWD, PLAIN, SINGLES = "demo", "no_diversity", ("single_larger_batches", "single_more_steps")  # names of runs


def plan(root: Path, seed: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield run folders and arguments of `zoo`, in the order of training.

    Args:
        root: folder of the runs.
        seed: of backbone, agents, their data and everything else.
    """
    recipes = recipe_root() / "ci_llm"
    recipe = load_recipe(recipes / f"{RECIPE}.yaml")
    agents = recipe["model"]["init_args"]["crowd"]["init_args"]["agents"]["init_args"]
    count, rank, alpha = (agents[key] for key in ("count", "rank", "alpha"))
    form, weight = "model.init_args.crowd.init_args", "model.init_args.diversity.init_args.weight"
    alone = {f"{form}.agents.init_args.count": 1, weight: 0}
    alone |= {f"{form}.agents.init_args.rank": count * rank, f"{form}.agents.init_args.alpha": count * alpha}
    arms: dict[str, dict[str, Any]] = {
        CROWD: {},
        PLAIN: {weight: 0},
        SINGLES[0]: {**alone, "data.init_args.batch_size": count * recipe["data"]["init_args"]["batch_size"]},
        SINGLES[1]: {**alone, "trainer.max_steps": count * recipe["trainer"]["max_steps"]},
    }
    base, seeded = root / "backbone", f"--seed_everything={seed}"
    yield base, ["fit", f"--config={recipes / BACKBONE}.yaml", f"--trainer.default_root_dir={base}", seeded]
    for name, changes in arms.items():
        folder = root / f"{name}_{seed}"
        seeds = dict.fromkeys((f"{form}.agents.init_args.seed", "data.init_args.seed"), seed)
        changed = {**seeds, f"{form}.backbone.init_args.source": base / "backbone", **changes}
        arguments = ["fit", f"--config={recipes / RECIPE}.yaml", f"--trainer.default_root_dir={folder}", seeded]
        yield folder, [*arguments, *(f"--{key}={value}" for key, value in changed.items())]


def measure(root: Path, seed: int, quick: bool = False) -> dict[str, float]:
    """Evaluate the runs of a seed on the demo's test questions; return mean negative log-likelihoods by name.

    Args:
        root: folder of the runs.
        seed: theirs.
        quick: two questions of each.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run has other agents than expected.
    """
    crowd, plain = (_likelihood(root / f"{name}_{seed}", quick) for name in (CROWD, PLAIN))
    singles = [_likelihood(root / f"{name}_{seed}", quick, alone=True) for name in SINGLES]
    return {
        "ensemble": crowd["nll_ensemble"],
        "best agent": crowd["nll_best"],
        "one LoRA": min(each["nll_mean"] for each in singles),
        "without diversity": plain["nll_ensemble"],
    }


def _likelihood(run: Path, quick: bool, alone: bool = False) -> dict[str, float]:
    config = load_yaml(find_config(run).read_text(encoding="utf-8"))
    count = config["model"]["init_args"]["crowd"]["init_args"]["agents"]["init_args"]["count"]
    if (count == 1) is not alone:
        raise ValueError(f"{run} has {count} agents, expected {'one' if alone else 'several'}")
    facts = evaluate(run, run / "evidence" / "evaluation", max_items=2 if quick else None, progress=False)
    return dict(facts["likelihood"]["mean"])
