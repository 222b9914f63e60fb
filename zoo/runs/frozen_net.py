"""Nets of earlier stages that a task uses without training them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import zoo
from zoo.common.build import build
from zoo.common.registry import get_class
from zoo.runs.frozen import FrozenModule


class FrozenNet(FrozenModule):
    """A net taken from a run, checkpoint or export, or built with random weights; without weight norm.

    Args:
        source: a run of the net's stage, a folder of such runs (the latest is taken), a checkpoint or an export; null
            for random weights. A ValueError where it holds no such net.
        revision: not used; runs have none.
        config, seed: of a net with random weights, see `describe_net`.
    """

    net_base: ClassVar[str]  # public name of the base of the nets that a source may hold
    net_class: ClassVar[str]  # public name of their usual class
    inference: ClassVar[str]  # of the stage that trains such nets
    net: Any  # of the class `net_base`

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source, revision)
        description = None if config is None else self.describe_net(config)
        given = description if source is None else source
        if given is None:
            raise ValueError(
                f"{type(self).__name__}: give source (a run, a checkpoint, an export) or config (of {self.net_class}, "
                "for random weights)"
            )
        self.net, self.description = zoo.load_net(given, get_class(self.net_base), seed)
        self.eval()

    @classmethod
    def describe_net(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Turn a `config` into `class_path` and `init_args`: by default it has the arguments of the usual class."""
        return {"class_path": cls.net_class, "init_args": dict(config)}

    @property
    def is_local(self) -> bool:
        """Always: no hub has these weights, so runs and exports keep a copy."""
        return True

    def build_other(self, name: str) -> Any:
        """Build another component that the net's source describes; None where there is none of this name."""
        spec = self.description.others.get(name)
        return build(spec) if isinstance(spec, Mapping) else None

    def save_source(self, folder: Path) -> None:
        """Write weights and description in the layout of an export."""
        self.description.save(folder, self.net, self.inference)
