"""Items of training and evaluation: pieces of learning histories, a whole batch at a time and all of one length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore, ending_at, to_steps
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.schema import Box, Space
from zoo.compressed_ad.nets.steps import Statistics, Steps
from zoo.training.resume import Key, item_seed

Offset = Literal["start", "random", "every"]
TerminalState = Literal["true", "reset"]
EVALUATION_EPOCH = -1  # of the keys of evaluation items
MEASURED, MEASURING, SAMPLE = 256, -7, 100_000  # histories and actions that are looked at; epoch of their seeds
HISTORY, DRAWS, MIXED = 0, 1, 2  # what an item's seed is for: its history; offset and order; other histories, from here


class Source(ABC):
    """Where histories come from."""

    env: Env
    length: int
    count: int

    @abstractmethod
    def read(self, histories: Sequence[int], seeds: Sequence[int], steps: Tensor) -> Steps:
        """Read the steps (B, L), 0 to length - 1, of histories (B,); seeds (B,) are of what is random about them."""

    def episodes(self, history: int) -> np.ndarray:
        """First step and the one after the last (E, 2) of each whole episode, where their lengths differ.

        Raises:
            ValueError: where histories are made anew each time.
        """
        raise ValueError(
            "episode_stride, shuffle_episodes and mix_tasks need a folder (data.init_args.root) where episodes are of "
            "different lengths"
        )

    def statistics(self) -> Statistics:
        """How values are spread in at most `MEASURED` histories, evenly chosen."""
        count = min(self.count, MEASURED)
        chosen = [number * self.count // count for number in range(count)]
        seeds = [item_seed(0, MEASURING, history) for history in chosen]
        steps = self.read(chosen, seeds, torch.arange(self.length).expand(count, -1))
        action, space = steps.actions.flatten(0, 1), self.env.schema.action
        sample = action.reshape(len(action), -1).float() if isinstance(space, Box) else torch.empty(0, 0)
        return Statistics(
            _moments(steps.states, self.env.schema.observation),
            _moments(steps.actions, space),
            _spread(steps.rewards.reshape(-1, 1)),
            sample[:: -(-len(sample) // SAMPLE) or 1],
        )


class DemonstratedSource(Source):
    """Histories made on demand, other ones each time: as many as there are tasks (n, F)."""

    def __init__(self, demonstrator: EpsilonCurriculum, tasks: Tensor) -> None:
        self.env = demonstrator.env
        self.demonstrator = demonstrator
        self.tasks = tasks
        self.length = demonstrator.length
        self.count = len(tasks)

    def read(self, histories: Sequence[int], seeds: Sequence[int], steps: Tensor) -> Steps:
        """Make the histories and take steps of them."""
        made = self.demonstrator.histories(self.tasks[list(histories)], seeds)
        rows = torch.arange(len(steps))[:, None]
        return Steps(*(field[rows, steps] for field in made))


class StoredSource(Source):
    """Histories of a store, task after task.

    Args:
        positions: of the tasks in the store, in the order wanted.
        streams: first histories of each task; all by default.
        length: first steps of each history; all by default.
    """

    def __init__(
        self, store: HistoryStore, positions: Sequence[int], streams: int | None = None, length: int | None = None
    ) -> None:
        for wanted, there, name in ((streams, store.streams, "streams"), (length, store.steps, "history_steps")):
            if wanted is not None and not 1 <= wanted <= there:
                raise ValueError(f"data.init_args.{name} is {wanted}; {store.folder} has 1 to {there}")
        self.env = store.env
        self.store = store
        self.positions = list(positions)
        self.streams = streams or store.streams
        self.length = length or store.steps
        self.count = len(self.positions) * self.streams
        self._episodes: dict[int, np.ndarray] = {}

    def read(self, histories: Sequence[int], seeds: Sequence[int], steps: Tensor) -> Steps:
        """Read the steps; nothing about them is random."""
        pieces = []
        for history, row in zip(histories, steps.numpy(), strict=True):
            first, last = int(row.min()), int(row.max())
            position, stream = self.positions[history // self.streams], history % self.streams
            pieces.append(self.store.read(position, stream, first, last + 1)[row - first])
        return to_steps(np.stack(pieces))

    def episodes(self, history: int) -> np.ndarray:
        """First step and the one after the last (E, 2) of each whole episode in the first `length` steps."""
        if history not in self._episodes:
            ends = self.store.ends(self.positions[history // self.streams], history % self.streams) + 1
            ends = ends[ends <= self.length]
            self._episodes[history] = np.stack([np.concatenate([[0], ends])[:-1], ends], 1)
        return self._episodes[history]


class HistoryItems(Dataset[dict[str, Any]]):
    """Pieces of histories, keyed by (epoch, item) or (epoch, item, steps) in training and by the item in evaluation.

    Everything random about an item comes from seed, epoch and item, so batch size, workers and ranks do not matter.

    Args:
        length: steps of an item, unless its key says otherwise; all of a history by default. The last action is
            predicted from what is before it, so an item of n steps has a context of n - 1 transitions.
        offset: where an item begins: at the "start" of its history, at "random", or "every" piece is an item of its
            own, one history after the other.
        size: number of items, which go through the histories again and again; each history once by default.
        seed: of offsets, orders and what the source draws.
        episode_stride: keep every k-th episode only, which makes learning in the histories faster.
        shuffle_episodes: permute the episodes of each history: a control, whose histories show a task and no learning.
        mix_tasks: take each episode from another history, of any task: a control with nothing to learn in context.
        terminal_next_state: what a transition that ends an episode leads to: the "true" cell, or that of the "reset".
    """

    def __init__(
        self,
        source: Source,
        length: int | None = None,
        offset: Offset = "random",
        size: int | None = None,
        seed: int = 0,
        episode_stride: int = 1,
        shuffle_episodes: bool = False,
        mix_tasks: bool = False,
        terminal_next_state: TerminalState = "true",
    ) -> None:
        horizon = source.env.schema.limit
        check_at_least(1, episode_stride=episode_stride)
        if terminal_next_state == "reset" and (not isinstance(source.env, GridEnv) or source.env.random_start):
            raise ValueError(
                "terminal_next_state 'reset' needs a grid whose episodes begin in one cell (random_start false)"
            )
        if mix_tasks and offset != "start":
            raise ValueError(f"mix_tasks takes whole episodes, so offset must be start, not {offset}")
        self.source = source
        self.offset: Offset = offset
        self.seed = seed
        self.stride = episode_stride
        self.shuffle = shuffle_episodes
        self.mix = mix_tasks
        self.terminal_next_state: TerminalState = terminal_next_state
        self.episodes = -(-(source.length // horizon) // episode_stride)
        whole = episode_stride == 1 and not shuffle_episodes
        self.available = source.length if whole else self.episodes * horizon
        self.regular = source.env.schema.fixed or (whole and not mix_tasks)
        if not self.regular:
            kept = [source.episodes(history)[::episode_stride] for history in range(source.count)]
            if not min(map(len, kept), default=0):
                raise ValueError("a history has no whole episode: raise history_steps, or the steps of zoo collect")
            self.episodes = max(map(len, kept))
            lengths = [int((each[:, 1] - each[:, 0]).sum()) for each in kept]
            self.available = source.length if episode_stride == 1 else min(lengths)
        self.length = self.available if length is None else length
        if not 1 <= self.length <= self.available:
            raise ValueError(
                f"data.init_args.length is {self.length}; histories have 1 to {self.available} steps "
                f"({source.length} before an episode_stride of {episode_stride})"
            )
        if offset == "every" and size is not None:
            raise ValueError(f"offset 'every' has an item for each piece: epoch_items must be null, not {size}")
        pieces = self.available - self.length + 1 if offset == "every" else 1
        self.size = source.count * pieces if size is None else size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Key | tuple[int, int, int] | int) -> dict[str, Any]:
        """One item, as a batch of one."""
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[Any]) -> dict[str, Any]:
        """A whole batch, `steps`: B histories of one length. A DataLoader calls this method where it exists."""
        places = [key if isinstance(key, tuple) else (EVALUATION_EPOCH, key) for key in keys]
        length = places[0][2] if len(places[0]) == 3 else self.length
        room = self.available - length + 1
        items = [place[1] for place in places]
        seeds = [item_seed(self.seed, *place[:2]) for place in places]
        draws = sample_uniforms([item_seed(seed, 0, DRAWS) for seed in seeds], 1 + self.shuffle * self.episodes)
        if self.offset == "every":
            pieces = self.available - self.length + 1
            starts = torch.tensor([item % pieces for item in items])
            items = [item // pieces for item in items]
        else:
            starts = (draws[0] * room).long() * (self.offset == "random")
        times = starts[:, None] + torch.arange(length)
        histories = [item % self.source.count for item in items]
        made = [item_seed(seed, 0, HISTORY) for seed in seeds]
        if not self.regular:
            return {"steps": self._rearranged(histories, made, times, draws[1:])}
        read = self._read(histories, made, self._original(times, draws[1:]))
        env = self.source.env
        if self.terminal_next_state == "reset" and isinstance(env, GridEnv):
            read = ending_at(read, env.start_cell)
        return {"steps": read}

    def _rearranged(self, histories: list[int], seeds: list[int], times: Tensor, draws: Tensor) -> Steps:
        """Steps (B, L) where episodes are of different lengths, and not in their order or not of one history."""
        rows = []
        for number, (history, seed, places) in enumerate(zip(histories, seeds, times, strict=True)):
            if self.mix:
                rows.append(self._mixed(seed, len(places)))
                continue
            episodes = self.source.episodes(history)[:: self.stride]
            if self.shuffle:
                episodes = episodes[draws[: len(episodes), number].argsort().numpy()]
            order = [np.arange(*bounds) for bounds in episodes]
            if self.stride == 1:  # the episode that the history's end cuts
                order.append(np.arange(sum(map(len, order)), self.source.length))
            chosen = torch.from_numpy(np.concatenate(order))[places]
            rows.append(self.source.read([history], [seed], chosen[None]))
        return Steps(*(torch.cat(fields) for fields in zip(*rows, strict=True)))

    def _mixed(self, seed: int, length: int) -> Steps:
        """Steps (1, L) of episodes of other histories, one of each."""
        parts: list[Steps] = []
        while sum(part.length for part in parts) < length:
            other = item_seed(seed, 0, MIXED + len(parts))
            history = other % self.source.count
            episodes = self.source.episodes(history)[:: self.stride]
            first, last = episodes[other // self.source.count % len(episodes)]
            parts.append(self.source.read([history], [other], torch.arange(first, last)[None]))
        return Steps.cat(parts).slice(0, length)

    def _read(self, histories: list[int], seeds: list[int], steps: Tensor) -> Steps:
        """Steps (B, L) of the histories, or of another one in each episode."""
        if not self.mix:
            return self.source.read(histories, seeds, steps)
        limit, count = self.source.env.schema.limit, len(seeds)
        parts = steps.split(limit, dim=1)
        whole = [number for number, part in enumerate(parts) if part.shape[1] == limit]
        read: list[Steps] = []
        for numbers in (whole, [number for number in range(len(parts)) if number not in whole]):
            if numbers:  # all at once, which costs little more than one
                others = [item_seed(seed, 0, MIXED + number) for number in numbers for seed in seeds]
                places = torch.cat([parts[number] for number in numbers])
                made = self.source.read([other % self.source.count for other in others], others, places)
                starts = range(0, len(others), count)
                read += [Steps(*(field[start : start + count] for field in made)) for start in starts]
        return Steps.cat(read)

    def _original(self, times: Tensor, draws: Tensor) -> Tensor:
        """Which steps (B, L) of the source's histories stand at these times."""
        if self.stride == 1 and not self.shuffle:
            return times
        horizon = self.source.env.schema.limit
        episodes = times // horizon
        if self.shuffle:
            episodes = draws.argsort(dim=0).T.gather(1, episodes)
        return episodes * self.stride * horizon + times % horizon


def _moments(values: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the numbers of values (B, L, *space); of nothing where none are used."""
    if not isinstance(space, Box) or space.is_image:
        return torch.empty(0), torch.empty(0)
    return _spread(values.reshape(-1, space.size))


def _spread(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (n,) float32 of rows (N, n)."""
    exact = rows.double()
    return exact.mean(0).float(), exact.std(0, correction=0).float()


class EvaluationBatches(Dataset[dict[str, Any]]):
    """Batches of an evaluation, made ready so that no number depends on how they are divided among processes.

    First items for the loss, if any, then pairs of task (n, F) and seed (n,) to act with.

    Args:
        processes: that divide the batches. A process without one would not meet the others, so where there are too few
            they are cut smaller.

    Raises:
        ValueError: when there are not even as many items and pairs as processes.
    """

    def __init__(
        self,
        items: HistoryItems | None,
        batch_size: int,
        tasks: Tensor,
        seeds: Sequence[int],
        rollout_batch: int,
        processes: int = 1,
    ) -> None:
        self.items = items
        self.tasks = tasks
        self.seeds = list(seeds)
        count = 0 if items is None else len(items)
        if -(-count // batch_size) + -(-len(self.seeds) // rollout_batch) < processes:
            if max(count, len(self.seeds)) < processes:
                raise ValueError(
                    f"{count} items and {len(self.seeds)} pairs of task and seed to evaluate on {processes} processes: "
                    "raise data.init_args.eval_seeds, or val_items"
                )
            batch_size = min(batch_size, max(1, count // processes))
            rollout_batch = min(rollout_batch, max(1, len(self.seeds) // processes))
        self.losses = [range(first, min(first + batch_size, count)) for first in range(0, count, batch_size)]
        self.rollouts = [slice(first, first + rollout_batch) for first in range(0, len(self.seeds), rollout_batch)]

    def __len__(self) -> int:
        return len(self.losses) + len(self.rollouts)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """`steps` for the loss, or `tasks` (B, F) and `seeds`, a list of B numbers."""
        if number < len(self.losses):
            assert self.items is not None
            return self.items.__getitems__(self.losses[number])
        part = self.rollouts[number - len(self.losses)]
        return {"tasks": self.tasks[part], "seeds": self.seeds[part]}
