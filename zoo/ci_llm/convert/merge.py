"""The adapters of a crowd merged into one, or into the backbone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from zoo.ci_llm.convert.ours import build_crowd, read_checkpoint
from zoo.ci_llm.convert.read import (
    PEFT_LAYOUT,
    Adapters,
    Weights,
    agent_name,
    is_original_folder,
    is_peft_folder,
    layer_of,
    read,
)
from zoo.ci_llm.convert.write import write_peft
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.ci_llm.nets.agents import PEFT_PREFIX, Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.atomic_files import replace_atomically
from zoo.common.checks import check_at_least, check_within
from zoo.runs.checkpoints import find_checkpoint

Method = Literal["average", "svd", "linear", "ties", "dare_linear", "dare_ties", "magnitude_prune"]
Sign = Literal["total", "frequency"]
Pruning = Callable[[Tensor], Tensor]
PRUNED = ("ties", "dare_linear", "dare_ties", "magnitude_prune")


def merged(
    adapters: Adapters,
    method: Method = "average",
    weights: Sequence[float] | None = None,
    density: float | None = None,
    sign: Sign = "total",
    rank: int | None = None,
    seed: int = 0,
) -> Adapters:
    """One adapter of scale 1 in the place of several; arguments and errors as those of `merge`.

    Source: `add_weighted_adapter` of peft 0.21: its combination types of these names (`average` is its `cat`), which
    work on A and B apart, each times sqrt(|w s|) and A with the sign of w s; TIES (arXiv 2306.01708), section 3;
    DARE (arXiv 2311.03099), section 3.
    """
    shares = _shares(adapters, method, weights, density)
    if rank is not None and method != "svd":
        raise ValueError(f"method {method} has no svd_rank; leave it out")
    if adapters.dora:
        raise ValueError("adapters of DoRA have no sum: merge them into the backbone (into_base), by average")
    form = Agents(**adapters.form())
    generator = torch.Generator().manual_seed(seed)
    found: Weights = {}
    values: tuple[Tensor, ...]
    for layer in dict.fromkeys(map(layer_of, adapters.weights[0])):
        keys = [f"{PEFT_PREFIX}{layer}.lora_{side}.weight" for side in "AB"]
        pairs = [tuple(each[key].float() for key in keys) for each in adapters.weights]
        factors = [share * scale for share, scale in zip(shares, form.scales(layer), strict=True)]
        if method in ("average", "svd"):
            a = torch.cat([factor * pair[0] for factor, pair in zip(factors, pairs, strict=True)])
            b = torch.cat([pair[1] for pair in pairs], 1)
            values = (
                (a, b) if method == "average" else _largest(b @ a, max(form.ranks(layer)) if rank is None else rank)
            )
        else:
            if len(set(form.ranks(layer))) > 1:
                raise ValueError(
                    f"{layer} has ranks {form.ranks(layer)}: {method} needs equal ones; take average or svd"
                )
            roots = torch.tensor([math.sqrt(abs(factor)) for factor in factors])
            signs = torch.tensor([1.0 if factor >= 0 else -1.0 for factor in factors])
            prune = _pruning(method, 1.0 if density is None else density, generator)
            sides = zip(*pairs, strict=True)
            values = tuple(
                _joined(torch.stack([prune(each) for each in side]), root, sign if "ties" in method else None)
                for side, root in zip(sides, (roots * signs, roots), strict=True)
            )
        found |= {key: value.contiguous() for key, value in zip(keys, values, strict=True)}
    ranks = {layer_of(key): len(value) for key, value in found.items() if ".lora_A." in key}
    usual = max(ranks.values(), key=list(ranks.values()).count)
    other = {layer: each for layer, each in ranks.items() if each != usual}
    return replace(
        adapters, layout=PEFT_LAYOUT, weights=[found], rank=usual, alpha=usual, rank_pattern=other,
        alpha_pattern=dict(other), rslora=False, dropout=0.0,
    )  # fmt: skip


def _shares(
    adapters: Adapters, method: Method, weights: Sequence[float] | None, density: float | None
) -> Sequence[float]:
    count = len(adapters.weights)
    if weights is not None and len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} agents: give one for each")
    if (density is not None) != (method in PRUNED):
        needs = "needs a density" if method in PRUNED else "has no density; leave it out"
        raise ValueError(f"method {method} {needs}")
    check_within(0, 1, density=1 if density is None else density)
    if weights is not None and not any(weights):
        raise ValueError("weights are all 0: nothing would be left of the agents")
    return [1 / count] * count if weights is None else weights


def _largest(delta: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best A and B of a rank for a matrix (out, in)."""
    check_at_least(1, rank=rank)
    u, s, v = torch.linalg.svd(delta, full_matrices=False)
    return v[:rank], u[:, :rank] * s[:rank]


def _pruning(method: Method, density: float, generator: torch.Generator) -> Pruning:
    """What is left of each tensor before they are joined."""
    if density >= 1 or method == "linear":
        return lambda tensor: tensor
    if method.startswith("dare"):
        return partial(_dropped, density=density, generator=generator)
    return partial(_largest_entries, density=density)


def _dropped(tensor: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """Entries kept by chance, and made larger for those that are not."""
    if density == 0:
        return torch.zeros_like(tensor)
    return tensor * torch.bernoulli(torch.full_like(tensor, density), generator=generator) / density


def _largest_entries(tensor: Tensor, density: float) -> Tensor:
    """Entries of largest size."""
    kept = tensor.abs().flatten().topk(int(density * tensor.numel())).indices
    return tensor * torch.zeros(tensor.numel()).index_fill_(0, kept, 1.0).view_as(tensor)


def _joined(stacked: Tensor, weights: Tensor, sign: Sign | None) -> Tensor:
    """The weighted sum of tensors (K, ...); with an election, the mean of those weighted ones of the elected sign."""
    weighted = stacked * weights[:, None, None]
    if sign is None:
        return weighted.sum(0)
    summed = (stacked if sign == "total" else stacked.sign()).sum(0)
    agree = stacked.sign() == torch.where(summed >= 0, 1, -1)
    return (weighted * agree).sum(0) / agree.sum(0).clamp(min=1)


@torch.no_grad()
def add_to_base(crowd: Crowd, shares: Sequence[float]) -> None:
    """Add w_k (W_k - W) of each agent to the weights W of the backbone, in float32; W_k is its adapted weight.

    Exact for one agent, and for the mean of the weights of several (which is no mean of their predictions).

    Raises:
        ValueError: when a weight is in 4 bits, or two layers share it.
    """
    owners: dict[int, int] = {}
    for parameter in crowd.backbone.model.named_parameters(remove_duplicate=False):
        owners[id(parameter[1])] = owners.get(id(parameter[1]), 0) + 1
    for name in crowd.agents.names:
        layer: Any = crowd.backbone.model.get_submodule(name)
        if hasattr(layer.weight, "quant_state"):
            raise ValueError(f"{name} is in 4 bits: load the backbone with quantization none to merge into it")
        if owners[id(layer.weight)] > 1:
            raise ValueError(f"{name} shares its weight with another layer, which a merge would change too")
        lora: Any = crowd.agents.adapters.get_submodule(name)
        base = Backbone.weight(layer)  # (out, in)
        change = torch.zeros_like(base)
        for agent, share in enumerate(shares):
            adapted = base + lora.scales[agent] * lora.lora_B[agent] @ lora.lora_A[agent]
            if lora.lora_magnitude_vector is not None:
                adapted *= (lora.lora_magnitude_vector[agent] / lora.norms(layer)[agent])[:, None]
            change += share * (adapted - base)
        whole = base + change
        layer.weight.copy_(whole if isinstance(layer, torch.nn.Linear) else whole.T)


def merge(
    source: Path,
    output: Path,
    method: Method = "average",
    weights: list[float] | None = None,
    density: float | None = None,
    sign: Sign = "total",
    svd_rank: int | None = None,
    seed: int = 0,
    into_base: bool = False,
    backbone: str | None = None,
) -> dict[str, Any]:
    """Merge the adapters of a crowd into one PEFT adapter, or into the backbone.

    Args:
        source: our run folder or checkpoint, PEFT folders, or a checkpoint folder of CI-LLM.
        output: folder to write: `agent0` with the adapter in it, or a model of transformers with its tokenizer.
        method: `average` keeps every agent's rank and is exact; `svd` is its best of one rank; the others work on A and
            B apart, as peft's: `linear`, `ties`, `dare_linear`, `dare_ties`, `magnitude_prune`.
        weights: of the agents; equal by default.
        density: part of the entries that is kept, 0 to 1, of those that prune.
        sign: how TIES elects signs: by their sum or by their number.
        svd_rank: of `svd`; the largest of the agents' by default.
        seed: of the entries that DARE drops.
        into_base: write the backbone with the adapters in its weights.
        backbone: its transformers folder or hub id; by default the one that the files name.

    Returns:
        What was written: output, method, agents, rank or layers.

    Raises:
        FileNotFoundError: when the source or the backbone is missing.
        ValueError: when the agents cannot be merged so, or the output holds something else.
    """
    source, output = Path(source), Path(output)
    if source.resolve().is_relative_to(output.resolve()):
        raise ValueError(f"{output} is what is merged, and would be replaced; choose another folder")
    if output.exists() and not (is_peft_folder(output) or (output.is_dir() and not any(output.iterdir()))):
        raise ValueError(f"{output} exists and holds something else; choose another folder")
    if is_original_folder(source) or is_peft_folder(source):
        adapters = read(source)
    else:
        adapters, _ = read_checkpoint(find_checkpoint(source), backbone)
    facts = {"output": str(output), "method": method, "agents": len(adapters.weights)}
    if not into_base:
        one = merged(adapters, method, weights, density, sign, svd_rank, seed)
        write_peft(output, replace(one, progress={}))
        print(f"{len(adapters.weights)} agents, {method}: an adapter of rank {one.rank} in {output / agent_name(0)}")
        return facts | {"rank": one.rank}
    shares = _shares(adapters, method, weights, density)
    if method != "average":
        adapters, shares = merged(adapters, method, weights, density, sign, svd_rank, seed), [1.0]
    layers = _write_base(adapters, source, output, backbone, shares)
    print(f"{facts['agents']} agents, {method}: in the weights of {layers} layers of {output}")
    return facts | {"layers": layers}


def _write_base(adapters: Adapters, source: Path, output: Path, backbone: str | None, shares: Sequence[float]) -> int:
    crowd, _ = build_crowd(adapters, source, _copied(source, backbone))
    add_to_base(crowd, shares)
    with replace_atomically(output) as aside:
        aside.mkdir()
        crowd.backbone.save_source(aside)
        tokenizer = adapters.tokenizer
        if isinstance(tokenizer, Path):
            tokenizer = PretrainedTokenizer(str(tokenizer))
        if tokenizer is not None:
            tokenizer.save(aside)
    return len(crowd.agents.names)


def _copied(source: Path, backbone: str | None) -> str | None:
    """The backbone as named, or the copy in a run."""
    if backbone is not None or not (source / "frozen").is_dir():
        return backbone
    found = sorted(path.parent for path in (source / "frozen").rglob("config.json"))
    return str(found[0]) if len(found) == 1 else None
