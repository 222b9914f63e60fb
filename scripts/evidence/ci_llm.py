"""What a crowd of agents brings: python -m scripts.evidence.ci_llm train|gather|picture --help."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.bench.tools import Finding, evidence, save, train_once
from zoo.ci_llm.aggregation.answers import flexible_answer, same_answer
from zoo.ci_llm.evaluation.controls import spoiled_scores
from zoo.ci_llm.evaluation.evaluate import evaluate
from zoo.ci_llm.evaluation.report import SINGLE
from zoo.common.atomic_files import write_atomic
from zoo.common.configs import load_recipe, load_yaml
from zoo.common.reports import new_figure, replace_non_finite, write_figure
from zoo.common.systems import recipe_root
from zoo.runs.run_folder import find_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    recipe = load_recipe(recipes / f"{RECIPE}.yaml")
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


def train(
    root: Path = Path("runs/evidence/ci_llm"), seeds: Sequence[int] = (0, 1, 2), quick: bool = False
) -> list[Finding]:
    """Train every arm that is not trained yet, then gather.

    Args:
        root: folder of the runs.
        seeds: of the arms.
    """
    groups: dict[str, list[Path]] = {}
    for group, folder, arguments in plan(root, seeds):
        train_once(folder, arguments, quick)
        if group:
            groups.setdefault(group, []).append(folder)
    return gather(**groups, quick=quick)


FOLDER, NAME, FIGURE, TABLE = "evidence", "evidence.json", "evidence.png", "evidence.md"
KIND = "strict"  # of the exact match that is shown
COLUMNS = {
    "nll_mean": "mean NLL",
    "nll_best": "best NLL",
    "nll_ensemble": "ensemble NLL",
    "nll_fitted": "fitted NLL",
    "pairwise_kl": "pair KL",
    "disagreement": "disagreement",
    "mutual_information": "MI",
    "swd_answer_mean": "SWD answer",
    "swd_last_token": "SWD last",
    "em_single": "EM single",
    "em_ensemble": "EM ensemble",
    "em_vote": "EM vote",
    "em_oracle": "EM oracle",
    "ece": "ECE",
}
Row = dict[str, Any]


def gather(
    runs: Sequence[Path],
    baseline: Sequence[Path] = (),
    others: Sequence[Path] = (),
    single: Sequence[Path] = (),
    quick: bool = False,
) -> list[Finding]:
    """Evaluate runs of `demo` on its test questions; table, figures and plot go into `evidence/` of the first.

    Args:
        runs: of the recipe as it is, one per seed.
        baseline: without diversity (weight 0), one per seed.
        others: with other weights and strategies.
        single: one agent of rank K * r, trained alone with batches of K times the size or for K times as many steps:
            what the same weights and time buy otherwise.
        quick: two questions of each.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is not what its group says.
    """
    groups = {"runs": runs, "baseline": baseline, "others": others, "single": single}
    rows = [_row(Path(run), group, quick) for group, members in groups.items() for run in members]
    _check(rows)
    arms = _arms(rows)
    findings: list[Finding] = []
    for arm in arms:
        if arm["group"] != "single":
            findings += _about(arm, gated=arm["group"] in ("runs", "baseline"))
    findings += _against_single(arms) + _growth(arms)
    for row in rows:
        if row["group"] == "runs":
            findings += _spoiled(Path(row["run"]), row["seed"])
    first = Path(runs[0]) / FOLDER
    save(first / NAME, findings, evidence="demo", table=replace_non_finite(arms), runs=replace_non_finite(rows))
    text = markdown(arms)
    write_atomic(first / TABLE, lambda file: file.write(text.encode()))
    write_figure(first / FIGURE, draw_arms(arms))
    return findings


def markdown(arms: Sequence[Row]) -> str:
    """The table of arms, means over seeds, for a page."""
    lines = [["arm", "seeds", *COLUMNS.values()], ["---"] * (len(COLUMNS) + 2)]
    for arm in arms:
        cells = [f"{fmean(arm[key]):.3f}" if _known(arm[key]) else "-" for key in COLUMNS]
        lines.append([arm["label"], str(len(arm["run"])), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(run: Path, group: str, quick: bool) -> Row:
    """What is known of a run: its settings and what `evaluate` finds."""
    if not run.exists():
        raise FileNotFoundError(f"no run at {run}")
    config = load_yaml(find_config(run).read_text(encoding="utf-8"))
    described = config["model"]["init_args"]
    if "crowd" not in described:
        raise ValueError(f"{run} was not trained by zoo.ci_llm.CrowdTask")
    agents = described["crowd"]["init_args"]["agents"]["init_args"]
    diversity = (described.get("diversity") or {}).get("init_args") or {"weight": 0.0}
    facts = evaluate(run, run / FOLDER / "evaluation", max_items=2 if quick else None, progress=False)
    mean, swd, match = facts["likelihood"]["mean"], facts["sliced_wasserstein"], facts["accuracy"][KIND]
    weight = float(diversity["weight"])
    known = {key: mean[key] for key in ("nll_mean", "nll_best", "nll_ensemble", "ece") if key in mean}
    for key in ("pairwise_kl", "disagreement", "mutual_information"):
        known[key] = mean[key] if agents["count"] > 1 else math.nan
    ways = {"em_single": SINGLE, "em_ensemble": "mean", "em_vote": "vote", "em_oracle": "oracle"}
    alone = {"em_single": "agent_0"} if agents["count"] == 1 else {}
    return {
        "run": str(run),
        "group": group,
        "seed": config.get("seed_everything", 0),
        "count": agents["count"],
        "rank": agents["rank"],
        "steps": config["trainer"]["max_steps"],
        "batch_size": config["data"]["init_args"]["batch_size"],
        "weight": weight,
        "strategy": diversity["strategy"] if weight else "none",
        "target": diversity.get("target") if weight else None,
        **known,
        "nll_fitted": facts["likelihood"].get("fitted", {}).get("nll_ensemble", math.nan),
        **{f"swd_{key}": swd[f"{key}/-1"] for key in ("answer_mean", "last_token")},
        **{key: match.get({**ways, **alone}[key], {}).get("mean", math.nan) for key in ways},
    }


def _check(rows: Sequence[Row]) -> None:
    """Refuse runs that are not what their group says."""
    reference = rows[0]
    for row in rows:
        if row["group"] == "single":
            expected: tuple[int, int] = (1, reference["count"] * reference["rank"])
        else:
            expected = (reference["count"], reference["rank"])
        if (row["count"], row["rank"]) != expected:
            raise ValueError(
                f"{row['run']} has {row['count']} agents of rank {row['rank']}, expected {expected[0]} of rank "
                f"{expected[1]} ({row['group']})"
            )
        if row["group"] == "baseline" and row["weight"]:
            raise ValueError(f"{row['run']} has diversity of weight {row['weight']}, expected 0 (baseline)")


def _arms(rows: Sequence[Row]) -> list[Row]:
    """Runs of equal settings together; figures become lists, one entry per run."""
    arms: dict[str, Row] = {}
    for row in rows:
        label = _label(row)
        settings = {key: row[key] for key in ("group", "weight", "strategy", "target")}
        arm = arms.setdefault(label, {"label": label, **settings})
        for key in ("run", "seed", *COLUMNS):
            arm.setdefault(key, []).append(row[key])
    return list(arms.values())


def _label(row: Row) -> str:
    if row["group"] == "single":
        return f"one agent, rank {row['rank']}, batch {row['batch_size']}, {row['steps']} steps"
    if not row["weight"]:
        return "λ = 0"
    hinge = "" if row["target"] is None else f", target {row['target']:g}"
    return f"λ = {row['weight']:g}, {row['strategy']}{hinge}"


def _about(arm: Row, gated: bool) -> list[Finding]:
    """What an arm's agents gain by being joined."""
    ratios = [one / other for one, other in zip(arm["nll_ensemble"], arm["nll_best"], strict=True)]
    limit = 1.0 if gated else None
    details = {COLUMNS[key]: _shown(arm[key]) for key in COLUMNS}
    findings = [Finding(f"{arm['label']}: NLL, ensemble to the best agent", fmean(ratios), "x", limit, details=details)]
    if len(ratios) > 1:
        name = f"{arm['label']}: NLL, ensemble to the best agent, the worst run"
        findings.append(Finding(name, max(ratios), "x", limit))
    for key in ("em_ensemble", "em_vote"):
        gains = [100 * (one - other) for one, other in zip(arm[key], arm["em_single"], strict=True)]
        name = f"{arm['label']}: {COLUMNS[key]} minus a single agent's"
        findings.append(Finding(name, fmean(gains), "points", details={"runs": _shown(gains)}))
    return findings


def _against_single(arms: Sequence[Row]) -> list[Finding]:
    """Each arm beside one agent with all the weights, the better of those."""
    alone = [arm for arm in arms if arm["group"] == "single"]
    if not alone:
        return []
    best = min(alone, key=_nll)
    return [
        Finding(f"{arm['label']}: NLL, ensemble to {best['label']}", fmean(arm["nll_ensemble"]) / _nll(best), "x")
        for arm in arms
        if arm not in alone
    ]


def _growth(arms: Sequence[Row]) -> list[Finding]:
    """Whether the distance that is rewarded grows with its weight."""
    findings = []
    for strategy in dict.fromkeys(arm["strategy"] for arm in arms):
        key = f"swd_{strategy}"
        members = [arm for arm in arms if arm["strategy"] in (strategy, "none") and arm["target"] is None]
        members = sorted((arm for arm in members if arm["group"] != "single"), key=_weight)
        if key not in COLUMNS or len({arm["weight"] for arm in members}) < 2:
            continue
        least, most = members[0], members[-1]
        ratio = fmean(most[key]) / max(fmean(least[key]), 1e-12)
        details = {arm["label"]: fmean(arm[key]) for arm in members}
        findings.append(Finding(f"SWD, {most['label']} to {least['label']}", ratio, "x", at_least=1.0, details=details))
    return findings


def _spoiled(run: Path, seed: int) -> list[Finding]:
    """Fitted weights against equal ones when an agent is spoiled."""
    found = spoiled_scores(run)
    nll = {name: summary["nll_ensemble"] for name, summary in found.items()}
    details: dict[str, Any] = {f"NLL {name}": value for name, value in nll.items()}
    details |= {f"ECE {name}": summary["ece"] for name, summary in found.items()}
    details |= {f"ECE {name}, scaled": summary["ece_scaled"] for name, summary in found.items()}
    name = f"seed {seed}, agent 0 spoiled: NLL, fitted weights to equal ones"
    ratio = nll["fitted"] / nll["mean"]
    return [Finding(name, ratio, "x", at_most=1.0, details=replace_non_finite(details))]


def draw_arms(arms: Sequence[Row]) -> Figure:
    """Draw likelihood, diversity and exact match of arms: a dot for the mean, a tick for each run."""
    panels = {
        "NLL, nats per token": {"nll_mean": "mean agent", "nll_best": "best agent", "nll_ensemble": "ensemble"},
        "pairwise KL, nats": {"pairwise_kl": "KL"},
        "exact match": {"em_single": "single agent", "em_ensemble": "ensemble", "em_vote": "vote"},
    }
    figure = new_figure(4.6 * len(panels), 1.8 + 0.5 * len(arms))
    places = np.arange(len(arms))
    for axes, (title, keys) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for number, (key, label) in enumerate(keys.items()):
            at = places + 0.2 * (number - (len(keys) - 1) / 2)
            (line,) = axes.plot([np.mean(arm[key]) for arm in arms], at, "o", label=label)
            for place, arm in zip(at, arms, strict=True):
                axes.plot(arm[key], [place] * len(arm[key]), "|", color=line.get_color(), markersize=7)
        axes.set(title=title)
        axes.set_yticks(places, [arm["label"] for arm in arms])
        axes.grid(alpha=0.3)
        if len(keys) > 1:
            axes.legend(fontsize="small", ncols=len(keys), loc="upper center", bbox_to_anchor=(0.5, -0.12))
    figure.axes[0].set_ylim(len(arms) - 0.5, -0.5)
    return figure


def picture(run: Path, output: Path = Path("docs/figures/ci_llm.png")) -> list[Finding]:
    """Draw the questions and answers of a run's last validation; green is right, red is wrong.

    Args:
        run: folder of the run.
        output: the picture.
    """
    from matplotlib.transforms import Bbox

    tables = sorted(run.glob("media/*/val_answers.csv"))
    if not tables:
        raise ValueError(f"{run} holds no media/*/val_answers.csv: train it with samples.enabled")
    with tables[-1].open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    cells, colours = [], []
    for question, *answers, agreement, right in rows:
        numbers = [flexible_answer(answer) for answer in (*answers, right)]
        marks = ["#d9ead3" if same_answer(number, numbers[-1]) else "#f4cccc" for number in numbers[:-1]]
        cells.append([fill(question, 36), *map(_two_lines, answers), f"{float(agreement):.0%}", _two_lines(right)])
        colours.append(["white", *marks, "white", "white"])
    figure = new_figure(10.0, 0.5 + 0.46 * len(rows))
    axes = figure.subplots()
    axes.axis("off")
    shares = np.array([3.3, *[1.5] * (len(heads) - 3), 1.1, 1.5])
    whole = Bbox.from_bounds(0.0, 0.0, 1.0, 1.0)
    table = axes.table(cells, colours, "left", shares / shares.sum(), colLabels=heads, colLoc="left", bbox=whole)
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    for (row, _), cell in table.get_celld().items():
        cell.PAD = 0.04
        cell.set(edgecolor="0.8", linewidth=0.6)
        cell.set_text_props(weight="bold" if row == 0 else "normal")
    write_figure(output, figure)
    agreed = [float(row[-2]) for row in rows]
    return [Finding("agreement of the agents, mean", fmean(agreed), "", details={"questions": len(rows)})]


def _two_lines(answer: str) -> str:
    """A way to reckon above its result."""
    return answer.replace(" ####", "\n####")


def _weight(arm: Row) -> float:
    return arm["weight"]


def _nll(arm: Row) -> float:
    return fmean(arm["nll_mean"])


def _known(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) for value in values)


def _shown(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    evidence({"train": train, "gather": gather, "picture": picture})
