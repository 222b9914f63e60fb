"""Starting from given weights with fresh optimizers: our checkpoint, an export, or an original's file."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from pathlib import Path

import lightning as L
from torch import Tensor

from zoo.training import checkpoint_files
from zoo.training.run import find_checkpoint

log = logging.getLogger(__name__)


def init_from(model: L.LightningModule, path: Path, min_matched: float = 0.9) -> dict[str, Counter[str]]:
    """Copy matching tensors into a model and report per component what matched.

    Args:
        model: the task; its components are the first parts of its parameter names.
        path: a checkpoint or run folder of ours, an export folder, or a file that the system's converter reads.
        min_matched: smallest share of a component's tensors that must match, for each component that the file has.

    Returns:
        Counts of matched, missing, unexpected and mismatched (other shape) tensors by component.

    Raises:
        FileNotFoundError: when there is nothing at `path`.
        ValueError: when a component matches less than `min_matched`, or nothing matches at all.
    """
    if not path.exists():
        raise FileNotFoundError(f"init_from: nothing at {path}")
    given = read_weights(path, type(model).__module__)
    own = model.state_dict()
    report: dict[str, Counter[str]] = {}
    matching: dict[str, Tensor] = {}
    for key in dict.fromkeys([*own, *given]):
        if key not in given:
            outcome = "missing"
        elif key not in own:
            outcome = "unexpected"
        elif own[key].shape != given[key].shape:
            outcome = "mismatched"
        else:
            outcome = "matched"
            matching[key] = given[key]
        report.setdefault(key.split(".")[0], Counter())[outcome] += 1
    for component, counts in report.items():
        log.info("init_from %s: %s", component, ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
        present = sum(counts.values()) - counts["missing"]
        if present and counts["matched"] < min_matched * (counts["matched"] + counts["mismatched"] + counts["missing"]):
            raise ValueError(
                f"init_from {path}: only {counts['matched']} of the {component}'s tensors match ({dict(counts)}); "
                f"at least {min_matched:.0%} must (init_from_min_matched)"
            )
    if not matching:
        raise ValueError(f"init_from {path}: no tensor matches; it holds {', '.join(list(given)[:3])}, …")
    model.load_state_dict(matching, strict=False)
    return report


def read_weights(path: Path, module: str) -> dict[str, Tensor]:
    """The tensors of a file under the names that the task of `module` uses."""
    if (path / "model.safetensors").is_file():
        from safetensors.torch import load_file

        return load_file(path / "model.safetensors")
    if path.is_dir() or path.suffix == ".ckpt":
        checkpoint = checkpoint_files.load_checkpoint(find_checkpoint(path))
        if "state_dict" in checkpoint:
            return checkpoint["state_dict"]
    converter = importlib.import_module(module.rpartition(".")[0] + ".convert")
    return converter.original_state(path)
