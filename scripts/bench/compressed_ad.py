"""Benchmarks of in-context learning: python -m scripts.bench.compressed_ad stepping|ppo|training|all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scripts.bench.compressed_ad_originals import LastActionPolicy, PythonDarkroom, PythonEnvs
from scripts.bench.tools import Cost, Finding, Settings, command, cost_of, in_folders, interleave, median, ratios
from zoo.cli.trainer import ZooCLI
from zoo.compressed_ad.collecting.collect import collect, last_returns
from zoo.compressed_ad.collecting.ppo import PPO
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.baselines import oracle_return
from zoo.compressed_ad.envs.grids import BatchedGrids, Darkroom
from zoo.compressed_ad.losses import cross_entropy
from zoo.compressed_ad.nets.embedding import LinearEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.nets.transformer import Transformer

COPIES = 100  # of the original's environment
ORIGINAL_STEPS = 145_000  # a second, of the original's environments where the spec was written
EXAMPLE_GOAL, EXAMPLE_RETURN = [5, 6], 14.4  # and what the original's PPO ends with there
WINDOW, BATCH = 240, 32  # of the original's algorithm distillation
CLIP = 1.0


def stepping(settings: Settings) -> list[Finding]:
    """Random steps in dark rooms of one tensor, against Python objects in a loop."""
    env = Darkroom()
    tasks, length = env.tasks(), settings.few(400, 40)
    loop = PythonEnvs([PythonDarkroom(tasks[number % len(tasks)].tolist()) for number in range(COPIES)])
    original = partial(_walk, loop, list(torch.randint(env.num_actions, (length, COPIES)).numpy()))
    findings = []
    for count in (10_000, 1_000):
        envs = env.start(tasks[torch.arange(count) % len(tasks)])
        runs = {
            "ours": partial(_walk, envs, torch.randint(env.num_actions, (length, count)).unbind()),
            "original": original,
        }
        costs = interleave(runs, settings.few(15, 2))
        name = f"{count} environments at once: times as many steps as in a loop over {COPIES}"
        units = {"ours": length * count, "original": length * COPIES}
        findings.append(_times_as_many(name, costs, units, "steps", at_least=100.0))
        rate = findings[-1].details["ours, steps/s"]
        findings.append(
            Finding(f"{count} environments at once", rate / 1e6, "M steps/s", at_least=100 * ORIGINAL_STEPS / 1e6)
        )
    return findings


def ppo(settings: Settings) -> list[Finding]:
    """All goals of the dark room learned by PPO, with the original's streams and episodes."""
    env, folder = Darkroom(), settings.folder / "histories"
    example = env.tasks().tolist().index(EXAMPLE_GOAL)
    goals = [example] if settings.quick else None
    sizes = settings.few(52, 8), settings.few(100, 10)
    cost = cost_of(partial(collect, env, folder, PPO(), *sizes, goals, progress=False))
    store = HistoryStore(folder)
    returns, best = last_returns(store), oracle_return(store.env, store.tasks)
    learned = float(returns[store.task_indices.tolist().index(example)])
    details = {"by wall time, min": cost.wall / 60, "goals": len(store), "streams": store.streams, "steps": store.steps}
    means = {"the best possible": float(best.mean()), "lowest of a goal": float(returns.min())}
    return [
        Finding("PPO on all goals, processor time", cost.cpu / 60, "min", at_most=10.0, details=details),
        Finding("last episode, goal (5, 6)", learned, "", at_least=13.0, details={"the original": EXAMPLE_RETURN}),
        Finding("last episode, mean over goals", float(returns.mean()), "", details=means),
    ]


def training(settings: Settings) -> list[Finding]:
    """Actions that have a loss, per second: each of a window, against the original's last one, at equal net."""
    torch.manual_seed(0)
    env, batch = Darkroom(), settings.few(BATCH, 2)
    tasks = env.tasks()[torch.arange(batch)]
    steps = EpsilonCurriculum(env, WINDOW // env.horizon).histories(tasks, range(batch))
    findings = []
    for fused in (True, False):
        net = Transformer(32, 4, 4, WINDOW)
        policy = InContextPolicy(LinearEmbedding(32), net, arrangement="fused" if fused else "separate")
        original = LastActionPolicy(policy)
        runs = {
            "ours": Training(policy, partial(every_action, policy), steps),
            "original": Training(original, original, steps),
        }
        costs = interleave(runs, settings.few(7, 1), warmup=settings.few(1, 0))
        name = f"window of {WINDOW}, {policy.arrangement} tokens: times as many actions trained"
        units = {"ours": batch * WINDOW, "original": batch}
        findings.append(_times_as_many(name, costs, units, "actions", at_least=20.0))
    return findings


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {each.__name__: each for each in (stepping, ppo, training)}


class Training:
    """A plain training loop on one batch: cross-entropy, clipping, AdamW as in the original.

    Args:
        net: that is trained.
        predict: its logits (B, n, actions) of the last n steps of histories.
        batch: of histories.
    """

    def __init__(self, net: nn.Module, predict: Callable[[Steps], Tensor], batch: Steps) -> None:
        self.net, self.predict, self.batch = net.train(), predict, batch
        self.optimizer = torch.optim.AdamW(net.parameters(), 3e-4, (0.9, 0.99), weight_decay=0.01)

    def __call__(self) -> None:
        """Train on the batch."""
        logits = self.predict(self.batch)
        loss = cross_entropy(logits, self.batch.actions[:, -logits.shape[1] :]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)
        self.optimizer.step()


def every_action(policy: InContextPolicy, steps: Steps) -> Tensor:
    """Logits (B, L, actions)."""
    return policy(steps).logits


def _walk(envs: BatchedGrids | PythonEnvs, actions: Sequence[Any]) -> None:
    """Take one step after the other."""
    step = envs.step
    for each in actions:
        step(each)


def _times_as_many(
    name: str, costs: dict[str, list[Cost]], units: dict[str, int], what: str, at_least: float | None
) -> Finding:
    """How much the first of two contestants does in the time of the second, by processor time."""
    zoo_policy, other = ([cost / units[key] for cost in measured] for key, measured in costs.items())
    ratio = ratios(other, zoo_policy)
    rates = {f"{key}, {what}/s": units[key] / median(measured).cpu for key, measured in costs.items()}
    details = {"by wall time, x": ratio.wall, **rates, "rounds": len(zoo_policy)}
    return Finding(name, ratio.cpu, "x", at_least=at_least, details=details)


if __name__ == "__main__":
    command("compressed_ad", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
