"""Deep Q-learning of many tasks at once: every learner has nets, a replay memory and random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.draws import seeded_uniforms
from zoo.common.ranges import at_least, positive, within
from zoo.compressed_ad.collecting.base import STREAMS, EpsilonGreedy, Request, StateNumbers, StepDraws
from zoo.compressed_ad.collecting.nets import OUTPUTS, clip_norms, initial_weights, raw_nets
from zoo.compressed_ad.collecting.spaces import Moments
from zoo.compressed_ad.data.history import recorder_of
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.schema import Box, Discrete
from zoo.training.data import item_seed

DRAWS = 2  # random numbers that a step takes
SAMPLES, ALONE = -3, -4  # numbers of a task's draws
ADAM_EPSILON = 1e-5


@dataclass(frozen=True)
class DQN(EpsilonGreedy):
    """Learns nets of action values from a replay memory, and keeps what it did meanwhile.

    Double Q-learning with duelling nets of 2 x 64 tanh units: one tells what a state is worth, the other by how much
    each action is better than the mean of all. A Discrete state, and the cell of a grid, is one-hot, one in a Box flat
    and scaled by what was seen so far. What is behind an episode that its limit of steps ended counts, behind one that
    the task ended nothing does.

    Args:
        shared: the streams of a task feed one memory and act by the same nets; false: each learns alone.
        discount: of later rewards, 0 to 1.
        epsilon: share of random actions at the beginning.
        last_epsilon: the same after `explored`.
        explored: share of the history in which epsilon falls linearly.
        replay: transitions that a memory holds, the newest ones.
        minibatch: transitions of a gradient, at most `replay`; learning begins when there are so many.
        every: steps of the environments between updates.
        updates: gradients of each update.
        target_every: gradients between copies of the nets to those that tell what is behind a transition.
        max_norm: gradients of a learner are scaled down to this norm.

    Source: Mnih et al., "Human-level control through deep reinforcement learning" (2015), algorithm 1; van Hasselt et
    al., "Deep Reinforcement Learning with Double Q-learning" (2016), equation 4; Wang et al., "Dueling Network
    Architectures for Deep Reinforcement Learning" (2016), equation 9.
    """

    name: ClassVar[str] = "dqn"

    shared: bool = True
    learning_rate: float = 1e-3
    discount: float = 0.95
    replay: int = 10_000
    minibatch: int = 128
    every: int = 1
    updates: int = 1
    target_every: int = 20
    max_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        within(0, 1, discount=self.discount)
        at_least(1, minibatch=self.minibatch, every=self.every, updates=self.updates, target_every=self.target_every)
        at_least(self.minibatch, replay=self.replay)
        positive(learning_rate=self.learning_rate, max_norm=self.max_norm)

    def check(self, env: Env, steps: int) -> None:
        """It learns Discrete actions, by Discrete or Box observations, but for pictures."""
        state, action = env.schema.observation, env.schema.action
        if not isinstance(action, Discrete) or (isinstance(state, Box) and state.is_image):
            raise ValueError(f"dqn learns Discrete actions, and no pictures; {env.name} has {env.schema.describe()}")

    def make(self, request: Request) -> np.ndarray:
        """Learn tasks from scratch."""
        env, action = request.env, request.env.schema.action
        assert isinstance(action, Discrete)
        seeds = list(request.seeds) if self.shared else request.stream_seeds(ALONE)
        stream_seeds = request.stream_seeds(STREAMS)
        envs, draws = env.start(request.rows(), stream_seeds), StepDraws(stream_seeds, DRAWS)
        recorder = recorder_of(env, request.size, request.steps)
        inputs = Inputs(env, len(seeds), request.size // len(seeds))
        nets = Nets(self, seeds, inputs, action.n)
        memory = Replay(self.replay, len(seeds), request.size // len(seeds))
        for step in range(request.steps):
            states = envs.states
            seen = inputs.look(states)
            values = nets.values(nets.weights.detach(), seen).flatten(0, 1)
            actions = self.choose(values, draws.next(), self.epsilon_at(step / request.steps))
            taken = envs.step(actions)
            recorder.add(step, states, actions, taken)
            memory.add(seen, actions, taken.rewards.float(), inputs.follow(taken), taken.terminated)
            if step % self.every == 0 and memory.size >= self.minibatch:
                for _ in range(self.updates):
                    nets.learn(memory)
            request.advance(request.size)
        return request.by_task(recorder.histories)


class Inputs:
    """What nets see of the environments of G learners with A actors each.

    Attributes:
        width: numbers of an observation.
    """

    def __init__(self, env: Env, learners: int, actors: int) -> None:
        self._shape = (learners, actors)
        state = env.schema.observation
        self._numbers: StateNumbers | None = None
        self._moments: Moments | None = None
        if isinstance(env, GridEnv) or isinstance(state, Discrete):
            self._numbers = StateNumbers(env, learners * actors)
            size = self._numbers.count
        else:
            size = state.size
            self._moments = Moments(learners, size)
        self.width = -(-size // OUTPUTS) * OUTPUTS  # see `OUTPUTS`

    def look(self, states: Tensor) -> Tensor:
        """Take in where the agents are, states (G * A, ...): numbers (G, A) int64, or (G, A, F) float32."""
        if self._numbers is not None:
            return self._numbers.look(states).view(self._shape)
        seen = self._flat(states)
        assert self._moments is not None
        self._moments.add(seen)
        return seen

    def follow(self, taken: Any) -> Tensor:
        """Where a step of the environments led to, as `look` gives it."""
        if self._numbers is not None:
            return self._numbers.follow(taken).view(self._shape)
        return self._flat(taken.next_states)

    def rows(self, seen: Tensor) -> Tensor:
        """Observations (G, M) or (G, M, F) as nets take them, (G, M, width) float32."""
        if self._moments is None:
            return F.one_hot(seen, self.width).float()
        scaled = self._moments.scaled(seen)
        return F.pad(scaled, (0, self.width - scaled.shape[-1]))

    def _flat(self, states: Tensor) -> Tensor:
        return states.reshape(*self._shape, -1).float()


class Replay:
    """The newest transitions of G learners with A actors each, (G, capacity) of each field.

    Attributes:
        size: transitions that each learner has so far, at most the capacity.
    """

    def __init__(self, capacity: int, learners: int, actors: int) -> None:
        self.capacity = max(capacity, actors)
        self.size = 0
        self._shape = (learners, actors)
        self._next = 0
        self._fields: list[Tensor] = []

    def add(self, *fields: Tensor) -> None:
        """Take in a step of all actors, (G, A, ...) or (G * A,) each."""
        learners, actors = self._shape
        shaped = [field.reshape(learners, actors, *field.shape[1 if field.ndim == 1 else 2 :]) for field in fields]
        if not self._fields:
            self._fields = [field.new_zeros(learners, self.capacity, *field.shape[2:]) for field in shaped]
        places = (self._next + torch.arange(actors)) % self.capacity
        for kept, field in zip(self._fields, shaped, strict=True):
            kept[:, places] = field
        self._next = (self._next + actors) % self.capacity
        self.size = min(self.size + actors, self.capacity)

    def sample(self, uniforms: Tensor) -> list[Tensor]:
        """Transitions by numbers (M, G) in (0, 1), (G, M, ...) of each field."""
        places = (uniforms.T * self.size).long()
        learners = torch.arange(len(places))[:, None]
        return [field[learners, places] for field in self._fields]


class Nets:
    """The nets of all learners, those that tell what is behind, and the optimizer.

    Attributes:
        weights: (G, P) float32.
    """

    def __init__(self, settings: DQN, seeds: Sequence[int], inputs: Inputs, actions: int) -> None:
        self.settings = settings
        self.weights = nn.Parameter(initial_weights(seeds, inputs.width, actions))
        self._target = self.weights.detach().clone()
        self._optimizer = torch.optim.Adam([self.weights], lr=settings.learning_rate, eps=ADAM_EPSILON, fused=True)
        self._seeds, self._inputs, self._actions, self._learned = seeds, inputs, actions, 0

    def values(self, weights: Tensor, seen: Tensor) -> Tensor:
        """What actions are worth, (G, M, actions), by observations (G, M) or (G, M, F)."""
        better, values = raw_nets(weights, self._inputs.rows(seen), self._actions)
        return values[..., None] + better - better.mean(-1, keepdim=True)

    def learn(self, memory: Replay) -> None:
        """Take a gradient step."""
        seeds = [item_seed(seed, SAMPLES, self._learned) for seed in self._seeds]
        seen, actions, rewards, after, ended = memory.sample(seeded_uniforms(seeds, self.settings.minibatch))
        with torch.no_grad():
            best = self.values(self.weights, after).argmax(-1, keepdim=True)
            later = self.values(self._target, after).gather(-1, best)[..., 0]
            wanted = rewards + self.settings.discount * later * ~ended
        found = self.values(self.weights, seen).gather(-1, actions[..., None])[..., 0]
        self._optimizer.zero_grad()
        F.huber_loss(found, wanted, reduction="none").mean(1).sum().backward()
        clip_norms(self.weights, self.settings.max_norm)
        self._optimizer.step()
        self._learned += 1
        if self._learned % self.settings.target_every == 0:
            self._target.copy_(self.weights.detach())
