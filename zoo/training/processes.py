"""What torchrun or accelerate tell the processes of a tool that they started."""

from __future__ import annotations

import os

import torch


def processes() -> tuple[int, int]:
    """Rank and number of processes that torchrun or accelerate started; 0 and 1 without them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def own_device(device: str) -> torch.device:
    """The device of that name; `cuda` is each process's own where several were started."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device(device)
