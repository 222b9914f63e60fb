"""Proximal policy optimisation of many tasks at once: each with separate nets, random numbers and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from zoo.common.checks import check_at_least, check_positive, check_within
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.collecting.base import Algorithm, HistoryRequest
from zoo.compressed_ad.collecting.ppo_nets import ActorCritics, Observer, RewardScaler, clip_norms
from zoo.compressed_ad.data.history_writer import Recorder
from zoo.compressed_ad.envs.base import BatchedEnvs, Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.spaces import Box
from zoo.training.resume import item_seed

STARTS, ACTIONS, LEARNERS = -2, 0, -4  # numbers of a task's seeds; -1 is that of its weights
ADAM_EPSILON = 1e-5
STD_EPSILON = 1e-8


class PpoRollout(NamedTuple):
    """Samples of N tasks.

    observations: (N, M) int64 or (N, M, F) float32, see `Observer`.
    actions: (N, M) int64, or (N, M, A) float32 in a Box.
    log_probabilities: (N, M) float32, of the actions when they were taken.
    advantages: (N, M) float32.
    returns: (N, M) float32, the critic's targets.
    """

    observations: Tensor
    actions: Tensor
    log_probabilities: Tensor
    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True)
class PPO(Algorithm):
    """Learns each task with streams that share a policy, and records what they do meanwhile.

    Actor and critic are two nets of 2 x 64 tanh units. Grids are seen as raw (row, column), and nothing is expected
    after their last step; elsewhere observations in a Box and rewards are scaled by what was seen so far. Minibatches
    are larger, and the learning rate with them, than in the original (40 and 3e-4).

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
            episode. The stored histories have one.

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

    def __post_init__(self) -> None:
        check_at_least(
            1, learners=self.learners, rollout_steps=self.rollout_steps, epochs=self.epochs, frames=self.frames
        )
        check_at_least(2, minibatch=self.minibatch)
        check_within(0, 1, discount=self.discount, trace=self.trace)
        check_positive(learning_rate=self.learning_rate, clip=self.clip)

    def check(self, env: Env, steps: int) -> None:
        """Refuse observations that are pictures: the nets have no convolutions."""
        space = env.schema.observation
        if isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3:
            raise ValueError(f"ppo learns no pictures; {env.name} has {env.schema.describe()}")

    def histories(self, request: HistoryRequest) -> np.ndarray:
        """Learn tasks from scratch; learning takes complete rollouts, the histories are cut."""
        if self.learners == 1:
            return self._learn_tasks(request)
        streams = -(-request.streams // self.learners)
        tasks = request.tasks.repeat_interleave(self.learners, dim=0)
        seeds = [item_seed(seed, LEARNERS, number) for seed in request.seeds for number in range(self.learners)]
        histories = self._learn_tasks(request._replace(tasks=tasks, seeds=seeds, streams=streams))
        order = np.arange(self.learners * streams).reshape(streams, self.learners).T.flatten()
        selected = order < request.streams  # of each learner as many, or one less
        return histories.reshape(len(request.tasks), -1, request.steps)[:, selected]

    def _learn_tasks(self, request: HistoryRequest) -> np.ndarray:
        env, tasks, seeds, streams, steps, advance = request
        shape = (len(tasks), streams)
        observer = Observer(env, shape, self.frames, self.minibatch)
        nets = ActorCritics(env, observer.inputs)
        scaler = None if isinstance(env, GridEnv) else RewardScaler(shape, self.discount)
        weights = nn.Parameter(nets.initial_weights(seeds))
        optimizer = torch.optim.Adam([weights], lr=self.learning_rate, eps=ADAM_EPSILON, fused=True)
        envs = env.start(request.rows(), request.stream_seeds(STARTS))
        recorder = Recorder(env.schema, request.size, steps)
        for number, start in enumerate(range(0, steps, self.rollout_steps)):
            count = self.rollout_steps * streams * nets.numbers
            uniforms = sample_uniforms([item_seed(seed, ACTIONS, number) for seed in seeds], count)
            uniforms = uniforms.view(self.rollout_steps, nets.numbers, streams, len(tasks)).transpose(2, 3)
            rollout = self._collect(weights.detach(), nets, envs, observer, scaler, uniforms, recorder)
            if start + self.rollout_steps < steps:
                self._update(weights, optimizer, nets, observer.table, rollout, number)
            advance(request.size * min(self.rollout_steps, steps - start))
        return request.by_task(recorder.histories)

    @torch.no_grad()
    def _collect(
        self,
        weights: Tensor,
        nets: ActorCritics,
        envs: BatchedEnvs,
        observer: Observer,
        scaler: RewardScaler | None,
        uniforms: Tensor,
        recorder: Recorder,
    ) -> PpoRollout:
        """Act by random numbers (T, numbers, N, S), and record it."""
        table, tasks = observer.table, torch.arange(uniforms.shape[2])[:, None]
        tables = None if table is None else nets.evaluate(weights, table.expand(len(weights), -1, -1))

        def policy(observations: Tensor) -> tuple[Tensor, Tensor]:
            if tables is None:
                return nets.evaluate(weights, observations)
            return tables[0][tasks, observations], tables[1][tasks, observations]

        shape, records, later = uniforms.shape[2:], [], {}
        for step, uniform in enumerate(uniforms):
            states = envs.states
            observation = observer.observe(states)
            parameters, values = policy(observation)
            actions = nets.sample(weights, parameters, uniform)
            log_probabilities = nets.log_probabilities(weights, parameters, actions)
            env_actions = nets.environment_actions(actions.flatten(0, 1))
            transition = envs.step(env_actions)
            recorder.add(states, env_actions, transition)
            dones = transition.dones.view(shape)
            ended = transition.terminated.view(shape) if scaler is not None else dones
            if step == len(uniforms) - 1 or (dones & ~ended).any():
                later[step] = (transition.next_states, observer.frames)
            if dones.any():
                observer.reset(dones)
            rewards = transition.rewards.view(shape)
            records.append((observation, actions, log_probabilities, values, rewards, dones, ended))
        seen, actions, log_probabilities, values, rewards, dones, ended = map(torch.stack, zip(*records, strict=True))
        next_values = values.roll(-1, 0)
        for step, (states, frames) in later.items():
            expected = policy(observer.preview(states, frames))[1]
            is_last = step == len(uniforms) - 1
            next_values[step] = expected if is_last else torch.where(dones[step], expected, next_values[step])
        rewards = rewards if scaler is None else scaler.scale(rewards, dones)
        advantages = self.advantages(rewards, values, next_values.masked_fill(ended, 0), dones)
        samples = (seen, actions, log_probabilities, advantages, advantages + values)
        return PpoRollout(*(each.transpose(0, 1).flatten(1, 2) for each in samples))

    def advantages(
        self, rewards: Tensor, values: Tensor, next_values: Tensor, dones: Sequence[bool] | Tensor
    ) -> Tensor:
        """Return generalised advantage estimates (T, ...) of rewards, values and values of what followed, (T, ...).

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

    def _update(
        self,
        weights: Tensor,
        optimizer: torch.optim.Optimizer,
        nets: ActorCritics,
        table: Tensor | None,
        rollout: PpoRollout,
        number: int,
    ) -> None:
        """Improve the policies of all tasks by rollout `number`."""
        samples = rollout.actions.shape[1]
        for epoch in range(self.epochs):
            # One order for all tasks: it may not depend on which others are learned in the same call.
            generator = torch.Generator().manual_seed(item_seed(number, epoch, 0))
            order = torch.randperm(samples, generator=generator)
            shuffled = PpoRollout(*(each[:, order] for each in rollout))
            for start in range(0, samples, self.minibatch):
                batch = PpoRollout(*(each[:, start : start + self.minibatch] for each in shuffled))
                optimizer.zero_grad()
                self.losses(weights, nets, table, batch).sum().backward()
                clip_norms(weights, self.max_norm)
                optimizer.step()

    def losses(self, weights: Tensor, nets: ActorCritics, table: Tensor | None, batch: PpoRollout) -> Tensor:
        """Return losses (N,) float32 of the tasks on M samples of each.

        Source: Schulman et al. (2017), equations 7 and 9 (without entropy).
        """
        log_probabilities, values = nets.evaluate_actions(weights, table, batch.observations, batch.actions)
        advantages = batch.advantages
        if advantages.shape[1] > 1:  # one alone has no deviation
            std, mean = torch.std_mean(advantages, dim=1, keepdim=True)
            advantages = (advantages - mean) / (std + STD_EPSILON)
        ratios = (log_probabilities - batch.log_probabilities).exp()
        clipped = ratios.clamp(1 - self.clip, 1 + self.clip)
        gains = torch.minimum(ratios * advantages, clipped * advantages)
        return self.value_weight * (values - batch.returns).square().mean(dim=1) - gains.mean(dim=1)
