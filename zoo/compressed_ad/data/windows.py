"""Items of training and evaluation: parts of learning histories, a batch at a time and all of one length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore, replace_last_states, to_steps
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.spaces import Box, Space, size
from zoo.compressed_ad.nets.steps import Statistics, Steps
from zoo.training.resume import Key, item_seed

EVALUATION_EPOCH = -1  # of the keys of evaluation items
STATISTICS_HISTORIES, STATISTICS_EPOCH, STATISTICS_ACTIONS = 256, -7, 100_000
HISTORY, ORDER, MIXED = 0, 1, 2  # uses of an item's seed: its history; offset and order; other histories, from here


@dataclass(frozen=True)
class WindowOptions:
    """Which parts of the histories are items.

    Args:
        offset: where an item begins: at the "start" of its history, at "random", or "every" part is an item,
            one history after the other.
        episode_stride: keep every k-th episode only, which makes learning in the histories faster.
        shuffle_episodes: permute the episodes of each history: a control, whose histories show a task and no learning.
        mix_tasks: take each episode from another history, of any task: a control with nothing to learn in context.
        terminal_next_state: where a transition that ends an episode leads: to the "true" state, or to the "reset" one
            as in the original's files.
    """

    offset: Literal["start", "random", "every"] = "start"
    episode_stride: int = 1
    shuffle_episodes: bool = False
    mix_tasks: bool = False
    terminal_next_state: Literal["true", "reset"] = "true"

    def __post_init__(self) -> None:
        check_at_least(1, episode_stride=self.episode_stride)
        if self.mix_tasks and self.offset != "start":
            raise ValueError(f"mix_tasks takes complete episodes, so offset must be start, not {self.offset}")


class HistorySource(ABC):
    """Where histories come from: `count` of `length` steps each."""

    env: Env
    length: int
    count: int

    @abstractmethod
    def read(self, histories: Sequence[int], seeds: Sequence[int], steps: Tensor) -> Steps:
        """Read the steps (B, L), 0 to length - 1, of histories (B,); what is random in them depends on seeds (B,)."""

    def episodes(self, history: int) -> np.ndarray:
        """Return the bounds (E, 2) of complete episodes of different lengths: first step and the one after the last."""
        raise ValueError(
            "episode_stride, shuffle_episodes and mix_tasks need a folder (data.init_args.root) where episodes are of "
            "different lengths"
        )

    def statistics(self) -> Statistics:
        """Compute the statistics of at most `STATISTICS_HISTORIES` histories, evenly chosen."""
        count = min(self.count, STATISTICS_HISTORIES)
        histories = [number * self.count // count for number in range(count)]
        seeds = [item_seed(0, STATISTICS_EPOCH, history) for history in histories]
        steps = self.read(histories, seeds, torch.arange(self.length).expand(count, -1))
        action, space = steps.actions.flatten(0, 1), self.env.schema.action
        sample = action.reshape(len(action), -1).float() if isinstance(space, Box) else torch.empty(0, 0)
        return Statistics(
            _space_moments(steps.states, self.env.schema.observation),
            _space_moments(steps.actions, space),
            _moments(steps.rewards.reshape(-1, 1)),
            sample[:: -(-len(sample) // STATISTICS_ACTIONS) or 1],
        )


class DemonstratedSource(HistorySource):
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


class StoredSource(HistorySource):
    """Histories of a store, task after task.

    Args:
        positions: of the tasks in the store, in this order.
        streams: first histories of each task; 0 for all.
        length: first steps of each history; 0 for all.
    """

    def __init__(self, store: HistoryStore, positions: Sequence[int], streams: int = 0, length: int = 0) -> None:
        for value, most, name in ((streams, store.streams, "streams"), (length, store.steps, "steps")):
            if not 0 <= value <= most:
                raise ValueError(f"data.init_args.store.{name} is {value}; {store.folder} has {most}")
        self.env = store.env
        self.store = store
        self.positions = list(positions)
        self.streams = streams or store.streams
        self.length = length or store.steps
        self.count = len(self.positions) * self.streams
        self._episodes: dict[int, np.ndarray] = {}

    def read(self, histories: Sequence[int], seeds: Sequence[int], steps: Tensor) -> Steps:
        """Read the steps; nothing in them is random."""
        parts = []
        for history, row in zip(histories, steps.numpy(), strict=True):
            first, last = int(row.min()), int(row.max())
            position, stream = self.positions[history // self.streams], history % self.streams
            parts.append(self.store.read(position, stream, first, last + 1)[row - first])
        return to_steps(np.stack(parts), self.env.schema)

    def episodes(self, history: int) -> np.ndarray:
        """Return the bounds (E, 2) of the complete episodes in the first `length` steps."""
        if history not in self._episodes:
            ends = self.store.ends(self.positions[history // self.streams], history % self.streams)
            ends = ends[ends <= self.length]
            self._episodes[history] = np.stack([np.concatenate([[0], ends])[:-1], ends], 1)
        return self._episodes[history]


class HistoryWindows(Dataset[dict[str, Any]]):
    """Parts of histories, keyed by (epoch, item) or (epoch, item, steps) in training and by the item in evaluation.

    An item depends on seed, epoch and number alone, so batch size, workers and ranks do not matter.

    Args:
        length: steps of an item, unless its key says otherwise; all of a history by default. The last action is
            predicted from what is before it, so an item of n steps has a context of n - 1 transitions.
        size: number of items, which go through the histories again and again, or are evenly chosen where they are
            fewer; each history once by default.
        seed: of offsets, orders and histories made on demand.
    """

    def __init__(
        self,
        source: HistorySource,
        length: int | None = None,
        size: int | None = None,
        seed: int = 0,
        options: WindowOptions | None = None,
    ) -> None:
        self.source = source
        self.seed = seed
        self.options = options = options or WindowOptions()
        env = source.env
        if options.terminal_next_state == "reset" and (not isinstance(env, GridEnv) or env.random_start):
            raise ValueError(
                "terminal_next_state 'reset' needs a grid whose episodes begin in one cell (random_start false)"
            )
        self._plan_episodes()
        self.length = self.available if length is None else length
        if not 1 <= self.length <= self.available:
            raise ValueError(
                f"data.init_args.length is {self.length}; histories have 1 to {self.available} steps "
                f"({source.length} before an episode_stride of {options.episode_stride})"
            )
        if options.offset == "every" and size is not None:
            raise ValueError(f"offset 'every' has an item for each part: epoch_items must be null, not {size}")
        parts = self.available - self.length + 1 if options.offset == "every" else 1
        self.size = source.count * parts if size is None else size

    def _plan_episodes(self) -> None:
        """Set `available` steps and `episodes` of a history, and whether it is `regular`: episodes of one length."""
        source, schema, options = self.source, self.source.env.schema, self.options
        stride = options.episode_stride
        in_order = stride == 1 and not options.shuffle_episodes
        self.regular = schema.fixed or (in_order and not options.mix_tasks)
        self.episodes = -(-(source.length // schema.limit) // stride)
        self.available = source.length if in_order else self.episodes * schema.limit
        if not self.regular:
            bounds = [source.episodes(history)[::stride] for history in range(source.count)]
            if not min(map(len, bounds), default=0):
                raise ValueError("a history has no complete episode: raise store.steps, or the steps of zoo collect")
            self.episodes = max(map(len, bounds))
            lengths = [int((each[:, 1] - each[:, 0]).sum()) for each in bounds]
            self.available = source.length if stride == 1 else min(lengths)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Key | tuple[int, int, int] | int) -> dict[str, Any]:
        """Return one item, as a batch of one."""
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[Any]) -> dict[str, Any]:
        """Return a batch, `steps`: B histories of one length. A DataLoader calls this method where it exists."""
        full_keys = [key if isinstance(key, tuple) else (EVALUATION_EPOCH, key) for key in keys]
        length = full_keys[0][2] if len(full_keys[0]) == 3 else self.length
        items = [key[1] for key in full_keys]
        seeds = [item_seed(self.seed, *key[:2]) for key in full_keys]
        count = 1 + self.options.shuffle_episodes * self.episodes
        uniforms = sample_uniforms([item_seed(seed, 0, ORDER) for seed in seeds], count)
        if self.options.offset == "every":
            parts = self.available - self.length + 1
            starts = torch.tensor([item % parts for item in items])
            items = [item // parts for item in items]
        else:
            starts = (uniforms[0] * (self.available - length + 1)).long() * (self.options.offset == "random")
        times = starts[:, None] + torch.arange(length)
        histories = [self._history(item) for item in items]
        history_seeds = [item_seed(seed, 0, HISTORY) for seed in seeds]
        read = self._read_regular if self.regular else self._read_irregular
        steps = read(histories, history_seeds, times, uniforms[1:])
        env = self.source.env
        if self.options.terminal_next_state == "reset" and isinstance(env, GridEnv):
            steps = replace_last_states(steps, env.start_cell)
        return {"steps": steps}

    def _history(self, item: int) -> int:
        count = self.source.count
        return item * count // self.size if self.size < count else item % count

    def _read_irregular(self, histories: list[int], seeds: list[int], times: Tensor, uniforms: Tensor) -> Steps:
        """Read steps (B, L) of rearranged episodes of different lengths."""
        rows = []
        for number, (history, seed, places) in enumerate(zip(histories, seeds, times, strict=True)):
            if self.options.mix_tasks:
                rows.append(self._mix_irregular(seed, len(places)))
                continue
            episodes = self.source.episodes(history)[:: self.options.episode_stride]
            if self.options.shuffle_episodes:
                episodes = episodes[uniforms[: len(episodes), number].argsort().numpy()]
            order = [np.arange(*bounds) for bounds in episodes]
            if self.options.episode_stride == 1:  # the episode that the history's end cuts
                order.append(np.arange(sum(map(len, order)), self.source.length))
            steps = torch.from_numpy(np.concatenate(order))[places]
            rows.append(self.source.read([history], [seed], steps[None]))
        return Steps(*(torch.cat(fields) for fields in zip(*rows, strict=True)))

    def _mix_irregular(self, seed: int, length: int) -> Steps:
        """Read steps (1, L) of episodes of other histories, one of each."""
        parts: list[Steps] = []
        while sum(part.length for part in parts) < length:
            other = item_seed(seed, 0, MIXED + len(parts))
            history = other % self.source.count
            episodes = self.source.episodes(history)[:: self.options.episode_stride]
            first, last = episodes[other // self.source.count % len(episodes)]
            parts.append(self.source.read([history], [other], torch.arange(first, last)[None]))
        return Steps.cat(parts).slice(0, length)

    def _read_regular(self, histories: list[int], seeds: list[int], times: Tensor, uniforms: Tensor) -> Steps:
        """Read steps (B, L) where rearranged episodes are all of one length."""
        limit, options = self.source.env.schema.limit, self.options
        if options.shuffle_episodes or options.episode_stride > 1:
            episodes = times // limit
            if options.shuffle_episodes:
                episodes = uniforms.argsort(dim=0).T.gather(1, episodes)
            times = episodes * options.episode_stride * limit + times % limit
        if not options.mix_tasks:
            return self.source.read(histories, seeds, times)
        parts = times.split(limit, dim=1)
        complete = [number for number, part in enumerate(parts) if part.shape[1] == limit]
        mixed: list[Steps] = []
        for numbers in (complete, [number for number in range(len(parts)) if number not in complete]):
            if numbers:  # all at once, which costs little more than one
                others = [item_seed(seed, 0, MIXED + number) for number in numbers for seed in seeds]
                steps = torch.cat([parts[number] for number in numbers])
                joined = self.source.read([other % self.source.count for other in others], others, steps)
                starts = range(0, len(others), len(seeds))
                mixed += [Steps(*(field[start : start + len(seeds)] for field in joined)) for start in starts]
        return Steps.cat(mixed)


def _space_moments(values: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of values (B, L, *space) in a Box; empty for classes."""
    if not isinstance(space, Box):
        return torch.empty(0), torch.empty(0)
    return _moments(values.reshape(-1, size(space)))


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (n,) float32 of rows (N, n)."""
    exact = rows.double()
    return exact.mean(0).float(), exact.std(0, correction=0).float()


class EvaluationBatches(Dataset[dict[str, Any]]):
    """Complete batches of an evaluation: first items for the loss, if any, then pairs of task (n, F) and seed (n,).

    Each of the processes that divide the batches needs one, so where there are too few they are cut smaller.
    """

    def __init__(
        self,
        items: HistoryWindows | None,
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
                    "raise data.init_args.evaluation.seeds, or evaluation.items"
                )
            batch_size = min(batch_size, max(1, count // processes))
            rollout_batch = min(rollout_batch, max(1, len(self.seeds) // processes))
        self.losses = [range(first, min(first + batch_size, count)) for first in range(0, count, batch_size)]
        self.rollouts = [slice(first, first + rollout_batch) for first in range(0, len(self.seeds), rollout_batch)]

    def __len__(self) -> int:
        return len(self.losses) + len(self.rollouts)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return `steps` for the loss, or `tasks` (B, F) and `seeds`, a list of B numbers."""
        if number < len(self.losses):
            assert self.items is not None
            return self.items.__getitems__(self.losses[number])
        part = self.rollouts[number - len(self.losses)]
        return {"tasks": self.tasks[part], "seeds": self.seeds[part]}
