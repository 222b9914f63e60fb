"""What in-context policies have learned: figures of one seed's runs on goals that were never trained; see `run.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Discrete

from scripts.bench.tools import cost_of, peak_memory
from scripts.evidence import anymdp
from scripts.evidence.gallery import FOLDER as GALLERY
from zoo.common.build import build
from zoo.common.configs import load_yaml
from zoo.common.reports import write_figure
from zoo.common.systems import recipe_root
from zoo.compressed_ad.collecting.collect import recipe_env
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.evaluation.evaluate import RETURNS_NAME, evaluate, load_agent, split_tasks
from zoo.compressed_ad.evaluation.plots import learning_curves
from zoo.compressed_ad.evaluation.report import source_curve
from zoo.compressed_ad.evaluation.summary import bootstrap_groups
from zoo.compressed_ad.inference import pairs
from zoo.compressed_ad.nets.policy import ContextState, InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.runs.run_folder import find_config

SEEDS, MANY, FEW = 20, 100, 2  # agents for each held-out goal; few of them are quick
SMALL, LARGE, POINTS = Darkroom(5, 10), Darkroom(9, 20), PointMass(64, 20)
LEARNED = "histories learned from"
SHUFFLED, MIXED = "control, shuffled episodes", "control, episodes of many goals"
CAD, SCRATCH, AD = "CAD", "CAD without pre-training", "AD"
FULL, SOURCE, EVALUATED = "AD, the whole context", "source algorithm", Path("evidence", "evaluation")
CONTEXT, EPISODES, TOKENS, AGENTS = 400, 20, 6400, 32  # of `anymdp`: steps, episodes; in a training step; at once
ACTING, CONTEXT_KIB = "CPU ms of a step of 32 agents", "KiB of an agent's context at most"
_RISE = "last above first"
_RISEN = "twentieth episode above the first, share of the way from random to the best possible"
ANYMDP_CLAIMS = (  # arm, figure, of what it is a share, title, statistic, at most, at least
    (FULL, _RISE, None, f"{FULL}: {_RISEN}", "every seed", None, 0.1),
    (AD, _RISE, None, f"{AD}: {_RISEN}", "every seed", None, 0.08),
    (CAD, _RISE, None, f"{CAD}: {_RISEN}", "every seed", None, 0.03),
    (FULL, "last", SOURCE, "twentieth episode, AD with the whole context to the source algorithm", "mean", None, 0.3),
    (CAD, "last", AD, "twentieth episode, CAD to AD at the same window", "mean", None, 1.0),
    (CAD, "mean", AD, "all twenty episodes, CAD to AD at the same window", "every seed", None, 1.0),
    (CAD, ACTING, AD, "processor time of an acting step, CAD to AD at the same window", "every seed", 0.2, None),
    (CAD, CONTEXT_KIB, FULL, "memory of an agent's context, CAD to AD with all of it", "every seed", 0.35, None),
)
Figures = dict[str, float]


class Limits(NamedTuple):
    """Thresholds of returns that rise in context, as shares of the way from random to the oracle.

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
    """An evaluated run: the facts of `evaluate` and the mean return of each episode."""

    facts: dict[str, Any]
    curve: list[float]

    def baselines(self) -> Figures:
        """Return the returns of random actions and of the best ones."""
        return {f"{key} actions": self.facts["baselines"][key] for key in ("random", "oracle")}

    def shares(self) -> tuple[float, float]:
        """Return how much of the way from random to the oracle the first and the last episode go."""
        low, high = self.baselines().values()
        return (self.curve[0] - low) / (high - low), (self.curve[-1] - low) / (high - low)

    def after_gap(self) -> float:
        """Return the return after the memory gap.

        Raises:
            ValueError: when no agent had found its goal, so that there was nothing to remember.
        """
        after = self.facts["gap"]["after"]
        if after is None:
            raise ValueError(f"{self.facts['run']}: no agent found its goal, so there is no memory to probe")
        return float(after)


def measure_demo(run: Path, shuffled: Path, mixed: Path, quick: bool = False) -> Figures:
    """Evaluate runs of `demo` on held-out goals.

    Args:
        run: of the recipe as it is.
        shuffled: of the control with `shuffle_episodes`: no improvement to imitate, but a goal to infer, so it rises.
        mixed: of the control with `shuffle_episodes` and `mix_tasks`: neither, so it is flat.
        quick: few agents.

    Raises:
        ValueError: when a run is of something else.
    """
    arm = _play_control(run, SMALL, False, False, quick)
    figures = {"last episode": arm.curve[-1], "last episode to the first": _ratio(arm)}
    for label, control, mix in ((SHUFFLED, shuffled, False), (MIXED, mixed, True)):
        figures[f"{label}: last episode to the first"] = _ratio(_play_control(control, SMALL, True, mix, quick))
    return figures | arm.baselines()


def measure_demo_9x9(run: Path, quick: bool = False) -> Figures:
    """Evaluate a run of `demo_9x9` on held-out goals, and the histories that it learned from."""
    arm = play(run, LARGE, quick=quick)
    source = demonstrated(run, arm.facts)
    figures = {"first episode": arm.curve[0], "last episode": arm.curve[-1], f"{LEARNED}, last episode": source[-1]}
    return figures | arm.baselines()


def measure_memory(latents: Path, none: Path, sliding: Path, quick: bool = False) -> Figures:
    """Evaluate the arms of `demo_memory`: the same window, and what lies before it compressed, forgotten, or slid out.

    Raises:
        ValueError: when runs differ in goals or window, or a run is of something else.
    """
    runs = {"latents": latents, "none": none, "sliding window": sliding}
    arms = {name: play(run, SMALL, gap=True, quick=quick) for name, run in runs.items()}
    _compare_arms(arms, {name: name for name in arms})
    figures: dict[str, float] = {}
    for name, arm in arms.items():
        figures |= {f"{name}, last episode": arm.curve[-1], f"{name}, after the gap": arm.after_gap()}
    return figures


def measure_chain(cad: Path, scratch: Path, ad: Path, quick: bool = False) -> Figures:
    """Evaluate the arms of `demo_chain` on held-out goals: the same window on the same histories of PPO.

    Args:
        cad: run of the recipe, begun from a pre-training.
        scratch: without pre-training.
        ad: with a sliding window in place of latents.
        quick: few agents.

    Raises:
        ValueError: when runs differ in goals, window or histories, or a run is of something else.
    """
    runs = {CAD: cad, SCRATCH: scratch, AD: ad}
    for label, run in runs.items():
        source = load_yaml(find_config(run).read_text(encoding="utf-8")).get("init_from")
        if (source is not None) is not (label == CAD):
            raise ValueError(f"{run}: init_from is {source}, which is not {label}")
    if len({str(_data_of(run)["root"]) for run in runs.values()}) > 1:
        raise ValueError(f"{cad}, {scratch} and {ad} learned from different histories")
    arms = {name: play(run, SMALL, quick=quick, seeds=MANY) for name, run in runs.items()}
    _compare_arms(arms, {CAD: "latents", SCRATCH: "latents", AD: "sliding window"})
    figures = {f"{LEARNED}, last episode": demonstrated(cad, arms[CAD].facts)[-1]}
    for name, arm in arms.items():
        figures |= {f"{name}, last episode": arm.curve[-1], f"{name}, all episodes": fmean(arm.curve)}
    return figures


def measure_points(run: Path, mixed: Path, quick: bool = False) -> Figures:
    """Evaluate runs of `demo_points` on held-out goals; `mixed` is the control that has nothing to learn from."""
    return _rises(run, mixed, POINTS, quick)


def measure_lakes(run: Path, mixed: Path, quick: bool = False) -> Figures:
    """Evaluate runs of `demo_lakes` on held-out lakes, as `measure_points` does, and the histories learned from."""
    env = recipe_env(recipe_root() / "compressed_ad" / "demo_lakes.yaml")
    source = demonstrated(run, play(run, env, quick=quick).facts)
    learned = {f"{LEARNED}, first episode": source[0], f"{LEARNED}, last episode": source[-1]}
    return _rises(run, mixed, env, quick) | learned


def measure_anymdp(whole: Path, cad: Path, sliding: Path, histories: Path, quick: bool = False) -> Figures:
    """Evaluate the arms of `anymdp` on held-out tasks: shares of the mean way from random actions to the best.

    Args:
        whole: run with a window of the whole context.
        cad: of the recipe, with a fourth of it and latents.
        sliding: with a sliding window of the same size in place of latents.
        histories: that all learned from, of the source algorithm.
        quick: changes nothing: there is one agent for each task.

    Raises:
        ValueError: when runs differ in tasks or window, or a run is of something else.
    """
    env = recipe_env(recipe_root() / "compressed_ad" / "anymdp.yaml")
    runs = {FULL: whole, CAD: cad, AD: sliding}
    arms = {label: play(run, env, seeds=1) for label, run in runs.items()}
    _compare_arms({label: arms[label] for label in (CAD, AD)}, {CAD: "latents", AD: "sliding window"})
    earned = {label: np.load(run / EVALUATED / RETURNS_NAME, allow_pickle=False) for label, run in runs.items()}
    store, held_out = HistoryStore(histories), [int(row["task"]) for row in arms[CAD].facts["tasks"]]
    at = {int(task): position for position, task in enumerate(store.tasks[:, 0])}
    earned[SOURCE] = np.stack([store.returns(at[task])[:, :EPISODES] for task in held_out])
    tasks = {name: values[held_out] for name, values in anymdp.load_tasks().items()}
    random, best = anymdp.returns(tasks["transition"], tasks["reward"], tasks["start"])
    figures: Figures = {"held-out tasks": float(len(held_out))}
    for label, returns in earned.items():
        shares = (returns - random[:, None, None]) / (best - random).mean()  # (tasks, agents, episodes)
        (first, *_, last), (low, high) = shares.mean((0, 1)), bootstrap_groups(shares)
        named = {"first": first, "last": last, "last, low": low[-1], "last, high": high[-1], "mean": shares.mean()}
        figures |= {f"{label}, {name}": float(value) for name, value in named.items()}
        figures[f"{label}, last above first"] = float(last - first)
    for label, run in runs.items():
        figures |= {f"{label}, {name}": value for name, value in _costs(run).items()}
    curves = learning_curves({label: arm.facts for label, arm in arms.items()}, {SOURCE: earned[SOURCE].mean((0, 1))})
    write_figure(whole.parent / GALLERY / "returns.png", curves)
    return figures


def _costs(run: Path) -> Figures:
    """Return what a training step of 6,400 tokens costs on one thread, and acting until a context of 400 is full."""
    policy = load_agent(run).policy
    length = CONTEXT if policy.compressor is not None else policy.window
    seconds = sorted(cost_of(lambda: _learn(policy, length)).cpu for _ in range(3))[1]
    before, after = peak_memory(_load_and_learn, run, length)
    state, steps, sizes = policy.begin(), _random_steps(policy, AGENTS, CONTEXT - 1), [0]

    def act() -> None:
        with torch.inference_mode():
            for time in range(CONTEXT - 1):
                step = steps.slice(time, time + 1)
                policy.act(state, step.states[:, 0])
                sizes.append(_bytes(state))
                policy.observe(state, step)

    return {
        "CPU ms of a training step": 1000 * seconds,
        "MiB of a training step": after - before,
        ACTING: 1000 * cost_of(act).cpu / (CONTEXT - 1),
        CONTEXT_KIB: max(sizes) / AGENTS / 1024,
    }


def _load_and_learn(run: Path, length: int) -> None:
    _learn(load_agent(run).policy, length)


def _learn(policy: InContextPolicy, length: int) -> None:
    """Compute the gradients of a training step."""
    policy(_random_steps(policy, TOKENS // length, length)).logits.mean().backward()


def _random_steps(policy: InContextPolicy, count: int, length: int) -> Steps:
    states, actions = policy.embedding.observation_space, policy.embedding.action_space
    assert isinstance(states, Discrete) and isinstance(actions, Discrete)
    shape = (count, length)
    first, next_states = (torch.randint(int(states.n), shape) for _ in range(2))
    chosen, ended = torch.randint(int(actions.n), shape), torch.zeros(shape, dtype=torch.bool)
    return Steps(first, chosen, torch.randn(shape), next_states, ended)


def _bytes(state: ContextState) -> int:
    """Return the bytes of latents, transitions, keys and values."""
    layers = [] if state.cache is None else [each for layer in state.cache.layers if layer for each in layer]
    tensors = [*(state.steps or ()), *layers, *([] if state.latents is None else [state.latents])]
    return sum(each.numel() * each.element_size() for each in tensors)


def _rises(run: Path, mixed: Path, env: Env, quick: bool) -> Figures:
    arm, control = (_play_control(each, env, mix, mix, quick) for each, mix in ((run, False), (mixed, True)))
    (first, last), (control_first, control_last) = arm.shares(), control.shares()
    rise = "last episode above the first, share of the way"
    figures = {"first episode, share of the way": first, "last episode, share of the way": last, rise: last - first}
    return figures | {f"{MIXED}: {rise}": control_last - control_first} | arm.baselines()


def _play_control(run: Path, env: Env, shuffle: bool, mix: bool, quick: bool) -> Arm:
    windows = _data_of(run)["windows"]
    for key, expected in (("shuffle_episodes", shuffle), ("mix_tasks", mix)):
        if windows[key] is not expected:
            raise ValueError(f"{run}: data.init_args.windows.{key} is {not expected}, expected {expected} here")
    return play(run, env, quick=quick)


def play(run: Path, env: Env, gap: bool = False, quick: bool = False, seeds: int | None = None) -> Arm:
    """Evaluate a run on its held-out goals, for as many episodes as it was trained for.

    Args:
        run: run folder; it keeps its evaluation in `evidence/`.
        env: where it must have been trained.
        gap: also probe the memory.
        quick: with few agents.
        seeds: agents for each goal, in place of the usual number.

    Raises:
        ValueError: when the run is of another environment, or was evaluated with other weights before.
    """
    agent = load_agent(run)
    if agent.env.describe() != env.describe():
        raise ValueError(f"{run} was trained in {agent.env.describe()}, expected {env.describe()}")
    output = run / EVALUATED
    facts = evaluate(run, output, agent.episodes, FEW if quick else seeds or SEEDS, gap=gap, progress=False)
    returns = np.load(output / RETURNS_NAME, allow_pickle=False)  # (goals, seeds, episodes)
    return Arm(facts, returns.mean(axis=(0, 1), dtype=np.float64).tolist())


def demonstrated(run: Path, facts: Mapping[str, Any]) -> list[float]:
    """Return the mean return of each episode of the histories that a run learned from, for the held-out goals.

    Args:
        run: with its config.
        facts: of its evaluation.
    """
    data = _data_of(run)
    if data["root"] is not None:
        return source_curve(Path(data["root"]), facts)
    demonstrator: EpsilonCurriculum = build(data["demonstrator"])
    tasks, seeds = pairs(demonstrator.env, split_tasks(run, demonstrator.env, facts["split"])[0], range(SEEDS))
    rewards = demonstrator.histories(tasks, seeds).rewards
    return rewards.unflatten(1, (demonstrator.episodes, -1)).sum(2).double().mean(0).tolist()


def _data_of(run: Path) -> dict[str, Any]:
    """Return the arguments of the data that a run was trained on."""
    arguments = load_yaml(find_config(run).read_text(encoding="utf-8"))["data"]["init_args"]
    if not {"root", "demonstrator", "windows"} <= arguments.keys():
        raise ValueError(f"{run} was not trained on histories (zoo.compressed_ad.HistoryData)")
    return dict(arguments)


def _compare_arms(arms: Mapping[str, Arm], kinds: Mapping[str, str]) -> None:
    """Refuse arms whose memory is not of their kind, or that differ in more from the first."""
    other = next(iter(arms.values())).facts
    for name, arm in arms.items():
        facts, policy = arm.facts, arm.facts["policy"]
        kind = "sliding window" if policy["compressor"] is None else "latents" if policy["num_latents"] else "none"
        if kind != kinds[name]:
            raise ValueError(f"{facts['run']} has {kind}, expected {kinds[name]}")
        if policy["window"] != other["policy"]["window"]:
            raise ValueError(f"{facts['run']} has a window of {policy['window']}, {other['run']} another one")
        if [row["task"] for row in facts["tasks"]] != [row["task"] for row in other["tasks"]]:
            raise ValueError(f"{facts['run']} and {other['run']} hold out other goals; give runs of the same seed")


def _ratio(arm: Arm) -> float:
    return arm.curve[-1] / arm.curve[0] if arm.curve[0] else float("inf")
