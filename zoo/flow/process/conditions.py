"""Conditions of a net besides its class: texts and images, some replaced by their nulls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.common.tensors import sample_uniforms
from zoo.flow.nets.velocity import NULL_LABEL, VelocityNet

if TYPE_CHECKING:
    from zoo.flow.nets.latent_space import LatentSpace
    from zoo.flow.process.image_conditions import ImageCondition

KIND_NAMES = {"text": ("tokens", "mask", "pooled"), "image": ("image",)}
LABEL, ALL = "label", "all"
KINDS = (*KIND_NAMES, LABEL)


class TextEncoder(nn.Module, ABC):
    """Base of encoders of prompts, which are not trained here.

    Attributes:
        width: of a token's state, and of the vector.
        max_tokens: of a prompt; what is longer is cut.
        chunk: prompts encoded together.
    """

    width: int
    max_tokens: int
    chunk: int

    @abstractmethod
    def encode(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Encode prompts as `tokens` (B, max_tokens, width), `mask` (B, max_tokens), bool, and `pooled` (B, width)."""

    @abstractmethod
    def null(self) -> dict[str, Tensor]:
        """Encode the empty prompt, (1, ...) each."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the weights."""


@dataclass
class ConditionBatch:
    """Conditions of a batch by the names of `VelocityNet.condition_shapes`, and the null of each.

    Attributes:
        values: (B, ...) each.
        nulls: (1, ...) each: the states of the empty text, an empty image.
    """

    values: Mapping[str, Tensor]
    nulls: Mapping[str, Tensor]

    def select_kinds(self, kinds: Collection[str]) -> dict[str, Tensor]:
        """Return all values, those of other kinds than these ("text", "image") replaced by their nulls."""
        return {
            name: value if _kind(name) in ("", *kinds) else self.nulls[name].to(value).expand_as(value)
            for name, value in self.values.items()
        }

    def drop(self, keep: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all values, each row of a kind replaced by its null where `keep[kind]` (B,) is 0."""
        values = {}
        for name, value in self.values.items():
            if kind := _kind(name):
                rows = keep[kind].reshape(-1, *(1,) * (value.dim() - 1))
                value = torch.where(rows > 0, value, self.nulls[name].to(value))
            values[name] = value
        return values


@dataclass
class GenerationConditions:
    """Conditions of samples besides their class, one of each per sample; None where the net takes none.

    Attributes:
        prompts: texts; "" for none.
        images: (B, C, H, W), as an `ImageCondition` makes them.
    """

    prompts: Sequence[str] | None = None
    images: Tensor | None = None

    def rows(self, part: slice) -> GenerationConditions:
        """Return those of some samples."""
        return GenerationConditions(
            None if self.prompts is None else self.prompts[part], None if self.images is None else self.images[part]
        )


def add_nulls(
    conditions: Mapping[str, Tensor],
    text: TextEncoder | None,
    latents: LatentSpace | None,
    image_condition: ImageCondition | None,
) -> ConditionBatch:
    """Return conditions of a batch, images in `latents`, with their nulls: the states of the empty text, zeros."""
    values = dict(conditions)
    nulls: dict[str, Tensor] = {}
    if image_condition is not None and "image" in values:
        if latents is not None:
            values["image"] = latents.condition(values["image"], masked=image_condition.masked)
        nulls["image"] = torch.zeros_like(values["image"][:1])
    if text is not None and (names := [name for name in KIND_NAMES["text"] if name in values]):
        states = text.null()
        nulls |= {name: states[name].to(values[name].device) for name in names}
    return ConditionBatch(values, nulls)


def sample_drops(drops: Mapping[str, float], seeds: Sequence[int]) -> dict[str, Tensor]:
    """Sample which items keep each kind of condition: (B,) int64 by "text", "image" and "label", from the items' seeds.

    Args:
        drops: probability by kind that it is dropped, independently, and by "all" that all are.
    """
    u = sample_uniforms(seeds, 3 + len(KIND_NAMES))[2:]  # the first two are the time and the label's own
    keep = {LABEL: (u[0] >= drops.get(ALL, 0.0)).long()}
    for number, kind in enumerate(KIND_NAMES, start=1):
        keep[kind] = keep[LABEL] * (u[number] >= drops.get(kind, 0.0)).long()
    return keep


def _kind(name: str) -> str:
    """Return the kind that a name belongs to; "" for "span", which is never dropped."""
    return next((kind for kind, names in KIND_NAMES.items() if name in names), "")


def predict_branches(
    net: VelocityNet,
    t: float,
    x: Tensor,
    label: Tensor | None,
    conditions: ConditionBatch | None,
    branches: Sequence[Collection[str]],
    null_label: int = NULL_LABEL,
) -> list[Tensor]:
    """Predict at points (B, ...) with only some kinds of conditions, for each set of kinds; one call of the net."""
    labels = None
    if label is not None:
        labels = torch.cat([label if LABEL in kinds else torch.full_like(label, null_label) for kinds in branches])
    points = torch.cat([x] * len(branches))
    if conditions is None:
        return list(net(points, t, labels).chunk(len(branches)))
    parts = [conditions.select_kinds(kinds) for kinds in branches]
    joined = {name: torch.cat([part[name] for part in parts]) for name in conditions.values}
    return list(net(points, t, labels, joined).chunk(len(branches)))
