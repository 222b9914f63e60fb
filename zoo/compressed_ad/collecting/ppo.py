"""Proximal policy optimisation of many tasks at once: every task has nets, random numbers and gradients of its own.

Weights of all tasks are (N, P) float32, as `zoo.compressed_ad.collecting.nets` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from zoo.common.checks import check_at_least, check_positive, check_within
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.collecting.base import Algorithm, Request
from zoo.compressed_ad.collecting.nets import clip_norms, initial_weights, raw_nets
from zoo.compressed_ad.collecting.spaces import Scales, SpaceNets
from zoo.compressed_ad.data.history import COLUMNS, Recorder
from zoo.compressed_ad.envs.base import Env, Lockstep
from zoo.compressed_ad.envs.grids import BatchedEnv, GridEnv
from zoo.training.resume import item_seed

NUM_ACTIONS = GridEnv.num_actions
Evaluate = Callable[[Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor]]


class Observer:
    """What nets see: (row, column) of the last frames; or the number of the cell, where looking up is cheaper.

    Args:
        shape: tasks N and streams S.
        samples: for how many the nets are evaluated at once, of one task.

    Attributes:
        cells: (K, 2) float32, what the numbers mean; None where an observation is (row, column, ...) itself.
    """

    def __init__(self, grid_size: int, shape: tuple[int, int], frames: int, samples: int) -> None:
        places = torch.arange(grid_size)
        self.grid_size = grid_size
        self.cells = torch.cartesian_prod(places, places).float() if frames == 1 and samples > grid_size**2 else None
        self._frames = torch.zeros(*shape, frames, 2)

    def observe(self, states: Tensor) -> Tensor:
        """Take in where the agents are; returns the observation of that."""
        observation = self.look(states)
        if self.cells is None:
            self._frames = observation.unflatten(2, (-1, 2))
        return observation

    def look(self, states: Tensor) -> Tensor:
        """Observe states (N * S, 2) without taking them in: cells (N, S), or frames (N, S, 2 * frames)."""
        shape = self._frames.shape[:2]
        if self.cells is not None:
            return (states[:, 0] * self.grid_size + states[:, 1]).view(shape)
        return torch.cat([self._frames[:, :, 1:], states.view(*shape, 1, 2).float()], dim=2).flatten(2)

    def forget(self) -> None:
        """Begin an episode: nothing has been seen."""
        self._frames = torch.zeros_like(self._frames)


class Policy:
    """The nets of all tasks while they do not change."""

    def __init__(self, weights: Tensor, cells: Tensor | None) -> None:
        self._weights = weights
        self._tables = None if cells is None else nets(weights, cells.expand(len(weights), -1, -1))

    def __call__(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N, S, A) and values (N, S) of observations (N, S, ...)."""
        if self._tables is None:
            return nets(self._weights, observations)
        tasks = torch.arange(len(observations))[:, None]
        return self._tables[0][tasks, observations], self._tables[1][tasks, observations]


def evaluate_actions(
    weights: Tensor, cells: Tensor | None, observations: Tensor, actions: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of actions (N, M) and values, (N, M) float32 each, of observations as `Observer` gives them."""
    if cells is None:
        rows, places = observations, torch.arange(actions.shape[1]).expand(len(actions), -1)
    else:
        rows, places = cells.expand(len(weights), -1, -1), observations
    log_probabilities, values = nets(weights, rows)
    chosen = log_probabilities.flatten(1).gather(1, places * log_probabilities.shape[2] + actions)
    return chosen, values.gather(1, places)


def nets(weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N, R, 5) of actors and values (N, R) of critics for observations (N, R, F), float32."""
    actors, critics = raw_nets(weights, rows, NUM_ACTIONS)
    return actors.log_softmax(dim=-1), critics


STARTS, ACTIONS, LEARNERS = -2, 0, -4  # numbers of a task's draws; -1 is that of its weights
ADAM_EPSILON = 1e-5
DEVIATION_EPSILON = 1e-8


class Rollout(NamedTuple):
    """Samples of N tasks.

    observations: (N, M) int64 or (N, M, F) float32, see `Observer`.
    actions: (N, M) int64, or (N, M, A) float32 in a Box.
    log_probabilities: (N, M) float32, of the actions when they were taken.
    advantages: (N, M) float32.
    returns: (N, M) float32, what the critic should have expected.
    """

    observations: Tensor
    actions: Tensor
    log_probabilities: Tensor
    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True)
class PPO(Algorithm):
    """Learns each task with streams that share a policy, and keeps what they did meanwhile.

    Beyond grids it takes Discrete and Box observations and actions: see `zoo.compressed_ad.collecting.spaces`.

    Actor and critic are two nets of 2 x 64 tanh units that see raw (row, column). Minibatches are larger, and the
    learning rate with them, than in the original (40 and 3e-4), which takes 52,000 steps of Adam per task to the same
    curve. Where an observation is one of few cells, the nets see each cell once per minibatch, and the samples are
    looked up: the same gradients for less work.

    Args:
        learners: of each task, among which its streams are divided. A stream of few gets better by what it found
            itself, and many learners show more ways to the same goal than one.
        rollout_steps: steps of each stream between updates.
        minibatch: samples of a gradient, of one learner.
        epochs: times that each sample is used.
        discount: of later rewards, 0 to 1.
        trace: lambda of the generalised advantage estimate, 0 to 1.
        clip: how far the probability of an action may change in an update, as a share.
        max_norm: gradients of a task are scaled down to this norm.
        frames: states that nets see together, the last one and those before it; zeros stand for what lies before the
            episode. The stored histories have one. Of grids alone.
        bootstrap: count what the critic expects behind the last step of an episode. The original's environments end
            for good there. Of grids alone: elsewhere it counts where the limit of steps ended the episode.

    Source: Schulman et al., "Proximal Policy Optimization Algorithms" (2017); defaults of its values from the
    `MlpPolicy` of stable-baselines3.
    """

    name: ClassVar[str] = "ppo"

    learners: int = 1
    rollout_steps: int = 80
    minibatch: int = 1000
    epochs: int = 20
    learning_rate: float = 1e-3
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    max_norm: float = 0.5
    frames: int = 1
    bootstrap: bool = False

    def __post_init__(self) -> None:
        check_at_least(
            1, learners=self.learners, rollout_steps=self.rollout_steps, epochs=self.epochs, frames=self.frames
        )
        check_at_least(2, minibatch=self.minibatch)
        check_within(0, 1, discount=self.discount, trace=self.trace)
        check_positive(learning_rate=self.learning_rate, clip=self.clip)

    def describe(self) -> dict[str, Any]:
        """Name and settings as JSON values; `learners` where there are several, so that earlier stores can go on."""
        described = super().describe()
        return {key: value for key, value in described.items() if key != "learners" or value > 1}

    def check(self, env: Env, steps: int) -> None:
        """It learns grids, and what has Discrete or Box spaces, but for pictures."""
        if not isinstance(env, GridEnv):
            if self.frames > 1:
                raise ValueError(f"ppo.frames is {self.frames}, which is for grids; {env.name} is none")
            SpaceNets(env.schema)

    def make(self, request: Request) -> np.ndarray:
        """Learn tasks from scratch; whole rollouts are learned from, and the histories cut."""
        learn = self._make_grids if isinstance(request.env, GridEnv) else self._make_open
        if self.learners == 1:
            return learn(request)
        streams = -(-request.streams // self.learners)
        tasks = request.tasks.repeat_interleave(self.learners, dim=0)
        seeds = [item_seed(seed, LEARNERS, number) for seed in request.seeds for number in range(self.learners)]
        made = learn(request._replace(tasks=tasks, seeds=seeds, streams=streams))
        return made.reshape(len(request.tasks), -1, *made.shape[2:])[:, : request.streams]

    def _make_grids(self, request: Request) -> np.ndarray:
        env, tasks, seeds, streams, steps, advance = request
        assert isinstance(env, GridEnv)
        weights = nn.Parameter(initial_weights(seeds, 2 * self.frames, NUM_ACTIONS))
        optimizer = torch.optim.Adam([weights], lr=self.learning_rate, eps=ADAM_EPSILON, fused=True)
        envs = env.start(request.rows(), request.stream_seeds(STARTS))
        observer = Observer(env.grid_size, (len(tasks), streams), self.frames, self.minibatch)
        histories = np.zeros((len(tasks), streams, steps, len(COLUMNS)), dtype=np.int8)
        for number, start in enumerate(range(0, steps, self.rollout_steps)):
            draws = sample_uniforms([item_seed(seed, ACTIONS, number) for seed in seeds], self.rollout_steps * streams)
            uniforms = draws.view(self.rollout_steps, streams, len(tasks)).transpose(1, 2)
            piece = histories[:, :, start : start + self.rollout_steps]
            rollout = self._play(Policy(weights.detach(), observer.cells), envs, observer, uniforms, piece)
            if start + self.rollout_steps < steps:
                self._learn(weights, optimizer, observer.cells, rollout, number)
            advance(piece.size // len(COLUMNS))
        return histories

    @torch.no_grad()
    def _play(
        self, policy: Policy, envs: BatchedEnv, observer: Observer, uniforms: Tensor, piece: np.ndarray
    ) -> Rollout:
        """Act as the policy says, and note in `piece` (N, S, up to T, 7) what happened."""
        seen, done, values_seen, ends = [], [], [], []
        rewards = torch.zeros(uniforms.shape)
        for step, uniform in enumerate(uniforms):
            states = envs.states
            observation = observer.observe(states)
            log_probabilities, value = policy(observation)
            actions = (uniform[..., None] > log_probabilities.exp().cumsum(dim=-1)[..., :-1]).sum(dim=-1)
            taken = envs.step(actions.flatten())
            if step < piece.shape[2]:
                columns = [states, actions.view(-1, 1), taken.rewards[:, None], taken.next_states]
                piece[:, :, step, :6] = torch.cat(columns, dim=1).view(*uniform.shape, 6).numpy()
                piece[:, :, step, 6] = taken.done
            end = None
            if taken.done and not self.bootstrap:
                end = torch.zeros_like(value)
            elif taken.done or step == len(uniforms) - 1:
                end = policy(observer.look(taken.next_states))[1]
            if taken.done:
                observer.forget()
            rewards[step] = taken.rewards.view(uniform.shape)
            seen.append(observation)
            done.append((actions, log_probabilities.gather(-1, actions[..., None])[..., 0]))
            values_seen.append(value)
            ends.append((end, taken.done))
        next_values = [values_seen[step + 1] if end is None else end for step, (end, _) in enumerate(ends)]
        values = torch.stack(values_seen)
        advantages = self.advantages(rewards, values, torch.stack(next_values), [over for _, over in ends])
        chosen, log_chances = (torch.stack(each) for each in zip(*done, strict=True))
        return Rollout(*map(_by_task, (torch.stack(seen), chosen, log_chances, advantages, advantages + values)))

    def _make_open(self, request: Request) -> np.ndarray:
        """The same where observations and actions are of any space, and each episode has an end of its own."""
        env, tasks, seeds, streams, steps, advance = request
        space, shape = SpaceNets(env.schema), (len(tasks), streams)
        weights = nn.Parameter(space.initial_weights(seeds))
        optimizer = torch.optim.Adam([weights], lr=self.learning_rate, eps=ADAM_EPSILON, fused=True)
        envs = env.start(request.rows(), request.stream_seeds(STARTS))
        recorder = Recorder(env.schema, request.size, steps)
        scales = Scales(space, shape, self.discount)
        for number, start in enumerate(range(0, steps, self.rollout_steps)):
            count = self.rollout_steps * streams * space.numbers
            draws = sample_uniforms([item_seed(seed, ACTIONS, number) for seed in seeds], count)
            uniforms = draws.view(self.rollout_steps, space.numbers, streams, len(tasks)).transpose(2, 3)
            rollout = self._play_open(weights.detach(), space, envs, scales, uniforms, recorder, start)
            if start + self.rollout_steps < steps:
                self._learn(weights, optimizer, None, rollout, number, space.evaluate_actions)
            advance(request.size * min(self.rollout_steps, steps - start))
        return request.by_task(recorder.histories)

    @torch.no_grad()
    def _play_open(
        self,
        weights: Tensor,
        space: SpaceNets,
        envs: Lockstep,
        scales: Scales,
        uniforms: Tensor,
        recorder: Recorder,
        start: int,
    ) -> Rollout:
        """Act by numbers (T, numbers, N, S), and record what happened from step `start` on, as far as it is wanted."""
        shape, happened = uniforms.shape[2:], []
        for step, uniform in enumerate(uniforms, start):
            states = envs.states
            observation = scales.take_in(space.features(states).unflatten(0, shape))
            actions, log_chances, values = space.draw(weights, observation, uniform)
            meant = space.meant(actions.flatten(0, 1))
            taken = envs.step(meant)
            if step < recorder.histories.shape[1]:
                recorder.add(step, states, meant, taken)
            after = space.features(taken.next_states)
            flags = (taken.terminated, taken.terminated | taken.truncated)
            rest = (each.unflatten(0, shape) for each in (taken.rewards, after, *flags))
            happened.append((observation, actions, log_chances, values, *rest))
        seen, actions, log_chances, values, rewards, after, ended, dones = map(torch.stack, zip(*happened, strict=True))
        count = len(happened)
        expected = space.values(weights, _by_task(scales.normalised(after)))
        next_values = expected.unflatten(1, (count, -1)).transpose(0, 1).contiguous()  # (T, N, S)
        next_values[:-1] = torch.where(dones[:-1], next_values[:-1], values[1:])
        advantages = self.advantages(scales.rewards(rewards, dones), values, next_values * ~ended, dones)
        return Rollout(*map(_by_task, (seen, actions, log_chances, advantages, advantages + values)))

    def advantages(
        self, rewards: Tensor, values: Tensor, next_values: Tensor, dones: Sequence[bool] | Tensor
    ) -> Tensor:
        """Generalised advantage estimates (T, ...) of rewards, values and values of what followed, (T, ...) float32.

        Args:
            dones: whether each step ended an episode, (T,) for all or (T, ...).

        Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2016),
        equation 16.
        """
        errors = rewards + self.discount * next_values - values
        advantages = torch.empty_like(errors)
        later = torch.zeros_like(errors[0])
        for step in reversed(range(len(errors))):
            later = (self.discount * self.trace * later).masked_fill(torch.as_tensor(dones[step]), 0)
            later = errors[step] + later
            advantages[step] = later
        return advantages

    def _learn(
        self,
        weights: Tensor,
        optimizer: torch.optim.Optimizer,
        cells: Tensor | None,
        rollout: Rollout,
        number: int,
        evaluate: Evaluate = evaluate_actions,
    ) -> None:
        """Improve the policies of all tasks by what they did in rollout `number`."""
        samples = rollout.actions.shape[1]
        for epoch in range(self.epochs):
            # One order for all tasks: it may not depend on which others are learned beside.
            generator = torch.Generator().manual_seed(item_seed(number, epoch, 0))
            order = torch.randperm(samples, generator=generator)
            shuffled = Rollout(*(each[:, order] for each in rollout))
            for start in range(0, samples, self.minibatch):
                batch = Rollout(*(each[:, start : start + self.minibatch] for each in shuffled))
                optimizer.zero_grad()
                self.losses(weights, cells, batch, evaluate).sum().backward()
                clip_norms(weights, self.max_norm)
                optimizer.step()

    def losses(
        self, weights: Tensor, cells: Tensor | None, batch: Rollout, evaluate: Evaluate = evaluate_actions
    ) -> Tensor:
        """Losses (N,) float32 of the tasks on M samples of each.

        Args:
            evaluate: gives log-probabilities of actions and values, as `evaluate_actions` does for grids.

        Source: Schulman et al. (2017), equations 7 and 9 (without entropy).
        """
        log_probabilities, values = evaluate(weights, cells, batch.observations, batch.actions)
        deviation, mean = torch.std_mean(batch.advantages, dim=1, keepdim=True)
        advantages = (batch.advantages - mean) / (deviation + DEVIATION_EPSILON)
        ratios = (log_probabilities - batch.log_probabilities).exp()
        clipped = ratios.clamp(1 - self.clip, 1 + self.clip)
        gains = torch.minimum(ratios * advantages, clipped * advantages)
        return self.value_weight * (values - batch.returns).square().mean(dim=1) - gains.mean(dim=1)


def _by_task(values: Tensor) -> Tensor:
    """Bring what is (T, N, S, ...) into the order (N, T * S, ...)."""
    return values.transpose(0, 1).flatten(1, 2)
