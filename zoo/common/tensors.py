"""Random numbers that belong to the items of a batch, precision and digests of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

SPLITMIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # step of the generator's state: 2**64 by the golden ratio


def promote_to_float32(x: Tensor) -> Tensor:
    """Convert half precisions to float32; float32 and float64 stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def split_weight_norm(weight: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Split a weight into its length over some axes, kept as 1, in float32 or more, and a direction of that length.

    Where it is zero the direction is of ones, which normalises to a number.
    """
    length = torch.linalg.vector_norm(promote_to_float32(weight), dim=tuple(axes), keepdim=True)
    return length, torch.where(length > 0, weight, torch.ones_like(weight))


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

    Returns `count` numbers for each of B seeds (0 to 2**64 - 1): (count, B), float64, evenly spread over (0, 1).

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014); one generator per seed.
    """
    state = np.array(seeds, dtype=np.uint64) + np.arange(1, count + 1, dtype=np.uint64)[:, None] * SPLITMIX_INCREMENT
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 of names, types, shapes and values, tensor by tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
