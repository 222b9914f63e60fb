"""What a rule that joins the agents is worth when one of them is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from zoo.ci_llm.evaluation.scoring import fit_weights, rules, score_all
from zoo.ci_llm.evaluation.trained import load_crowd, validation_examples
from zoo.ci_llm.nets.agents import Agents

NOISE = 2.0  # on the weights of the spoiled agent, as a part of their own size


def spoiled_scores(run: Path, agent: int = 0, noise: float = NOISE, seed: int = 0) -> dict[str, dict[str, float]]:
    """Summaries of each rule that joins the agents, on the run's test, when one agent's weights are noisy.

    Args:
        run: run folder; the agents' weights are fitted anew on its validation set.
        agent: to be spoiled.
        noise: standard deviation, as a part of the root mean square of each of its weight matrices.

    Returns:
        What `zoo.ci_llm.losses.metrics.CrowdScores.summary` tells, by rule.
    """
    trained, data, _ = load_crowd(run)
    form = (trained.crowd, trained.tokenizer, trained.template)
    with spoiled(trained.crowd.agents, agent, noise, seed):
        alpha, _ = fit_weights(*form, validation_examples(data))
        scores = score_all(*form, data.examples("test"), rules(trained.crowd.count, alpha))
    return {name: each.summary() for name, each in scores.items()}


@contextmanager
def spoiled(agents: Agents, agent: int, noise: float, seed: int) -> Iterator[None]:
    """Add noise to the weights of an agent for a while."""
    before = {key: value.clone() for key, value in agents.adapter(agent).items()}
    generator = torch.Generator().manual_seed(seed)
    drawn = {key: torch.randn(value.shape, generator=generator).to(value.device) for key, value in before.items()}
    noisy = {key: value + noise * value.square().mean().sqrt() * drawn[key] for key, value in before.items()}
    agents.load_adapter(agent, noisy)
    try:
        yield
    finally:
        agents.load_adapter(agent, before)
