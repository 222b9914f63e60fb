"""Learning histories without learning: a demonstrator that knows the task acts less and less at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_positive, check_within
from zoo.common.registry import get_function
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.envs.base import Env, Lockstep, random_actions, random_numbers, tensor_dtype
from zoo.compressed_ad.envs.baselines import Explorer, can_explore
from zoo.compressed_ad.envs.grids import BatchedEnv
from zoo.compressed_ad.envs.schema import Discrete
from zoo.compressed_ad.nets.steps import Steps

Demonstrator = Callable[[Tensor, Tensor], Tensor]


class EpsilonCurriculum:
    """Histories in which a share epsilon of what is done is random and falls linearly from 1 to `1 - best`.

    A Discrete action is random with probability epsilon. One in a Box is mixed, (1 - epsilon) of the demonstrator's and
    epsilon of one drawn evenly from the box.

    Args:
        env: the family of tasks; knows the optimal actions, where there is no `demonstrator`.
        episodes: of a history, at least 1; where episodes end early, there are more in as many steps.
        best: share of optimal actions at the end, 0 to 1.
        greedy_after: share of the history after which it is reached, above 0, at most 1.
        demonstrator: dotted path of a function of an admitted package (`--allow-import`), from states
            (B, *observation) and tasks (B, F) int64 to actions (B, *action).
        explores: the demonstrator, too, has to find the goals of a grid: until it has, it looks where it has not been,
            see `zoo.compressed_ad.envs.baselines.Explorer`. Histories then show how to look for a goal that no
            training task has.

    Source: Zisman et al., "Emergence of In-Context Reinforcement Learning from Noise Distillation" (2024), section 3;
    the continuous form as in Vintix, Polubarov et al. (2025).
    """

    def __init__(
        self,
        env: Env,
        episodes: int,
        best: float = 1.0,
        greedy_after: float = 0.9,
        demonstrator: str | None = None,
        explores: bool = False,
    ) -> None:
        check_at_least(1, episodes=episodes)
        check_within(0, 1, best=best, greedy_after=greedy_after)
        check_positive(greedy_after=greedy_after)
        self.env = env
        self.episodes = episodes
        self.best = best
        self.greedy_after = greedy_after
        self.demonstrator: Demonstrator | None = None if demonstrator is None else get_function(demonstrator)
        self.explores = explores
        if explores and (demonstrator is not None or not can_explore(env)):
            raise ValueError(f"explores needs a grid with unknown goals and no demonstrator, found {env.name}")

    @property
    def length(self) -> int:
        """Steps of a history."""
        return self.episodes * self.env.schema.limit

    def epsilons(self) -> Tensor:
        """How likely each step of a history is random, (length,) float64."""
        progress = torch.arange(self.length, dtype=torch.float64) / (self.greedy_after * self.length)
        return 1 - self.best * progress.clamp(max=1)

    def histories(self, tasks: Tensor, seeds: Sequence[int]) -> Steps:
        """One history of `length` transitions for each task (B, F), by its task and its seed (0 to 2**64 - 1) alone."""
        fields: list[list[Tensor]] = [[], [], [], [], []]
        for states, actions, step in self.play(tasks, seeds):
            for field, value in zip(fields, (states, actions, step.rewards, step.next_states, step.dones), strict=True):
                field.append(value)
        return Steps(*(torch.stack(field, dim=1) for field in fields))

    def play(self, tasks: Tensor, seeds: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Any]]:
        """States, actions and what they led to, step after step of `length`."""
        if len(seeds) != len(tasks):
            raise ValueError(f"{len(tasks)} tasks need as many seeds, found {len(seeds)}")
        envs = self.env.start(tasks, seeds)
        explorer = Explorer(envs) if self.explores and isinstance(envs, BatchedEnv) else None
        show = (lambda: self._demonstrated(envs)) if explorer is None else explorer.actions
        act = self._choices if isinstance(self.env.schema.action, Discrete) else self._mixed
        for actions in act(envs, seeds, show):
            states = envs.states
            step = envs.step(actions)
            if explorer is not None:
                explorer.observe(step)
            yield states, actions, step

    def _choices(self, envs: Lockstep, seeds: Sequence[int], show: Callable[[], Tensor]) -> Iterator[Tensor]:
        space, device = self.env.schema.action, envs.tasks.device
        assert isinstance(space, Discrete)
        draws = sample_uniforms(seeds, self.length).to(device)
        epsilons = self.epsilons().to(device)[:, None]
        # A draw below epsilon, divided by it, is uniform again: it chooses the random action.
        chosen = (draws / epsilons.clamp(min=1e-12) * space.n).clamp(max=space.n - 1).long().unbind()
        for random, choice in zip((draws < epsilons).unbind(), chosen, strict=True):
            yield torch.where(random, choice, show())

    def _mixed(self, envs: Lockstep, seeds: Sequence[int], show: Callable[[], Tensor]) -> Iterator[Tensor]:
        space = self.env.schema.action
        width = random_numbers(space)
        draws = sample_uniforms(seeds, self.length * width).to(envs.tasks.device).unflatten(0, (-1, width))
        for epsilon, uniforms in zip(self.epsilons().tolist(), draws, strict=True):
            random = random_actions(space, uniforms)
            yield (epsilon * random + (1 - epsilon) * show()).to(tensor_dtype(space))

    def _demonstrated(self, envs: Lockstep) -> Tensor:
        if self.demonstrator is None:
            return envs.optimal_actions()
        return self.demonstrator(envs.states, envs.tasks)
