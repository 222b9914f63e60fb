"""What in-context policies have learned: scripts.evidence.compressed_ad demo|demo_9x9|memory|points|lakes|chain -h."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from scripts.bench.tools import Finding, evidence, save
from zoo.common.build import build
from zoo.common.configs import load_yaml
from zoo.common.reports import write_figure
from zoo.common.systems import recipe_root
from zoo.compressed_ad.collecting.collect import env_of
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.evaluation import plots
from zoo.compressed_ad.evaluation.evaluate import RETURNS_NAME, evaluate, load_agent, split_of
from zoo.compressed_ad.evaluation.report import source_curve
from zoo.compressed_ad.evaluation.summary import summarise
from zoo.compressed_ad.inference import pairs
from zoo.runs.run_folder import find_config

SEEDS, MANY, FEW = 20, 100, 2  # agents for each held-out goal; few of them are quick
SMALL, LARGE, POINTS = Darkroom(5, 10), Darkroom(9, 20), PointMass(64, 20)
HELD_OUT, LEARNED = "held-out goals", "histories learned from"
SHUFFLED, MIXED = "control, shuffled episodes", "control, episodes of many goals"
CAD, SCRATCH, AD = "CAD", "CAD without pre-training", "AD"
FOLDER, NAME, FIGURE = "evidence", "evidence.json", "curves.png"


class Limits(NamedTuple):
    """Thresholds of what rises in context, as shares of the way from random to the oracle.

    Attributes:
        last: of the last episode, at least.
        rise: of the last episode above the first, at least.
        flat: the same of the control, at most.
    """

    last: float
    rise: float
    flat: float


POINTS_LIMITS, LAKES_LIMITS = Limits(0.6, 0.4, 0.1), Limits(0.7, 0.4, 0.1)


class Arm(NamedTuple):
    """Runs of one kind, each with a split of its own.

    facts: what `evaluate` found, of each run.
    returns: (goals, seeds, episodes) float32, of each run.
    """

    facts: list[dict[str, Any]]
    returns: list[np.ndarray]

    def curves(self) -> list[list[float]]:
        """Mean return of each episode, of each run."""
        return [each.mean(axis=(0, 1), dtype=np.float64).tolist() for each in self.returns]

    def first(self) -> list[float]:
        """Return of the first episode, of each run."""
        return [curve[0] for curve in self.curves()]

    def last(self) -> list[float]:
        """Return of the last episode, of each run."""
        return [curve[-1] for curve in self.curves()]

    def after_gap(self) -> list[float]:
        """Return after the memory gap, of each run.

        Raises:
            ValueError: when no agent of a run had found its goal, so that there was nothing to remember.
        """
        for facts in self.facts:
            if facts["gap"]["after"] is None:
                raise ValueError(
                    f"{facts['run']}: no agent found its goal, so there is no memory to probe; train longer"
                )
        return [facts["gap"]["after"] for facts in self.facts]

    def pooled(self) -> dict[str, Any]:
        """Facts of all runs together, for plots."""
        tasks = [row for facts in self.facts for row in facts["tasks"]]
        random, oracle = (np.array([row[key] for row in tasks]) for key in ("random", "oracle"))
        baselines = {
            key: np.mean([facts["baselines"][key] for facts in self.facts], axis=0).tolist()
            for key in ("random", "oracle", "explorer")
            if self.facts[0]["baselines"][key] is not None
        }
        baselines = {"explorer": None, **baselines}
        summary = summarise(np.concatenate(self.returns), random, oracle)
        return {**self.facts[0], "tasks": tasks, "baselines": baselines, "summary": summary}


def gather_demo(
    runs: Sequence[Path], shuffled: Sequence[Path] = (), mixed: Sequence[Path] = (), quick: bool = False
) -> list[Finding]:
    """Evaluate runs of `demo` on held-out goals; the figures and the curves go into `evidence/` of the first.

    Args:
        runs: of the recipe as it is, one per seed.
        shuffled: of the control with `shuffle_episodes`: no improvement to imitate, but a goal to infer, so it rises.
        mixed: of the control with `shuffle_episodes` and `mix_tasks`: neither, so it is flat.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is of something else.
    """
    groups = {HELD_OUT: runs, SHUFFLED: shuffled, MIXED: mixed}
    for label, group in groups.items():
        for run in group:
            data = _data_of(run)
            for key, controls in (("shuffle_episodes", (SHUFFLED, MIXED)), ("mix_tasks", (MIXED,))):
                found, expected = data.get(key, False), label in controls
                if found is not expected:
                    raise ValueError(f"{run}: data.init_args.{key} is {found}, expected {expected} here")
    arms = {label: play(group, SMALL, quick=quick) for label, group in groups.items() if group}
    findings = []
    for label, arm in arms.items():
        ratios = _ratios(arm.last(), arm.first())
        if label in (SHUFFLED, MIXED):
            findings += _each(f"{label}: last episode to the first", ratios, "x", at_most=1.5)
        else:
            findings += _each("last episode", arm.last(), at_least=5.0)
            findings += _each("last episode to the first", ratios, "x", at_least=4.0)
    return _keep(runs[0], "demo", findings, arms)


def gather_demo_9x9(runs: Sequence[Path], quick: bool = False) -> list[Finding]:
    """Evaluate runs of `demo_9x9` on held-out goals, beside the histories that they learned from.

    Args:
        runs: one per seed.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is of something else.
    """
    arm = play(runs, LARGE, quick=quick)
    findings = [*_each("first episode", arm.first(), at_most=1.0), *_each("last episode", arm.last(), at_least=7.0)]
    source = np.mean([demonstrated(run, facts) for run, facts in zip(runs, arm.facts, strict=True)], axis=0)
    sources = {LEARNED: source.tolist()}
    findings.append(Finding(f"{LEARNED}, last episode", float(source[-1]), ""))
    return _keep(runs[0], "demo_9x9", findings, {HELD_OUT: arm}, sources)


def gather_memory(
    latents: Sequence[Path], none: Sequence[Path], sliding: Sequence[Path] = (), quick: bool = False
) -> list[Finding]:
    """Evaluate the arms of `demo_memory`: the same window, and what lies before it compressed, forgotten, or slid out.

    Args:
        latents: runs of the recipe as it is, one per seed.
        none: with the same seeds, in the same order, without memory.
        sliding: likewise, with a sliding window.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when groups differ in size, goals or window, or a run is of something else.
    """
    groups = {"latents": latents, "none": none, "sliding window": sliding}
    arms = {name: play(runs, SMALL, gap=True, quick=quick) for name, runs in groups.items() if runs}
    _compare_arms(arms, {name: name for name in arms})
    findings = []
    for name, arm in arms.items():
        findings += [_mean(f"{name}, last episode", arm.last()), _mean(f"{name}, after the gap", arm.after_gap())]
    compressed = arms.pop("latents")
    for name, arm in arms.items():
        for title, one, other, target in (
            ("last episode", compressed.last(), arm.last(), 1.5),
            ("after the gap", compressed.after_gap(), arm.after_gap(), 2.0),
        ):
            (ratio,) = _ratios([fmean(one)], [fmean(other)])
            at_least = target if name == "none" else None
            details = _by_run(_ratios(one, other))
            findings.append(Finding(f"latents to {name}, {title}", ratio, "x", at_least=at_least, details=details))
    return _keep(latents[0], "demo_memory", findings, {"latents": compressed, **arms})


def gather_chain(
    cad: Sequence[Path], scratch: Sequence[Path], ad: Sequence[Path], quick: bool = False
) -> list[Finding]:
    """Evaluate the arms of `demo_chain` on held-out goals: the same window on the same histories of PPO.

    Args:
        cad: runs of the recipe, begun from a pre-training, one per seed.
        scratch: with the same seeds, in the same order, without pre-training.
        ad: likewise, with a sliding window in place of latents.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when groups differ in size, goals, window or histories, or a run is of something else.
    """
    groups = {CAD: cad, SCRATCH: scratch, AD: ad}
    _compare_origins(groups)
    arms = {name: play(runs, SMALL, quick=quick, seeds=MANY) for name, runs in groups.items()}
    _compare_arms(arms, {CAD: "latents", SCRATCH: "latents", AD: "sliding window"})
    findings = []
    for name, arm in arms.items():
        means = [fmean(curve) for curve in arm.curves()]
        findings += [_mean(f"{name}, first episode", arm.first()), _mean(f"{name}, last episode", arm.last())]
        findings.append(_mean(f"{name}, all episodes", means))
    named = {each.name: each.value for each in findings}
    for other in (AD, SCRATCH):
        for title in ("last episode", "all episodes"):
            ratio = named[f"{CAD}, {title}"] / named[f"{other}, {title}"]
            findings.append(Finding(f"{CAD} to {other}, {title}", ratio, "x"))
    source = np.mean([demonstrated(run, facts) for run, facts in zip(cad, arms[CAD].facts, strict=True)], axis=0)
    findings.append(Finding(f"{LEARNED}, last episode", float(source[-1]), ""))
    return _keep(cad[0], "demo_chain", findings, arms, {LEARNED: source.tolist()})


def _compare_origins(groups: Mapping[str, Sequence[Path]]) -> None:
    """Refuse runs with a pre-training where there should be none, or without, or of other histories."""
    for label, runs in groups.items():
        for run in runs:
            begun = load_yaml(find_config(Path(run)).read_text(encoding="utf-8")).get("init_from")
            if (begun is not None) is not (label == CAD):
                raise ValueError(f"{run}: init_from is {begun}, which is not {label}")
    for runs in zip(*groups.values(), strict=True):
        roots = {str(_data_of(run)["root"]) for run in runs}
        if len(roots) > 1:
            raise ValueError(f"{runs[0]} and those beside it learned from different histories, {sorted(roots)}")


def gather_points(runs: Sequence[Path], mixed: Sequence[Path] = (), quick: bool = False) -> list[Finding]:
    """Evaluate runs of `demo_points` on held-out goals: how much of the way from random to the oracle an episode goes.

    Args:
        runs: of the recipe as it is, one per seed.
        mixed: of the control with `shuffle_episodes` and `mix_tasks`, which has nothing to learn from earlier episodes.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is of something else.
    """
    findings, arms = _rises(runs, mixed, POINTS, POINTS_LIMITS, quick)
    return _keep(runs[0], "demo_points", findings, arms)


def gather_lakes(runs: Sequence[Path], mixed: Sequence[Path] = (), quick: bool = False) -> list[Finding]:
    """Evaluate runs of `demo_lakes` on held-out lakes, as `gather_points` does, beside the histories learned from.

    Args:
        runs: of the recipe as it is, one per seed.
        mixed: of the control with `shuffle_episodes` and `mix_tasks`.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is of something else.
    """
    env = env_of(recipe_root() / "compressed_ad" / "demo_lakes.yaml")
    findings, arms = _rises(runs, mixed, env, LAKES_LIMITS, quick)
    facts = arms[HELD_OUT].facts
    source = np.mean([demonstrated(run, each) for run, each in zip(runs, facts, strict=True)], axis=0).tolist()
    findings += [Finding(f"{LEARNED}, {name} episode", source[at], "") for name, at in (("first", 0), ("last", -1))]
    return _keep(runs[0], "demo_lakes", findings, arms, {LEARNED: source})


def _rises(
    runs: Sequence[Path], mixed: Sequence[Path], env: Env, limits: Limits, quick: bool
) -> tuple[list[Finding], dict[str, Arm]]:
    """How much of the way from random to the oracle the first and the last episode go, and the arms."""
    arms = {}
    for label, group in ((HELD_OUT, runs), (MIXED, mixed)):
        for run in group:
            if _data_of(run).get("mix_tasks", False) is not (label == MIXED):
                raise ValueError(f"{run}: data.init_args.mix_tasks is {label != MIXED}, expected {label == MIXED} here")
        if group:
            arms[label] = play(group, env, quick=quick)
    first, last = _shares(arms[HELD_OUT])
    findings = _each("first episode, share of the way", first)
    findings += _each("last episode, share of the way", last, at_least=limits.last)
    rises = [late - early for early, late in zip(first, last, strict=True)]
    findings += _each("last episode above the first, share of the way", rises, at_least=limits.rise)
    if MIXED in arms:
        rises = [late - early for early, late in zip(*_shares(arms[MIXED]), strict=True)]
        findings += _each(f"{MIXED}: last episode above the first, share of the way", rises, at_most=limits.flat)
    return findings, arms


def _shares(arm: Arm) -> tuple[list[float], list[float]]:
    """How much of the way from random to the oracle the first and the last episode of each run go."""
    ends: tuple[list[float], list[float]] = ([], [])
    for curve, facts in zip(arm.curves(), arm.facts, strict=True):
        low, high = facts["baselines"]["random"], facts["baselines"]["oracle"]
        for end, value in zip(ends, (curve[0], curve[-1]), strict=True):
            end.append((value - low) / (high - low))
    return ends


def play(runs: Sequence[Path], env: Env, gap: bool = False, quick: bool = False, seeds: int | None = None) -> Arm:
    """Evaluate runs on their held-out goals, for as many episodes as they were trained for.

    Args:
        runs: run folders; each keeps its evaluation in `evidence/`.
        env: where they must have been trained.
        gap: probe the memory besides.
        quick: with few agents.
        seeds: agents for each goal, in place of the usual number.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is of another environment, or was evaluated with other weights before.
    """
    facts, returns = [], []
    for run in map(Path, runs):
        agent = load_agent(run)
        if agent.env.describe() != env.describe():
            raise ValueError(f"{run} was trained in {agent.env.describe()}, expected {env.describe()}")
        output = run / FOLDER / "evaluation"
        count = FEW if quick else seeds or SEEDS
        facts.append(evaluate(run, output, agent.episodes, count, gap=gap, progress=False))
        returns.append(np.load(output / RETURNS_NAME, allow_pickle=False))
    if len({each.shape[2] for each in returns}) > 1:
        raise ValueError(f"expected runs of one length, found {[each.shape[2] for each in returns]} episodes")
    return Arm(facts, returns)


def demonstrated(run: Path, facts: Mapping[str, Any]) -> list[float]:
    """What the histories that a run learned from return in each episode, for the held-out goals.

    Args:
        run: with its config.
        facts: of its evaluation.

    Raises:
        FileNotFoundError: when there is no config, or the histories are gone.
        ValueError: when the histories are of something else.
    """
    data = _data_of(run)
    if data["root"] is not None:
        return source_curve(Path(data["root"]), facts)
    demonstrator: EpsilonCurriculum = build(data["demonstrator"])
    tasks, seeds = pairs(demonstrator.env, split_of(run, demonstrator.env, facts["split"])[0], range(SEEDS))
    rewards = demonstrator.histories(tasks, seeds).rewards
    return rewards.unflatten(1, (demonstrator.episodes, -1)).sum(2).double().mean(0).tolist()


def _data_of(run: Path) -> dict[str, Any]:
    """Arguments of the data that a run was trained on."""
    if not Path(run).exists():
        raise FileNotFoundError(f"no run at {run}")
    arguments = load_yaml(find_config(Path(run)).read_text(encoding="utf-8"))["data"]["init_args"]
    if not {"root", "demonstrator", "shuffle_episodes"} <= arguments.keys():
        raise ValueError(f"{run} was not trained on histories (zoo.compressed_ad.HistoryData)")
    return arguments


def _compare_arms(arms: Mapping[str, Arm], kinds: Mapping[str, str]) -> None:
    """Refuse arms whose memory is not of their kind, or that differ in more from the first."""
    reference = next(iter(arms.values())).facts
    for name, arm in arms.items():
        if len(arm.facts) != len(reference):
            raise ValueError(f"expected as many runs in each group, found {len(reference)} and {len(arm.facts)}")
        for facts, other in zip(arm.facts, reference, strict=True):
            kind = _kind(facts["policy"])
            if kind != kinds[name]:
                raise ValueError(f"{facts['run']} has {kind}, expected {kinds[name]}")
            window, expected = facts["policy"]["window"], other["policy"]["window"]
            if window != expected:
                raise ValueError(f"{facts['run']} has a window of {window}, {other['run']} one of {expected}")
            if [row["task"] for row in facts["tasks"]] != [row["task"] for row in other["tasks"]]:
                raise ValueError(f"{facts['run']} and {other['run']} hold out other goals; give runs of the same seeds")


def _kind(policy: Mapping[str, Any]) -> str:
    if policy["compressor"] is None:
        return "sliding window"
    return "latents" if policy["num_latents"] else "none"


def _keep(
    run: Path,
    name: str,
    findings: Sequence[Finding],
    arms: Mapping[str, Arm],
    sources: Mapping[str, Sequence[float]] | None = None,
) -> list[Finding]:
    """Add what the figures are compared with, and write all of it and the curves into a run."""
    pooled = {label: arm.pooled() for label, arm in arms.items()}
    baselines = next(iter(pooled.values()))["baselines"]
    kept = [*findings, *(Finding(f"{key} actions", baselines[key], "") for key in ("random", "oracle"))]
    figure = plots.curves(pooled, sources)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    for label, arm in arms.items():
        if arm.facts[0]["gap"] is not None:
            place = arm.facts[0]["episodes"] + 1
            colour = lines[label].get_color()
            figure.axes[0].plot(place, fmean(arm.after_gap()), "D", color=colour, label=f"{label}, after the gap")
    plots.legend_beside(figure.axes[0])
    write_figure(Path(run) / FOLDER / FIGURE, figure)
    runs = {label: [facts["run"] for facts in arm.facts] for label, arm in arms.items()}
    curves = {label: arm.curves() for label, arm in arms.items()}
    save(Path(run) / FOLDER / NAME, kept, evidence=name, runs=runs, curves=curves, sources=dict(sources or {}))
    return kept


def _each(
    name: str, values: Sequence[float], unit: str = "", at_least: float | None = None, at_most: float | None = None
) -> list[Finding]:
    """A figure's mean over runs, and where there are several that of the worst run."""
    limits: dict[str, Any] = {"at_least": at_least, "at_most": at_most}
    found = [_mean(name, values, unit, **limits)]
    if len(values) > 1:
        worst = max(values) if at_least is None else min(values)
        found.append(Finding(f"{name}, the worst run", worst, unit, **limits))
    return found


def _mean(name: str, values: Sequence[float], unit: str = "", **limits: Any) -> Finding:
    return Finding(name, fmean(values), unit, **limits, details=_by_run(values))


def _by_run(values: Sequence[float]) -> dict[str, str]:
    return {"runs": " ".join(f"{value:.3g}" for value in values)}


def _ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Quotients, infinite where something is divided by nothing."""
    return [one / other if other else float("inf") for one, other in zip(numerators, denominators, strict=True)]


if __name__ == "__main__":
    gathered = {"demo": gather_demo, "demo_9x9": gather_demo_9x9, "memory": gather_memory}
    evidence({**gathered, "points": gather_points, "lakes": gather_lakes, "chain": gather_chain})
