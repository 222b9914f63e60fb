"""Acting in context: a frozen policy in many environments at once, its context never cleared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from zoo.common.checks import check_at_least, check_within
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms, widest_float
from zoo.compressed_ad.envs.base import BatchedEnvs, Env
from zoo.compressed_ad.envs.grids import MOVES, BatchedGrids
from zoo.compressed_ad.nets.heads import sample_categorical
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps

RANDOM_STEPS = 256  # whose random numbers are made at once
ValidationRollout = tuple[Tensor, Tensor, list[int], Steps | None]  # tasks, returns, steps of some rows


class Rollout(NamedTuple):
    """Result of acting.

    returns: (B, episodes) float32, on the CPU.
    compressions: steps, counted from 0 over all episodes, after which the context was compressed.
    steps: (B, L), where recorded.
    """

    returns: Tensor
    compressions: list[int]
    steps: Steps | None = None


class ContextPlayer:
    """Acts with all pairs of task and seed together on the policy's device; each call of `run_episodes` continues.

    The action of a pair at a step depends on its seed and the number of the step, not on the other pairs (but for
    rounding in the net). As a context manager it sets the policy to evaluation mode.

    Args:
        seeds: (B,), 0 to 2**64 - 1.
        greedy: take the most likely action instead of sampling.
        record: record steps.
    """

    def __init__(
        self,
        policy: InContextPolicy,
        env: Env,
        tasks: Tensor,
        seeds: Sequence[int],
        greedy: bool = False,
        record: bool = False,
    ) -> None:
        if len(tasks) != len(seeds):
            raise ValueError(f"every task needs a seed: found {len(tasks)} tasks and {len(seeds)} seeds")
        for seed in (min(seeds, default=0), max(seeds, default=0)):
            check_within(0, 2**64 - 1, seed=seed)
        policy.check(env)
        self.policy = policy
        self._schema = env.schema
        self.device = policy.head.weight.device
        self.envs = env.start(tasks.to(self.device), seeds)
        self.state = policy.begin()
        self.greedy = greedy
        self.time = 0
        self.compressions: list[int] = []
        self.steps: list[Steps] = []
        self._record = record
        self._seeds = np.array(seeds, dtype=np.uint64)  # an array wraps without a warning
        self._uniforms: list[Tensor] = []
        self._sums = torch.zeros(len(tasks), device=self.device)  # rewards of the present episodes
        self._finished: list[list[float]] = [[] for _ in seeds]  # returns that no call has given yet
        self._was_training = policy.training

    def __enter__(self) -> Self:
        self._was_training = self.policy.training
        self.policy.eval()
        return self

    def __exit__(self, *_: object) -> None:
        self.policy.train(self._was_training)

    @torch.inference_mode()
    def run_episodes(self, episodes: int, avoid_goals: bool = False, progress: bool = False) -> Tensor:
        """Act until every pair has ended so many episodes more: returns (B, episodes) float32, on the CPU.

        Where episodes are of different lengths, a pair that is ahead continues; the next call returns what it ends.

        Args:
            avoid_goals: act uniformly at random among the actions that lead to no goal, in place of the policy.
        """
        for episode in track(range(1, episodes + 1), "episodes", disable=not progress):
            while min(map(len, self._finished), default=episode) < episode:
                self._step(avoid_goals)
        returns = torch.tensor([row[:episodes] for row in self._finished], dtype=torch.float32)
        self._finished = [row[episodes:] for row in self._finished]
        return returns.reshape(len(self._finished), episodes)

    def _step(self, avoid_goals: bool) -> None:
        states = self.envs.states
        logits = self.policy.act(self.state, states)  # also where it is not used: it fills the cache
        if avoid_goals:
            actions = sample_categorical(goalless_actions(self.envs), self._next_uniforms()[0])
        elif self.greedy:
            actions = self.policy.head.most_likely(logits)
        else:
            actions = self.policy.head.sample(logits, self._next_uniforms())
        result = self.envs.step(actions)
        dones = result.dones
        step = Steps(*(each[:, None] for each in (states, actions, result.rewards, result.next_states, dones)))
        before = self.state.compressions
        self.policy.observe(self.state, step)
        if self.state.compressions > before:
            self.compressions.append(self.time)
        if self._record:
            self.steps.append(step)
        self.time += 1
        self._sums += result.rewards
        if self._schema.fixed and self.time % self._schema.limit:
            return  # without waiting for the device
        ended = dones.nonzero()[:, 0]
        for row, total in zip(ended.tolist(), self._sums[ended].tolist(), strict=True):
            self._finished[row].append(total)
        self._sums[ended] = 0

    def _next_uniforms(self) -> Tensor:
        """Random numbers (n, B) in (0, 1) of this step; made in blocks, each a function of seed and step."""
        index, width = self.time % RANDOM_STEPS, self.policy.head.numbers
        if index == 0 or not self._uniforms:
            shifted = self._seeds + np.array((self.time - index) * width, dtype=np.uint64) * SPLITMIX_INCREMENT
            uniforms = sample_uniforms(shifted.tolist(), RANDOM_STEPS * width)
            uniforms = uniforms.to(self.device, widest_float(self.device))
            self._uniforms = list(uniforms.unflatten(0, (RANDOM_STEPS, width)))
        return self._uniforms[index]


def rollout(
    policy: InContextPolicy,
    env: Env,
    tasks: Tensor,
    seeds: Sequence[int],
    episodes: int,
    greedy: bool = False,
    record: bool = False,
) -> Rollout:
    """Act in episodes one after the other from an empty context, without gradients; arguments as of `ContextPlayer`."""
    check_at_least(1, episodes=episodes)
    with ContextPlayer(policy, env, tasks, seeds, greedy, record) as player:
        returns = player.run_episodes(episodes)
    # Clones are ordinary tensors: those made under inference_mode may not enter a training.
    steps = Steps(*(field.clone() for field in Steps.cat(player.steps))) if record else None
    return Rollout(returns.clone(), player.compressions, steps)


def goalless_actions(envs: BatchedEnvs) -> Tensor:
    """Return which actions lead to a cell that is no goal (B, actions), bool; ValueError outside grids."""
    if not isinstance(envs, BatchedGrids):
        raise ValueError("the memory gap is for grids, whose goals are known")
    moves = envs.states.new_tensor(MOVES)
    permutations = envs.env.permutations(envs.tasks)
    directions = moves.expand(len(envs.tasks), -1, -1) if permutations is None else moves[permutations]
    cells = (envs.states[:, None] + directions).clamp(0, envs.env.grid_size - 1)
    goals = envs.env.goals(envs.tasks)
    return ~(cells[:, :, None] == goals[:, None]).all(-1).any(-1)
