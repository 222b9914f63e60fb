"""Acting in context: a frozen policy in many environments at once, its context never cleared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env, Lockstep
from zoo.compressed_ad.envs.grids import MOVES, BatchedEnv, Step
from zoo.compressed_ad.nets.heads import choose
from zoo.compressed_ad.nets.policy import ActingPolicy
from zoo.compressed_ad.nets.steps import Steps

DRAWN_STEPS = 256  # whose random numbers are made at once


class Rollout(NamedTuple):
    """What came of acting.

    returns: (B, episodes) float32, on the CPU.
    compressions: steps, counted from 0 over all episodes, after which the context was compressed.
    steps: (B, L) what was seen and done, where recorded.
    logits: (B, L, actions) of the policy, likewise.
    """

    returns: Tensor
    compressions: list[int]
    steps: Steps | None = None
    logits: Tensor | None = None


class Player:
    """Plays all pairs of task and seed in lock-step on the policy's device; each call of `play` goes on.

    The action of a pair at a step depends on its seed and the number of the step, not on the other pairs (but for
    rounding in the net). As a context manager it keeps the policy in evaluation mode.

    Args:
        tasks: (B, F) int64.
        seeds: (B,), 0 to 2**64 - 1.
        greedy: take the most likely action; else draw.
        cached: keep keys and values where that is exact.
        record: keep what was seen and done, and the logits.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        env: Env,
        tasks: Tensor,
        seeds: Sequence[int],
        greedy: bool = False,
        cached: bool = True,
        record: bool = False,
    ) -> None:
        if len(tasks) != len(seeds):
            raise ValueError(f"every task needs a seed: found {len(tasks)} tasks and {len(seeds)} seeds")
        policy.check(env)
        self.policy = policy
        self.device = policy.head.weight.device
        self.envs = env.start(tasks.to(self.device), seeds)
        self.state = policy.begin(cached)
        self.greedy = greedy
        self.time = 0
        self.compressions: list[int] = []
        self.steps: list[Steps] = []
        self.logits: list[Tensor] = []
        self._record = record
        self._seeds = np.array(seeds, dtype=np.uint64)  # an array wraps around silently where it overflows
        self._numbers: list[Tensor] = []
        self._earned = torch.zeros(len(tasks), device=self.device)  # in the present episodes
        self._finished: list[list[float]] = [[] for _ in seeds]  # returns that no call of `play` has given yet
        self._was_training = policy.training

    def __enter__(self) -> Self:
        self._was_training = self.policy.training
        self.policy.eval()
        return self

    def __exit__(self, *_: object) -> None:
        self.policy.train(self._was_training)

    @torch.inference_mode()
    def play(self, episodes: int, aimless: bool = False, progress: bool = False) -> Tensor:
        """Play until every pair has ended so many episodes more.

        Where episodes are of different lengths, a pair that is ahead goes on; what it ends then, the next call gives.

        Args:
            aimless: act uniformly at random among the actions that lead to no goal, in place of the policy.

        Returns:
            (B, episodes) float32, on the CPU.
        """
        for episode in track(range(1, episodes + 1), "episodes", disable=not progress):
            while min(map(len, self._finished), default=episode) < episode:
                self._step(aimless)
        returns = torch.tensor([row[:episodes] for row in self._finished], dtype=torch.float32)
        self._finished = [row[episodes:] for row in self._finished]
        return returns.reshape(len(self._finished), episodes)

    def _step(self, aimless: bool) -> None:
        states = self.envs.states
        logits = self.policy.act(self.state, states)  # also where it is not used: it fills the cache
        if aimless:
            actions = choose(goalless_actions(self.envs).double(), self._next_numbers()[0])
        elif self.greedy:
            actions = self.policy.head.best(logits)
        else:
            actions = self.policy.head.draw(logits, self._next_numbers())
        step = self.envs.step(actions)
        dones = step.dones
        seen = Steps(*(each[:, None] for each in (states, actions, step.rewards, step.next_states, dones)))
        before = self.state.compressions
        self.policy.observe(self.state, seen)
        if self.state.compressions > before:
            self.compressions.append(self.time)
        if self._record:
            self.steps.append(seen)
            self.logits.append(logits)
        self.time += 1
        self._earned += step.rewards
        if isinstance(step, Step) and not step.done:
            return  # without a look at the device
        ended = dones.nonzero()[:, 0]
        for row, earned in zip(ended.tolist(), self._earned[ended].tolist(), strict=True):
            self._finished[row].append(earned)
        self._earned[ended] = 0

    def _next_numbers(self) -> Tensor:
        """Numbers (n, B) in (0, 1) of this step; drawn in blocks, each a function of seed and step."""
        place, width = self.time % DRAWN_STEPS, self.policy.head.numbers
        if place == 0 or not self._numbers:
            shifted = self._seeds + np.array((self.time - place) * width, dtype=np.uint64) * SPLITMIX_INCREMENT
            drawn = sample_uniforms(shifted.tolist(), DRAWN_STEPS * width).to(self.device)
            self._numbers = list(drawn.unflatten(0, (DRAWN_STEPS, width)))
        return self._numbers[place]


def rollout(
    policy: ActingPolicy,
    env: Env,
    tasks: Tensor,
    seeds: Sequence[int],
    episodes: int,
    greedy: bool = False,
    cached: bool = True,
    progress: bool = False,
    record: bool = False,
) -> Rollout:
    """Play episodes one after the other with a policy that starts without knowledge and never forgets between them.

    The policy is evaluated without gradients, in evaluation mode; arguments as `Player` takes them.
    """
    check_at_least(1, episodes=episodes)
    with Player(policy, env, tasks, seeds, greedy, cached, record) as player:
        returns = player.play(episodes, progress=progress)
    # Clones are ordinary tensors: those made under inference_mode may not enter a training.
    steps = Steps(*(field.clone() for field in Steps.cat(player.steps))) if record else None
    logits = torch.stack(player.logits, 1).clone() if record else None
    return Rollout(returns.clone(), player.compressions, steps, logits)


def goalless_actions(envs: Lockstep) -> Tensor:
    """Which actions lead to a cell that is no goal (B, actions), bool; there always is one.

    Raises:
        ValueError: for environments that are no grids.
    """
    if not isinstance(envs, BatchedEnv):
        raise ValueError("acting aimlessly (the memory gap) is for grids, whose goals are known")
    moves = envs.states.new_tensor(MOVES)
    permutations = envs.env.permutations(envs.tasks)
    meant = moves.expand(len(envs.tasks), -1, -1) if permutations is None else moves[permutations]
    cells = (envs.states[:, None] + meant).clamp(0, envs.env.grid_size - 1)
    goals = envs.env.goals(envs.tasks)
    return ~(cells[:, :, None] == goals[:, None]).all(-1).any(-1)
