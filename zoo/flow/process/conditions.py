"""What a net is conditioned on besides a class: texts and images, given or in part replaced by their nulls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.common.tensors import sample_uniforms
from zoo.flow.nets.velocity import NULL_LABEL, VelocityNet

GROUPS = {"text": ("tokens", "mask", "pooled"), "image": ("image",)}
LABEL = "label"
KINDS = (*GROUPS, LABEL)


@dataclass
class Conditions:
    """Conditions of a batch by the names of `VelocityNet.condition_shapes`, and what stands for none of each.

    Attributes:
        given: (B, ...) each.
        null: (1, ...) each: the states of the empty text, an empty image.
    """

    given: Mapping[str, Tensor]
    null: Mapping[str, Tensor]

    def kept(self, kinds: Collection[str]) -> dict[str, Tensor]:
        """All of them, those that belong to other kinds than these ("text", "image") replaced by their nulls."""
        return {
            name: value if _kind(name) in ("", *kinds) else self.null[name].to(value).expand_as(value)
            for name, value in self.given.items()
        }

    def dropped(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of them, each row of a kind replaced where its number (B,) is 0."""
        found = {}
        for name, value in self.given.items():
            if kind := _kind(name):
                rows = kept[kind].reshape(-1, *(1,) * (value.dim() - 1))
                value = torch.where(rows > 0, value, self.null[name].to(value))
            found[name] = value
        return found

    def rows(self, part: slice) -> Conditions:
        """Those of some rows."""
        return Conditions({name: value[part] for name, value in self.given.items()}, self.null)


@dataclass
class Given:
    """What samples are to show besides their class, one of each per sample; None where the net takes none.

    Attributes:
        prompts: texts; "" for none.
        images: (B, C, H, W), as an `ImageCondition` makes them.
    """

    prompts: Sequence[str] | None = None
    images: Tensor | None = None

    def rows(self, part: slice) -> Given:
        """That of some samples."""
        return Given(
            None if self.prompts is None else self.prompts[part], None if self.images is None else self.images[part]
        )


def with_nulls(
    given: Mapping[str, Tensor],
    null: Callable[[], Mapping[str, Tensor]],
    encode: Callable[[Tensor], Tensor] | None = None,
) -> Conditions:
    """Conditions of a batch, and what stands for none: the states of the empty text, an image of zeros.

    Args:
        null: the states of the empty text.
        encode: the image in latents, where the flow runs there.
    """
    found = dict(given)
    nulls: dict[str, Tensor] = {}
    if "image" in found:
        found["image"] = found["image"] if encode is None else encode(found["image"])
        nulls["image"] = torch.zeros_like(found["image"][:1])
    if texts := [name for name in GROUPS["text"] if name in found]:
        states = null()
        nulls |= {name: states[name].to(found[name].device) for name in texts}
    return Conditions(found, nulls)


def drawn_drops(drops: Mapping[str, float], joint: float, seeds: Sequence[int]) -> dict[str, Tensor]:
    """Which items keep each kind of condition, (B,) int64 by "text", "image" and "label", each from its item's seed.

    Args:
        drops: probability by kind that it is dropped, each for itself.
        joint: that all are.
    """
    u = sample_uniforms(seeds, 3 + len(GROUPS))[2:]  # the first two are the time and the label's own
    kept = {LABEL: (u[0] >= joint).long()}
    for number, kind in enumerate(GROUPS, start=1):
        kept[kind] = kept[LABEL] * (u[number] >= drops.get(kind, 0.0)).long()
    return kept


def _kind(name: str) -> str:
    """The kind that a name belongs to; none for "span", which is never dropped."""
    return next((kind for kind, names in GROUPS.items() if name in names), "")


def predict(
    net: VelocityNet,
    t: float,
    x: Tensor,
    label: Tensor | None,
    conditions: Conditions | None,
    branches: Sequence[Collection[str]],
) -> list[Tensor]:
    """Predictions at points (B, ...) with only some conditions given, for each set of kinds; one call of the net."""
    labels = None
    if label is not None:
        labels = torch.cat([label if LABEL in kinds else torch.full_like(label, NULL_LABEL) for kinds in branches])
    points = torch.cat([x] * len(branches))
    if conditions is None:
        return list(net(points, t, labels).chunk(len(branches)))
    parts = [conditions.kept(kinds) for kinds in branches]
    joined = {name: torch.cat([part[name] for part in parts]) for name in conditions.given}
    return list(net(points, t, labels, joined).chunk(len(branches)))
