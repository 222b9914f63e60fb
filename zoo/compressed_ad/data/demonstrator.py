"""Learning histories of a demonstrator that knows the task and acts less and less at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_positive, check_within
from zoo.common.registry import get_function
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.envs.base import BatchedEnvs, Env, Transition
from zoo.compressed_ad.envs.explorer import Explorer, can_explore
from zoo.compressed_ad.envs.grids import BatchedGrids
from zoo.compressed_ad.envs.spaces import Discrete, count_random_numbers, random_actions, tensor_dtype
from zoo.compressed_ad.nets.steps import Steps

Demonstrator = Callable[[Tensor, Tensor], Tensor]


class EpsilonCurriculum:
    """Histories in which the share epsilon of random actions falls linearly from 1 to `1 - best`.

    A Discrete action is random with probability epsilon. One in a Box is the sum of (1 - epsilon) of the demonstrator's
    and epsilon of a uniformly random one.

    Args:
        env: the family of tasks, with known best actions where there is no `demonstrator`.
        episodes: of a history, at least 1; where episodes end early, there are more in as many steps.
        best: share of optimal actions at the end, 0 to 1.
        greedy_after: share of the history after which it is reached, above 0, at most 1.
        demonstrator: dotted path of a function of an admitted package (`--allow-import`), from states
            (B, *observation) and tasks (B, F) int64 to actions (B, *action).
        explores: the demonstrator, too, has to find the goals of a grid, see
            `zoo.compressed_ad.envs.baselines.Explorer`. Histories then show how to look for a new goal.

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
        """Return the share of random actions at each step, (length,) float64."""
        progress = torch.arange(self.length, dtype=torch.float64) / (self.greedy_after * self.length)
        return 1 - self.best * progress.clamp(max=1)

    def histories(self, tasks: Tensor, seeds: Sequence[int]) -> Steps:
        """Make a history of `length` transitions for each task (B, F), by its task and seed (0 to 2**64 - 1) alone."""
        fields: list[list[Tensor]] = [[], [], [], [], []]
        for states, actions, result in self.run(tasks, seeds):
            values = (states, actions, result.rewards, result.next_states, result.dones)
            for field, value in zip(fields, values, strict=True):
                field.append(value)
        return Steps(*(torch.stack(field, dim=1) for field in fields))

    def run(self, tasks: Tensor, seeds: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Transition]]:
        """Yield states, actions and their result, step after step of `length`."""
        if len(seeds) != len(tasks):
            raise ValueError(f"{len(tasks)} tasks need as many seeds, found {len(seeds)}")
        envs = self.env.start(tasks, seeds)
        explorer = Explorer(envs) if self.explores and isinstance(envs, BatchedGrids) else None
        demonstrate = (lambda: self._demonstrate(envs)) if explorer is None else explorer.actions
        act = self._choose if isinstance(self.env.schema.action, Discrete) else self._mix
        for actions in act(envs, seeds, demonstrate):
            states = envs.states
            transition = envs.step(actions)
            if explorer is not None:
                explorer.observe(transition)
            yield states, actions, transition

    def _choose(self, envs: BatchedEnvs, seeds: Sequence[int], demonstrate: Callable[[], Tensor]) -> Iterator[Tensor]:
        count, device = int(self.env.schema.action.n), envs.tasks.device  # type: ignore[union-attr]
        uniforms = sample_uniforms(seeds, self.length).to(device)
        epsilons = self.epsilons().to(device)[:, None]
        # A number below epsilon, divided by it, is uniform again: it chooses the random action.
        choices = (uniforms / epsilons.clamp(min=1e-12) * count).clamp(max=count - 1).long().unbind()
        for is_random, choice in zip((uniforms < epsilons).unbind(), choices, strict=True):
            yield torch.where(is_random, choice, demonstrate())

    def _mix(self, envs: BatchedEnvs, seeds: Sequence[int], demonstrate: Callable[[], Tensor]) -> Iterator[Tensor]:
        space = self.env.schema.action
        width = count_random_numbers(space)
        uniforms = sample_uniforms(seeds, self.length * width).to(envs.tasks.device).unflatten(0, (-1, width))
        for epsilon, row in zip(self.epsilons().tolist(), uniforms, strict=True):
            mixed = epsilon * random_actions(space, row) + (1 - epsilon) * demonstrate()
            yield mixed.to(tensor_dtype(space))

    def _demonstrate(self, envs: BatchedEnvs) -> Tensor:
        if self.demonstrator is None:
            return envs.optimal_actions()
        return self.demonstrator(envs.states, envs.tasks)
