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

from zoo.flow.nets.text import FrozenText
from zoo.flow.process.conditions import GROUPS
from zoo.flow.process.coupling import Reader
from zoo.flow.process.image_conditions import ImageCondition
from zoo.training.array_files import MappedArrays, array_paths, write_array_files
from zoo.training.resume import item_seed

log = logging.getLogger(__name__)

SHARD_PROMPTS = 4096
CAPTION, DERIVED = 3, 4  # what is drawn for an item: which of its captions, and what is random about an image


class PromptStates:
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
        text: FrozenText,
        prompts: Sequence[str],
        names: Sequence[str],
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.names = tuple(sorted(names))
        known = sorted(set(prompts))
        self.numbers = {prompt: number for number, prompt in enumerate(known)}
        facts = [text.fingerprint(), text.max_tokens, self.names, known]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        self.stem = folder / f"prompts-{digest}"
        if all(path.is_file() for path in array_paths(self.stem, len(known), SHARD_PROMPTS)):
            return
        kinds = {"tokens": ("<f2", (text.max_tokens, text.width)), "mask": ("?", (text.max_tokens,))}
        kinds["pooled"] = ("<f2", (text.width,))
        row_type = np.dtype([(name, *kinds[name]) for name in self.names])

        def rows(part: range) -> np.ndarray:
            found = np.zeros(len(part), row_type)
            for first in range(0, len(part), text.chunk):
                states = text.encode(known[part.start + first : min(part.start + first + text.chunk, part.stop)])
                for name in self.names:
                    found[name][first : first + text.chunk] = states[name].cpu().numpy()
            return found

        done = write_array_files(self.stem, len(known), SHARD_PROMPTS, rows, rank, world_size)
        log.info("%s: %d shards of prompts written by process %d", self.stem, done, rank)

    def open(self) -> None:
        """Open the shards, once all processes have written theirs."""
        self._shards = MappedArrays(self.stem, len(self.numbers), SHARD_PROMPTS)

    def __call__(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """States (n, ...) of prompts, float32, masks bool."""
        rows = [self._shards.row(self.numbers[prompt]) for prompt in prompts]
        found = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in self.names}
        return {name: value if name == "mask" else value.float() for name, value in found.items()}


def encoded_prompts(task: Any, prompts: Sequence[str], folder: Path, rank: int, world_size: int) -> PromptStates:
    """States of prompts, and of the empty one, by a task's encoder: what its net takes of them, on its device.

    Args:
        task: a `FlowTask` with `text`, in a trainer.
        folder: below which the shards lie.
    """
    text, strategy = task.text, task.trainer.strategy
    names = [name for name in GROUPS["text"] if name in task.net.condition_shapes]
    home = text.model.device
    text.to(strategy.root_device)
    states = PromptStates(text, ["", *prompts], names, folder, rank, world_size)
    text.to(home)
    strategy.barrier("prompts")
    states.open()
    return states


class ItemConditions:
    """What items of a set are conditioned on besides their class.

    Args:
        captions: of every image that can be read; of several one is drawn in each epoch, the first in evaluation.
        states: of all captions.
        image: what of an image the net is told.
        sources: images (n, C, H, W) by index that this is taken from; null for the item's own.
    """

    def __init__(
        self,
        captions: Sequence[Sequence[str]] | None = None,
        states: PromptStates | None = None,
        image: ImageCondition | None = None,
        sources: Reader | None = None,
    ) -> None:
        self.captions = captions
        self.states = states
        self.image = image
        self.sources = sources

    def __call__(
        self, indices: Sequence[int], seeds: Sequence[int], drawn: bool, own: Callable[[], Tensor], mirrored: Tensor
    ) -> dict[str, Tensor]:
        """Conditions (n, ...) by the names of `VelocityNet.condition_shapes`.

        Args:
            indices: of the images, as they are read.
            seeds: of the items in this epoch.
            drawn: whether a caption is drawn of several.
            own: the items' images, mirrored where they are.
            mirrored: (n,), bool.
        """
        found: dict[str, Tensor] = {}
        if self.states is not None:
            found |= self.states([self.prompt(*each, drawn) for each in zip(indices, seeds, strict=True)])
        if self.image is not None:
            images = own() if self.sources is None else self.sources(indices)
            if self.sources is not None:
                images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
            found["image"] = self.image.derived(images, [item_seed(seed, 0, DERIVED) for seed in seeds])
        return found

    def prompt(self, index: int, seed: int, drawn: bool) -> str:
        """The caption of an image."""
        assert self.captions is not None
        choice = self.captions[index]
        return choice[item_seed(seed, 0, CAPTION) % len(choice) if drawn else 0]
