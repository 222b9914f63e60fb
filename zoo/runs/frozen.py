"""Backbones whose weights come from elsewhere: identified by a hash, never written into checkpoints.

A checkpoint holds a record of each under `checkpoint["frozen"][<module path>]`; their copies: `zoo.runs.frozen_files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from zoo.common.tensors import state_digest

FROZEN_FOLDER = "frozen"
HASH_DIGITS = 16  # of a copy's name
_FSDP_LEVEL = "_fsdp_wrapped_module."


class FrozenModule(nn.Module):
    """Base of modules that take their weights from a source and do not train them.

    A subclass sets `requires_grad` of what `frozen_state` names to False. Where that is not everything, or the module
    is not one of transformers, it defines `frozen_state` and `save_source`. Its constructor takes `source` (hub id or
    local folder; None for weights built here), `revision` (commit of the hub repository) and, where it can be built
    without a source, `config` (null when a copy replaces the source). The module that contains it stores it under the
    name of its constructor argument: so its description is found in the recipe.
    """

    model: Any  # of transformers, as `save_source` writes it

    def __init__(self, source: str | None = None, revision: str | None = None) -> None:
        super().__init__()
        self.source, self.revision = source, revision
        self.copy_path: Path | None = None  # the copy that was read instead of the source
        self._fingerprint: str | None = None

    def frozen_state(self) -> dict[str, Tensor]:
        """Return the part of `state_dict()` that comes from the source: all by default, nothing while it is trained."""
        return dict(self.state_dict())

    def save_source(self, folder: Path) -> None:
        """Write what `source=folder` builds again, with the same `frozen_state()`, into an existing, empty folder."""
        with suppress_loading_messages():
            self.model.save_pretrained(folder)

    @property
    def is_frozen(self) -> bool:
        """Whether it holds weights that are not trained."""
        return bool(self.frozen_state())

    @property
    def is_local(self) -> bool:
        """Whether the weights exist on this machine only, so that runs and exports need a copy."""
        return self.source is None or self.copy_path is not None or Path(self.source).is_dir()

    def fingerprint(self) -> str:
        """Return `state_digest` of `frozen_state()`, computed once."""
        if self._fingerprint is None:
            self._fingerprint = state_digest(self.frozen_state())
        return self._fingerprint

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode while frozen: no dropout, layer drop, masking or running statistics."""
        return super().train(mode and not self.is_frozen)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Add the frozen tensors that a checkpoint leaves out, so that strict loading passes."""
        frozen = {prefix + name: tensor for name, tensor in self.frozen_state().items()}
        if frozen.keys() & state_dict.keys():
            self._fingerprint = None
        for name in frozen.keys() - state_dict.keys():
            state_dict[name] = frozen[name]
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextmanager
def suppress_loading_messages() -> Iterator[None]:
    """Keep transformers' loading reports and progress bars from the terminal."""
    from transformers.utils import logging as messages

    verbosity, bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(verbosity)
        if bars:
            messages.enable_progress_bar()


def frozen_modules(components: Mapping[str, nn.Module]) -> dict[str, FrozenModule]:
    """List all FrozenModules by their paths (`encoder.backbone`); the component "" gives paths within itself."""
    return {
        path.replace(_FSDP_LEVEL, ""): module
        for name, component in components.items()
        for path, module in component.named_modules(prefix=name, remove_duplicate=False)
        if isinstance(module, FrozenModule)
    }


def frozen_keys(modules: Mapping[str, FrozenModule]) -> set[str]:
    """Return the names in the complete state dict of the tensors that a checkpoint leaves out."""
    return {f"{path}.{name}" for path, module in modules.items() for name in module.frozen_state()}


def frozen_records(modules: Mapping[str, FrozenModule]) -> dict[str, dict[str, Any]]:
    """Describe each frozen module for a checkpoint: `sha256`, `source`, `revision`, `folder` of its copy or None."""
    return {
        path: {
            "sha256": module.fingerprint(),
            "source": module.source,
            "revision": module.revision,
            "folder": f"{FROZEN_FOLDER}/{module.fingerprint()[:HASH_DIGITS]}" if module.is_local else None,
        }
        for path, module in modules.items()
        if module.is_frozen
    }
