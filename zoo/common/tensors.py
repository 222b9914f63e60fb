"""Random numbers that belong to the items of a batch, and precision of tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least

SPLITMIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # step of the generator's state: 2**64 by the golden ratio
ROUNDS = 8  # of a permutation: with 4 the neighbours of small ones are not independent
_BLOCK = 1 << 14  # positions worked on at once, so that they stay in the processor's cache


def promote_to_float32(x: Tensor) -> Tensor:
    """Convert half precisions to float32; float32 and float64 stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@contextmanager
def seeded_rng(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the context and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def sample_uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """Return `sample_uniforms_numpy` as a tensor (count, B), float64 on the CPU."""
    return torch.from_numpy(sample_uniforms_numpy(seeds, count))


def sample_uniforms_numpy(seeds: Sequence[int], count: int) -> np.ndarray:
    """Sample numbers that belong to the items of a batch: the same for any batch size and number of processes.

    Args:
        seeds: one per item, 0 to 2**64 - 1.
        count: numbers for each item.

    Returns:
        (count, B), float64, evenly spread over (0, 1).

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014); one generator per seed, all
    in one go.
    """
    state = np.array(seeds, dtype=np.uint64) + np.arange(1, count + 1, dtype=np.uint64)[:, None] * SPLITMIX_INCREMENT
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


class KeyedPermutation:
    """A permutation of 0 to size - 1 that a key names, computed by position: nothing is held in memory.

    A Feistel network over the next larger rectangle of numbers; what falls outside is sent through it again until it
    falls inside (cycle walking), which keeps it a bijection.

    Args:
        size: number of items, 1 to 2**60.
        key: any 64 bits; another key, another permutation.

    Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), section 5; the round function is the
        finalizer of splitmix64.
    """

    def __init__(self, size: int, key: int) -> None:
        check_at_least(1, size=size)
        self.size = size
        self._rows = math.isqrt(size - 1) + 1
        self._columns = -(-size // self._rows)
        digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=8 * ROUNDS).digest()
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, start: int, stop: int) -> np.ndarray:
        """The items at positions start to stop - 1 (0 <= start <= stop <= size), int64."""
        parts = [self._block(first, min(first + _BLOCK, stop)) for first in range(start, stop, _BLOCK)]
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])

    def _block(self, start: int, stop: int) -> np.ndarray:
        items = self._mix(np.arange(start, stop, dtype=np.uint64))
        while len(outside := np.flatnonzero(items >= self.size)):
            items[outside] = self._mix(items[outside])
        return items.view(np.int64)

    def _mix(self, numbers: np.ndarray) -> np.ndarray:
        sizes = np.uint64(self._rows), np.uint64(self._columns)
        halves = list(np.divmod(numbers, sizes[1]))
        for number, key in enumerate(self._keys):
            changed, other = number % 2, 1 - number % 2
            mixed = (halves[other] + key) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
            moved = halves[changed] + ((mixed >> np.uint64(32)) * sizes[changed] >> np.uint64(32))
            halves[changed] = np.where(moved >= sizes[changed], moved - sizes[changed], moved)
        return halves[0] * sizes[1] + halves[1]


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 of names, types, shapes and values, tensor by tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
