"""Ranks on gloo: a test starts its own file as a script, which forks them from one import of torch."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from tests.harness import environment


def run_script(file: str, world: int, *arguments: str) -> None:
    """Run a test's file with the number of its ranks and further arguments."""
    command, variables = [sys.executable, file, str(world), *arguments], environment(OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=variables)
    assert done.returncode == 0, done.stderr[-4000:]


def fork_ranks(work: Callable[..., Any]) -> None:
    """Fork as many ranks as the script's first argument says, each of which calls `work(rank, world, *arguments)`."""
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.multiprocessing import start_processes

    world = int(sys.argv[1])
    start_processes(_enter, (work, world, get_free_port(), *sys.argv[2:]), nprocs=world, start_method="fork")


def _enter(rank: int, work: Callable[..., Any], world: int, port: int, *arguments: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    work(rank, world, *arguments)


def distance(first: Any, second: Any) -> float:
    """Return the largest difference between the numbers of two nested states of the same keys."""
    if isinstance(first, torch.Tensor):
        return float((first - second).abs().max()) if first.numel() else 0.0
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        return max((distance(first[key], second[key]) for key in first), default=0.0)
    if isinstance(first, list | tuple):
        return max((distance(a, b) for a, b in zip(first, second, strict=True)), default=0.0)
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    return abs(first - second) if is_number else 0.0
