"""A dry run of the parts of CI-LLM on a tiny random backbone: what must hold before a long training begins."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import Aggregator, Dirichlet, Mean
from zoo.ci_llm.convert.read import Adapters, adapters_of, read_original, read_peft
from zoo.ci_llm.convert.write import write_original, write_peft
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.objective import Objective
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd, Mode
from zoo.common.environment import list_devices

AGENTS, VOCABULARY, EOS = 3, 64, 2
TOLERANCE = 1e-5
LIBRARIES = ("torch", "transformers", "peft", "safetensors")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}


class Check(NamedTuple):
    """What came of a check: whether it passed, and what it saw."""

    name: str
    passed: bool
    detail: str


def report() -> int:
    """Run all checks and print a line for each.

    Returns:
        0, or 1 when one has failed.
    """
    failed = []
    for check in checks():
        print(f"{'ok' if check.passed else 'FAILED':<8}{check.name:<14}{check.detail}")
        failed += [] if check.passed else [check.name]
    print(f"failed: {', '.join(failed)}" if failed else "a crowd of agents works here")
    return int(bool(failed))


def checks() -> Iterator[Check]:
    """Run all checks, one after the other; one that raises has failed, and the others still run."""
    tests: dict[str, Callable[[], str]] = {
        "environment": environment,
        "init": init,
        "gradients": gradients,
        "checkpoint": checkpoint,
        "diversity": diversity,
        "generation": generation,
    }
    for name, test in tests.items():
        try:
            yield Check(name, True, test())
        except Exception as error:  # whatever a part raises is the finding
            yield Check(name, False, f"{type(error).__name__}: {' '.join(str(error).split())}")


def environment() -> str:
    """Name libraries and devices."""
    found = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"python {platform.python_version()}, {found}; {', '.join(each.description for each in list_devices())}"


def init() -> str:
    """See that fresh agents differ and begin as the backbone."""
    crowd = tiny_crowd(init="lora")
    ids, mask = _texts()
    with torch.no_grad(), crowd.without_agents():
        alone = crowd(ids, mask)
    with torch.no_grad():
        spread = (crowd(ids, mask) - alone).abs().max()
    first = torch.stack([next(iter(crowd.agents.adapter(number).values())) for number in range(AGENTS)])
    least = min((first[i] - first[j]).abs().max() for i in range(AGENTS) for j in range(i))
    _demand(spread <= TOLERANCE, f"fresh agents change the backbone's logits by {spread:.2g}, expected 0")
    _demand(least > 0, "two agents begin with the same weights")
    trained = sum(weight.numel() for weight in crowd.parameters() if weight.requires_grad)
    return f"{AGENTS} agents with {trained:,} weights to train, which differ and begin as the frozen backbone"


def gradients() -> str:
    """See that every agent is trained, and by the same gradients in every mode."""
    modes: tuple[tuple[Mode, int | None], ...] = (("batched", None), ("sequential", None), ("chunked", 2))
    found = {}
    ids, mask = _texts()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(torch.arange(6) < 3, -100)}
    for mode, chunk in modes:
        crowd = tiny_crowd(mode=mode, chunk=chunk)
        Objective(batch, Diversity(0.1, 8)).of(crowd).total.backward()
        found[mode] = [weight.grad for weight in crowd.agents.parameters() if weight.grad is not None]
    norms = torch.stack([each.flatten(1).norm(dim=1) for each in found["batched"]]).norm(dim=0)
    _demand(bool((norms > 0).all()), f"an agent has no gradient: norms {norms.tolist()}")
    for mode, each in found.items():
        off = max(float((a - b).abs().max()) for a, b in zip(each, found["batched"], strict=True))
        _demand(off <= TOLERANCE, f"gradients of mode {mode} differ from batched by {off:.2g}")
    return f"every agent has one, equal in modes {', '.join(found)}; norms {norms.min():.2g} to {norms.max():.2g}"


def checkpoint() -> str:
    """Write adapters in the original's layout and as PEFT folders, read them back, put them onto a new backbone."""
    crowd = tiny_crowd()
    ids, mask = _texts()
    layouts: dict[str, tuple[Callable[[Path, Adapters], None], Callable[[Path], Adapters]]] = {
        "the original's": (write_original, read_original),
        "PEFT's": (write_peft, read_peft),
    }
    for name, (write, read) in layouts.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "adapters", adapters_of(crowd))
            adapters = read(Path(folder) / "adapters")
        other = tiny_crowd(seed=1)
        for number, weights in enumerate(adapters.weights):
            other.agents.load_adapter(number, weights)
        with torch.no_grad():
            same = torch.equal(other(ids, mask), crowd(ids, mask))
        _demand(same, f"adapters read back from {name} layout give other logits")
    return f"adapters come back from {' and '.join(layouts)} layout, to the bit"


def diversity() -> str:
    """See that the distance is 0 for equal agents, above 0 for others, and drives them apart."""
    term, crowd = Diversity(1.0, 16), tiny_crowd()
    ids, mask = _texts()
    output = crowd.outputs(ids, mask, hidden=True)
    points = term.represent(output.logits, output.hidden, mask)
    same = float(term.value(points[:1].detach().expand(AGENTS, -1, -1)))
    value = term.value(points)
    term.loss(value).backward()
    norm = sum(float(weight.grad.norm()) for weight in crowd.agents.parameters() if weight.grad is not None)
    _demand(same <= TOLERANCE, f"equal agents are {same:.2g} apart, expected 0")
    found = float(value.detach())
    _demand(found > 0 and norm > 0, f"agents that differ are {found:.2g} apart, with a gradient of {norm:.2g}")
    return f"0 between equal agents, {found:.3g} between others, and it has a gradient"


def generation() -> str:
    """Let the agents write together, by their mean and by drawn weights."""
    crowd = tiny_crowd()
    ids, mask = _texts()
    rules: tuple[Aggregator, ...] = (Mean(), Dirichlet(1.0))
    for rule in rules:
        name = type(rule).__name__
        with torch.no_grad():
            total = rule(crowd(ids, mask)[:, :, -1]).sum(-1)
        off = float((total - 1).abs().max())
        _demand(off <= TOLERANCE, f"predictions of {name} sum to 1 within {off:.2g} only")
        both = generate(crowd, ids, mask, rule, 6, EOS, seeds=[5, 6])
        alone = generate(crowd, ids[1:], mask[1:], rule, 6, EOS, seeds=[6])
        _demand(torch.equal(both[:1, : ids.shape[1]], ids[:1]), f"a text of {name} does not begin with its prompt")
        _demand(_until_eos(both[1]) == _until_eos(alone[0]), f"a text of {name} depends on the texts beside it")
    names = " and ".join(type(rule).__name__ for rule in rules)
    return f"{names} join the agents to probabilities; texts do not depend on their neighbours"


def tiny_crowd(init: Any = "normal", mode: Mode = "batched", chunk: int | None = None, seed: int = 0) -> Crowd:
    """Three agents on a random Llama, without dropout."""
    agents = Agents(AGENTS, rank=4, alpha=8, dropout=0.0, init=init, std=0.1, seed=seed)
    return Crowd(Backbone(config=LLAMA), agents, mode, chunk)


def _texts() -> tuple[Tensor, Tensor]:
    ids = torch.arange(3, 15).view(2, 6)
    return ids, torch.ones_like(ids)


def _until_eos(text: Tensor) -> list[int]:
    ids = text.tolist()
    return ids[: ids.index(EOS)] if EOS in ids else ids


def _demand(holds: bool | Tensor, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
