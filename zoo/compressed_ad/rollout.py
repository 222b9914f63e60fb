"""Acting in context: a frozen policy in many environments at once, its context never cleared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from zoo.common.draws import GOLDEN, seeded_uniforms
from zoo.common.ranges import at_least
from zoo.compressed_ad.envs.grids import MOVES, BatchedEnv, Env
from zoo.compressed_ad.nets.policy import InContextPolicy
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
        policy: InContextPolicy,
        env: Env,
        tasks: Tensor,
        seeds: Sequence[int],
        greedy: bool = False,
        cached: bool = True,
        record: bool = False,
    ) -> None:
        if len(tasks) != len(seeds):
            raise ValueError(f"every task needs a seed: found {len(tasks)} tasks and {len(seeds)} seeds")
        check_fit(policy, env)
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
        self._ends = torch.ones(len(tasks), 1, dtype=torch.bool, device=self.device)
        self._goes_on = ~self._ends
        self._was_training = policy.training

    def __enter__(self) -> Self:
        self._was_training = self.policy.training
        self.policy.eval()
        return self

    def __exit__(self, *_: object) -> None:
        self.policy.train(self._was_training)

    @torch.inference_mode()
    def play(self, episodes: int, aimless: bool = False, progress: bool = False) -> Tensor:
        """Play so many episodes more.

        Args:
            aimless: act uniformly at random among the actions that lead to no goal, in place of the policy.

        Returns:
            (B, episodes) float32, on the CPU.
        """
        returns = torch.zeros(len(self._ends), episodes, device=self.device)
        for episode in track(range(episodes), "episodes", disable=not progress):
            for _ in range(self.envs.env.horizon):
                returns[:, episode] += self._step(aimless)
        return returns.cpu()

    def _step(self, aimless: bool) -> Tensor:
        states = self.envs.states
        logits = self.policy.act(self.state, states)  # also where it is not used: it fills the cache
        if aimless:
            actions = draw(goalless_actions(self.envs).double(), self._next_numbers())
        elif self.greedy:
            actions = logits.argmax(1)
        else:
            actions = draw(logits.double().softmax(1), self._next_numbers())
        step = self.envs.step(actions)
        dones = self._ends if step.done else self._goes_on
        seen = Steps(states[:, None], actions[:, None], step.rewards[:, None], step.next_states[:, None], dones)
        before = self.state.compressions
        self.policy.observe(self.state, seen)
        if self.state.compressions > before:
            self.compressions.append(self.time)
        if self._record:
            self.steps.append(seen)
            self.logits.append(logits)
        self.time += 1
        return step.rewards

    def _next_numbers(self) -> Tensor:
        """Numbers (B,) in (0, 1) of this step; drawn in blocks, each a function of seed and step."""
        place = self.time % DRAWN_STEPS
        if place == 0 or not self._numbers:
            shifted = self._seeds + np.array(self.time - place, dtype=np.uint64) * GOLDEN
            self._numbers = list(seeded_uniforms(shifted.tolist(), DRAWN_STEPS).to(self.device))
        return self._numbers[place]


def rollout(
    policy: InContextPolicy,
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
    at_least(1, episodes=episodes)
    with Player(policy, env, tasks, seeds, greedy, cached, record) as player:
        returns = player.play(episodes, progress=progress)
    # Clones are ordinary tensors: those made under inference_mode may not enter a training.
    steps = Steps(*(field.clone() for field in Steps.cat(player.steps))) if record else None
    logits = torch.stack(player.logits, 1).clone() if record else None
    return Rollout(returns.clone(), player.compressions, steps, logits)


def check_fit(policy: InContextPolicy, env: Env) -> None:
    """Refuse a policy that knows another grid, or other actions."""
    known = (policy.embedding.grid_size, policy.head.out_features)
    if known != (env.grid_size, env.num_actions):
        raise ValueError(
            f"the policy knows a grid of {known[0]} rows and {known[1]} actions, {env.name} has {env.grid_size} and "
            f"{env.num_actions}: give the embedding the environment's grid_size and num_actions"
        )


def draw(weights: Tensor, numbers: Tensor) -> Tensor:
    """Draw (B,) by inverse distribution function: weights (B, N) float64, numbers (B,) in (0, 1); none of weight 0."""
    sums = weights.cumsum(1)
    return (sums[:, :-1] <= (numbers[:, None] * sums[:, -1:])).sum(1)


def goalless_actions(envs: BatchedEnv) -> Tensor:
    """Which actions lead to a cell that is no goal (B, actions), bool; there always is one."""
    moves = envs.states.new_tensor(MOVES)
    permutations = envs.env.permutations(envs.tasks)
    meant = moves.expand(len(envs.tasks), -1, -1) if permutations is None else moves[permutations]
    cells = (envs.states[:, None] + meant).clamp(0, envs.env.grid_size - 1)
    goals = envs.env.goals(envs.tasks)
    return ~(cells[:, :, None] == goals[:, None]).all(-1).any(-1)
