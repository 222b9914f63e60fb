"""Conditions of items: states of their captions, encoded once into shards, and images."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.flow.process.conditions import KIND_NAMES, TextEncoder
from zoo.flow.process.image_conditions import ImageCondition
from zoo.training.array_files import MappedArrays, array_paths, write_array_files
from zoo.training.resume import item_seed

log = logging.getLogger(__name__)

SHARD_PROMPTS = 4096
CAPTION, DERIVED = 3, 4  # what is drawn for an item: which of its captions, and what is random about an image


class CachedPromptStates:
    """Prompts' states of a text encoder, from shards whose name holds a hash of encoder and prompts.

    Args:
        text: the encoder, on the device that it is to run on.
        prompts: all that will be asked for; each is encoded once.
        names: which states are kept, of "tokens", "mask" and "pooled".
        folder: of the shards.
        rank: of this process, which encodes every `world_size`-th shard.
    """

    def __init__(
        self,
        text: TextEncoder,
        prompts: Sequence[str],
        names: Sequence[str],
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.names = tuple(sorted(names))
        unique = sorted(set(prompts))
        self.numbers = {prompt: number for number, prompt in enumerate(unique)}
        facts = [text.fingerprint(), text.max_tokens, self.names, unique]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        self.stem = folder / f"prompts-{digest}"
        if all(path.is_file() for path in array_paths(self.stem, len(unique), SHARD_PROMPTS)):
            return
        kinds = {"tokens": ("<f2", (text.max_tokens, text.width)), "mask": ("?", (text.max_tokens,))}
        kinds["pooled"] = ("<f2", (text.width,))
        row_type = np.dtype([(name, *kinds[name]) for name in self.names])

        def rows(part: range) -> np.ndarray:
            table = np.zeros(len(part), row_type)
            for first in range(0, len(part), text.chunk):
                states = text.encode(unique[part.start + first : min(part.start + first + text.chunk, part.stop)])
                for name in self.names:
                    table[name][first : first + text.chunk] = states[name].cpu().numpy()
            return table

        done = write_array_files(self.stem, len(unique), SHARD_PROMPTS, rows, rank, world_size)
        log.info("%s: %d shards of prompts written by process %d", self.stem, done, rank)

    def open(self) -> None:
        """Open the shards, once all processes have written theirs."""
        self._shards = MappedArrays(self.stem, len(self.numbers), SHARD_PROMPTS)

    def __call__(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """States (n, ...) of prompts, float32, masks bool."""
        rows = [self._shards.row(self.numbers[prompt]) for prompt in prompts]
        states = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in self.names}
        return {name: value if name == "mask" else value.float() for name, value in states.items()}


def encode_prompts(task: Any, prompts: Sequence[str], folder: Path, rank: int, world_size: int) -> CachedPromptStates:
    """States of prompts, and of the empty one, by a task's encoder: what its net takes of them, on its device.

    Args:
        task: a `FlowTask` with `text`, in a trainer.
        folder: below which the shards lie.
    """
    text, strategy = task.text, task.trainer.strategy
    names = [name for name in KIND_NAMES["text"] if name in task.net.condition_shapes]
    home = next(text.parameters()).device
    text.to(strategy.root_device)
    states = CachedPromptStates(text, ["", *prompts], names, folder, rank, world_size)
    text.to(home)
    strategy.barrier("prompts")
    states.open()
    return states


class ItemConditions:
    """What items of a set are conditioned on besides their class.

    Args:
        captions: of every image that can be read; of several one is drawn in each epoch, the first in evaluation.
        states: of all captions.
        image: makes the image condition.
    """

    def __init__(
        self,
        captions: Sequence[Sequence[str]] | None = None,
        states: CachedPromptStates | None = None,
        image: ImageCondition | None = None,
    ) -> None:
        self.captions = captions
        self.states = states
        self.image = image

    def __call__(
        self,
        indices: Sequence[int],
        seeds: Sequence[int],
        sample: bool,
        read_images: Callable[[], Tensor],
    ) -> dict[str, Tensor]:
        """Conditions (n, ...) by the names of `VelocityNet.condition_shapes`.

        Args:
            indices: of the images, as they are read.
            seeds: of the items in this epoch.
            sample: whether to sample one of several captions; otherwise the first.
            read_images: reads the items' images, mirrored where the items are.
        """
        conditions: dict[str, Tensor] = {}
        if self.states is not None:
            conditions |= self.states([self.prompt(*each, sample) for each in zip(indices, seeds, strict=True)])
        if self.image is not None:
            draws = [item_seed(seed, 0, DERIVED) for seed in seeds]
            conditions["image"] = self.image.from_training(read_images(), draws)
        return conditions

    def prompt(self, index: int, seed: int, sample: bool) -> str:
        """The caption of an image."""
        assert self.captions is not None
        choice = self.captions[index]
        return choice[item_seed(seed, 0, CAPTION) % len(choice) if sample else 0]
