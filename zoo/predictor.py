"""`zoo predict` on what describes itself: an export folder or a lone checkpoint, without a recipe."""

from __future__ import annotations

from typing import Any, ClassVar

import lightning as L

from zoo.loading import load
from zoo.training.inference import Inference
from zoo.training.task import ZooTask


class Loaded(ZooTask):
    """A task that can only predict.

    Args:
        path: an export folder or a checkpoint, for `zoo.load`.
        options: for `zoo.load`: values of the Inference's constructor, such as a chunk length.
    """

    inference_class: ClassVar[str] = ""
    inference_parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._inference = load(path, **(options or {}))
        for name, part in self._inference.parts().items():
            self.add_module(name, part)

    def inference(self) -> Inference:
        """The loaded object."""
        assert self._inference is not None
        return self._inference


class NoData(L.LightningDataModule):
    """Stands where a recipe's data would: `predict --input` brings its own."""
