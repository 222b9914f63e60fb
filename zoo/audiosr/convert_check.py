"""Whether the tensors of AudioSR's and ProjectLily's files are those of whole nets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zoo.audiosr.convert_files import Original
from zoo.audiosr.convert_names import ADAPTIVE, COPY
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.hifigan.generator import Generator

TABLE_TOLERANCE = 1e-5
Report = dict[str, Counter[str]]


def compare(original: Original, nets: Mapping[str, tuple[type[nn.Module], dict[str, Any]]]) -> Report:
    """Count per component which tensors fit.

    Returns:
        Counts of matched, missing, unexpected and mismatched (another shape) tensors. The conditioner's autoencoder is
        a net of its own where it differs from the first stage's.
    """
    report: Report = {}
    for name, (cls, arguments) in nets.items():
        with torch.device("meta"):
            net = cls(**arguments)
        if isinstance(net, Generator):
            net.fuse_()
        own = {key: value.shape for key, value in net.state_dict().items()}
        given = original.parts[name]
        counts = report.setdefault(name, Counter())
        for key in dict.fromkeys([*own, *given]):
            counts[_outcome(own.get(key), given[key].shape if key in given else None)] += 1
    if COPY in original.parts and COPY not in nets:
        report[COPY] = Counter(matched=len(original.parts[COPY]))
    if "others" in original.parts:
        report["others"] = Counter(unexpected=len(original.parts["others"]))
    return report


def _outcome(own: torch.Size | None, given: torch.Size | None) -> str:
    if own is None or given is None:
        return "missing" if given is None else "unexpected"
    return "matched" if own == given else "mismatched"


def told(report: Report) -> dict[str, str]:
    """A report in words."""
    return {name: ", ".join(f"{count} {what}" for what, count in sorted(report[name].items())) for name in report}


def check(original: Original, report: Report, min_matched: float, allow_partial: bool = False) -> list[str]:
    """Refuse what would not compute as the original does.

    Args:
        original: what was read.
        report: of `compare`.
        min_matched: share of each component's tensors that must match, 0 to 1.
        allow_partial: pass over a missing projection of the global encoder.

    Returns:
        What was passed over.

    Raises:
        ValueError: naming the component and what to do.
    """
    path, notes = original.path, []
    if lacks_projection(original):
        reason = (
            f"{path} has no {ADAPTIVE}weight: ProjectLily built that projection in the first forward pass, at random "
            "in each process, so the global encoder's output cannot be had again"
        )
        if not allow_partial:
            raise ValueError(f"{reason}; --allow_partial true takes the rest, for training the encoder anew")
        notes.append(f"{reason}: random here, train the encoder (trains: global_encoder)")
        report["global_encoder"]["missing"] -= 2
    for name, counts in report.items():
        total = sum(counts.values())
        if name == "others" or counts["matched"] >= min_matched * total:
            continue
        raise ValueError(
            f"{path}: only {counts['matched']} of {total} tensors of the {name} match ({dict(+counts)}), "
            f"{min_matched:.0%} must; is the configuration another one's?"
        )
    exact = original.parts.get("tables", {}).get("alphas_cumprod")
    if exact is not None:
        ours = CosineDiffusion(len(exact)).alpha_bar
        if (worst := float((ours - exact).abs().max())) > TABLE_TOLERANCE:
            raise ValueError(
                f"{path}: its noise schedule is not the cosine one (alphas_cumprod differ by {worst:.2g}); it is not "
                "AudioSR's, and not supported"
            )
    return notes


def lacks_projection(original: Original) -> bool:
    """Whether a file has a global encoder without its projection."""
    encoder = original.parts.get("global_encoder")
    return encoder is not None and not any(name.startswith(ADAPTIVE) for name in encoder)
