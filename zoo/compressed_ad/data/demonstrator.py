"""Learning histories without learning: a demonstrator that knows the task acts less and less at random."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.common.draws import seeded_uniforms
from zoo.common.ranges import at_least, positive, within
from zoo.compressed_ad.envs.grids import Env
from zoo.compressed_ad.nets.steps import Steps


class EpsilonCurriculum:
    """Histories in which the share of random actions falls linearly from 1 to `1 - best`.

    Args:
        env: the family of tasks; knows the optimal actions.
        episodes: of a history, at least 1.
        best: share of optimal actions at the end, 0 to 1.
        greedy_after: share of the history after which it is reached, above 0, at most 1.

    Source: Zisman et al., "Emergence of In-Context Reinforcement Learning from Noise Distillation" (2024), section 3.
    """

    def __init__(self, env: Env, episodes: int, best: float = 1.0, greedy_after: float = 0.9) -> None:
        at_least(1, episodes=episodes)
        within(0, 1, best=best, greedy_after=greedy_after)
        positive(greedy_after=greedy_after)
        self.env = env
        self.episodes = episodes
        self.best = best
        self.greedy_after = greedy_after

    @property
    def length(self) -> int:
        """Steps of a history."""
        return self.episodes * self.env.horizon

    def epsilons(self) -> Tensor:
        """How likely each step of a history is random, (length,) float64."""
        progress = torch.arange(self.length, dtype=torch.float64) / (self.greedy_after * self.length)
        return 1 - self.best * progress.clamp(max=1)

    def histories(self, tasks: Tensor, seeds: Sequence[int]) -> Steps:
        """One history of `length` transitions for each task (B, F), by its task and its seed (0 to 2**64 - 1) alone."""
        if len(seeds) != len(tasks):
            raise ValueError(f"{len(tasks)} tasks need as many seeds, found {len(seeds)}")
        envs = self.env.start(tasks, seeds)
        draws = seeded_uniforms(seeds, self.length).to(tasks.device)
        epsilons = self.epsilons().to(tasks.device)[:, None]
        # A draw below epsilon, divided by it, is uniform again: it chooses the random action.
        number = self.env.num_actions
        chosen = (draws / epsilons.clamp(min=1e-12) * number).clamp(max=number - 1).long().unbind()
        at_random = (draws < epsilons).unbind()
        states, actions, rewards, next_states = [], [], [], []
        for random, choice in zip(at_random, chosen, strict=True):
            states.append(envs.states)
            actions.append(torch.where(random, choice, envs.optimal_actions()))
            step = envs.step(actions[-1])
            rewards.append(step.rewards)
            next_states.append(step.next_states)
        ends = torch.arange(1, self.length + 1, device=tasks.device) % self.env.horizon == 0
        return Steps(
            states=torch.stack(states, dim=1),
            actions=torch.stack(actions, dim=1),
            rewards=torch.stack(rewards, dim=1),
            next_states=torch.stack(next_states, dim=1),
            dones=ends.repeat(len(tasks), 1),
        )
