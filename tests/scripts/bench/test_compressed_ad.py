"""Benchmarks at tiny size: that they run and report, and that contestants compute the same."""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scripts.bench import compressed_ad as benchmark
from scripts.bench.compressed_ad import Training, cut, every_action, histories, last_action
from scripts.bench.compressed_ad_originals import LastActionPolicy, PythonDarkroom, PythonEnvs
from scripts.bench.tools import Settings
from zoo.compressed_ad.data.datamodule import HistoryData
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.nets.embedding import FactoredEmbedding, LinearEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.transformer import Transformer

ENV = Darkroom(3, 4)


def build_data() -> HistoryData:
    return HistoryData(ENV, demonstrator=EpsilonCurriculum(ENV, 3), batch_size=4, epoch_items=8, train_share=0.7)


def build_policy(arrangement: str = "fused") -> InContextPolicy:
    torch.manual_seed(0)
    return InContextPolicy(LinearEmbedding(16, 3), Transformer(16, 2, 2, 12, dropout=0.0), arrangement=arrangement)


def build_fit(args: list[str]) -> SimpleNamespace:
    """What the command line would build, at tiny size."""
    assert Path(args[0].removeprefix("--config=")).is_file()
    policy = InContextPolicy(FactoredEmbedding(16, 3), Transformer(16, 1, 2, 12, dropout=0.0))
    model = SimpleNamespace(policy=policy, episodes=3, optimizer=partial(torch.optim.AdamW, lr=1e-3))
    return SimpleNamespace(model=model, datamodule=build_data())


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(benchmark, "WINDOW", 20)
    monkeypatch.setattr(benchmark, "PAIRS", {16: 3.0, 8: None})
    return Settings(build_fit, tmp_path, quick=True)


@pytest.mark.parametrize("name", benchmark.BENCHMARKS)
def test_reports_figures(name: str, settings: Settings) -> None:
    findings = benchmark.BENCHMARKS[name](settings)
    assert all(np.isfinite(each.value) for each in findings)


def test_python_worlds_do_what_zoo_do() -> None:
    env = Darkroom()
    tasks = env.tasks()[[0, 31, 40, 49]]
    actual, original = env.start(tasks), PythonEnvs([PythonDarkroom(task) for task in tasks.tolist()])
    total = 0
    for actions in torch.randint(5, (2 * env.horizon, 4), generator=torch.Generator().manual_seed(0)):
        step = actual.step(actions)
        states, rewards, dones, records = original.step(actions.numpy())
        assert np.array_equal(states, actual.states) and np.array_equal(rewards, step.rewards)
        assert np.array_equal(dones, step.dones)
        ends = step.next_states.tolist()
        assert [record["terminal_observation"].tolist() for record in records if record] == (
            ends if step.dones.all() else []
        )
        total += int(rewards.sum())
    assert total > 3


def test_the_original_shows_the_same_last_action() -> None:
    policy = build_policy("separate")
    steps = EpsilonCurriculum(ENV, 3).histories(ENV.tasks(), range(9))
    original = LastActionPolicy(policy)
    torch.testing.assert_close(original(steps), policy(steps, last_only=True).logits)
    torch.testing.assert_close(original(steps.slice(0, 5))[:, 0], policy(steps).logits[:, 4])


def test_a_batch_is_cut_anywhere_and_only_its_end_is_trained() -> None:
    data = build_data()
    data.setup("fit")
    lengths = {steps.length for steps in itertools.islice(cut(histories(data)), 200)}
    assert lengths == set(range(1, 13))
    steps = next(cut(histories(data), seed=1))
    policy = build_policy()
    assert last_action(policy, steps).shape == (4, 1, 5)
    assert every_action(policy, steps).shape == (4, steps.length, 5)


def test_training_learns_on_a_rate_that_falls_with_the_time_used() -> None:
    policy = build_policy()
    steps = EpsilonCurriculum(ENV, 3, greedy_after=0.01).histories(ENV.tasks(), range(9))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01)
    arm = Training(policy, partial(every_action, policy), itertools.repeat(steps), optimizer, budget=1e6)
    before = every_action(policy, steps).argmax(-1).eq(steps.actions).float().mean()
    for _ in range(40):
        arm()
    assert every_action(policy, steps).argmax(-1).eq(steps.actions).float().mean() > before + 0.2
    assert arm.steps == 40 and arm.used > 0
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 40 / benchmark.WARMUP_STEPS)
    arm.steps, arm.used = 1000, 0.75e6
    assert arm.factor() == pytest.approx(0.5 * (1 + math.cos(0.75 * math.pi)))
    assert Training(policy, arm.predict, arm.batches).factor() == 1
