"""K LoRA agents in stacked weights, added to a frozen backbone by hooks: one pass serves all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.ci_llm.nets.backbone import Backbone
from zoo.common.checks import check_at_least, check_below
from zoo.common.tensors import sample_uniforms, sample_uniforms_numpy

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEFT_PREFIX = "base_model.model."  # of peft's key names; what follows is the layer's name in the causal LM
_STREAMS = 3  # independent masks per agent and layer: of the input, of A, of B
SEEDS = 2**52  # as many as sample_uniforms tells apart


@dataclass(frozen=True)
class Spread:
    """Rows of a pass that belong to agents in unequal numbers.

    Args:
        own: rows that belong to agents, (R,) int64; the others are the backbone's.
        slots: where they lie among as many rows for each agent as the largest number of any, (R,) int64.
        rows: which row lies there, (n * M,) int64; any where none does.
    """

    own: Tensor
    slots: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Active:
    """Which agents the rows of a pass belong to.

    Args:
        first: agent of the first rows.
        last: one after the agent of the last rows.
        noise: seeds of the masks by agent, layer and stream; None for no dropout and no DropConnect.
        spread: the rows of each where they are not equally many.
    """

    first: int
    last: int
    noise: list[int] | None = None
    spread: Spread | None = None


def active_rows(agents: Sequence[int], device: torch.device) -> Active | None:
    """The agents of a pass by the agent of each row, in ascending order; -1 for rows of the backbone alone."""
    counts = {agent: agents.count(agent) for agent in dict.fromkeys(agents) if agent >= 0}
    if not counts:
        return None
    first, last, most = min(counts), max(counts) + 1, max(counts.values())
    own = [row for row, agent in enumerate(agents) if agent >= 0]
    if most * (last - first) == len(own) == len(agents):
        return Active(first, last)
    slots, rows = [], [own[0]] * (most * (last - first))
    seen = dict.fromkeys(counts, 0)
    for row in own:
        slot = (agents[row] - first) * most + seen[agents[row]]
        seen[agents[row]] += 1
        slots.append(slot)
        rows[slot] = row
    return Active(first, last, None, Spread(*(torch.tensor(each, device=device) for each in (own, slots, rows))))


class Lora(nn.Module):
    """The weights of all agents at one layer, float32; agents of smaller rank are filled with zeros, which stay zero.

    Args:
        lora_a: (K, rank, in).
        lora_b: (K, out, rank).
        scales: of each agent's product.
        magnitude: (K, out), with DoRA.
    """

    scaling: Tensor

    def __init__(
        self, lora_a: Tensor, lora_b: Tensor, scales: Sequence[float], magnitude: Tensor | None = None
    ) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(lora_a)
        self.lora_B = nn.Parameter(lora_b)
        self.lora_magnitude_vector = None if magnitude is None else nn.Parameter(magnitude)
        self.scales = list(scales)
        self.register_buffer("scaling", torch.tensor(self.scales, device="cpu")[:, None, None], persistent=False)
        self._norms: tuple[Any, Tensor] | None = None

    def scale(self, active: Active) -> Tensor | float:
        """What the product of the active agents is multiplied by, (n, 1, 1) where they differ."""
        scales = self.scales[active.first : active.last]
        return scales[0] if len(set(scales)) == 1 else self.scaling[active.first : active.last]

    @torch.no_grad()
    def norms(self, layer: nn.Module) -> Tensor:
        """Norms (K, out) of the rows of W + scale B A, made without the K products; kept in evaluation."""
        a, b, scale = self.lora_A, self.lora_B, self.scaling[..., 0]
        state = (a.data_ptr(), a._version, b.data_ptr(), b._version)
        if self.training or self._norms is None or self._norms[0] != state:
            with torch.autocast(a.device.type, enabled=False):
                weight = Backbone.weight(layer)
                cross = ((weight @ a.mT) * b).sum(-1)  # (K, out)
                own = ((b @ (a @ a.mT)) * b).sum(-1)
                squares = weight.square().sum(-1) + 2 * scale * cross + scale.square() * own
            self._norms = state, squares.clamp(min=0).sqrt()
        return self._norms[1]


class Agents(nn.Module):
    """K LoRA adapters: layer output + alpha / rank * B_k A_k drop(x) for the rows of agent k.

    Agent k starts the same whatever the number of agents. Masks are keyed by one draw per pass, agent and layer: they
    do not depend on which agents share a pass, and a recomputed block gets those of its forward. A fused layer (q, k
    and v in one) has one A and one B over all its rows, as in peft.

    Args:
        count: number of agents K, at least 1.
        rank: rows of A, columns of B: the size of an adapter; one for all agents, or one for each.
        alpha: the scale of an adapter is alpha / rank; one for all agents, or one for each.
        targets: last parts of the names of the adapted layers, a regular expression that their full names match as a
            whole, or "all-linear".
        dropout: probability that an input element is dropped while training, 0 to below 1; a mask for each agent.
        init: "lora" (A Kaiming-uniform, B zero: begins as the backbone) or "normal" (both normal: begins perturbed).
        std: of the weights with init "normal".
        dropconnect: probability that a weight of A or B is left out of a training pass, 0 to below 1.
        dropconnect_rescale: divide the weights that are kept by 1 - dropconnect; the original does not.
        seed: of the first weights.
        top_layers: adapt the last so many blocks only; the blocks below are then shared by the agents. Null for all.
        exclude: targets that are left out, as last parts of names or as a regular expression.
        rank_pattern: other ranks by layer: regular expressions of the ends of names, the first that fits counts; to
            each one rank, or one for each agent.
        alpha_pattern: other alphas by layer, likewise.
        rslora: the scale is alpha / sqrt(rank).
        dora: the adapted weight has rows of learnt lengths: magnitude * (W + scale B A) / norms of its rows, whose
            gradient is left out. Not with dropconnect.

    Source: LoRA (arXiv 2106.09685), equation 3; rsLoRA (arXiv 2312.03732), theorem 3.2; DoRA (arXiv 2402.09353),
    equations 5 and 11; masks of weights: DropConnect (Wan et al., 2013).
    """

    def __init__(
        self,
        count: int,
        rank: int | list[int] = 16,
        alpha: int | float | list[float] = 32,
        targets: tuple[str, ...] | str = LINEAR_LAYERS,
        dropout: float = 0.05,
        init: Literal["lora", "normal"] = "lora",
        std: float = 0.02,
        dropconnect: float = 0.0,
        dropconnect_rescale: bool = True,
        seed: int = 0,
        top_layers: int | None = None,
        exclude: tuple[str, ...] | str = (),
        rank_pattern: dict[str, int | list[int]] | None = None,
        alpha_pattern: dict[str, int | float | list[float]] | None = None,
        rslora: bool = False,
        dora: bool = False,
    ) -> None:
        super().__init__()
        check_at_least(1, count=count)
        check_at_least(0, dropout=dropout, dropconnect=dropconnect)
        check_below(1, dropout=dropout, dropconnect=dropconnect)
        if dora and dropconnect:
            raise ValueError("agents: dora has no dropconnect; leave one of them out")
        self.count, self.rank, self.alpha = count, rank, alpha
        self.targets = targets if isinstance(targets, str) else tuple(targets)
        self.exclude = exclude if isinstance(exclude, str) else tuple(exclude)
        self.dropout, self.dropconnect, self.dropconnect_rescale = dropout, dropconnect, dropconnect_rescale
        self.init, self.std, self.seed = init, std, seed
        self.top_layers = top_layers
        self.rank_pattern, self.alpha_pattern = dict(rank_pattern or {}), dict(alpha_pattern or {})
        self.rslora, self.dora = rslora, dora
        for name, ranks in {"rank": rank, **self.rank_pattern}.items():
            for each in _by_agent(ranks, count, name):
                check_at_least(1, **{name: each})
        for name, alphas in {"alpha": alpha, **self.alpha_pattern}.items():
            _by_agent(alphas, count, name)
        self.adapters = nn.Module()  # a tree with the names of the backbone's layers
        self.names: list[str] = []
        self.active: Active | None = None

    def ranks(self, name: str) -> list[int]:
        """The rank of each agent at the layer of this full name."""
        return _by_agent(matching(self.rank_pattern, name, self.rank), self.count, name)

    def scales(self, name: str) -> list[float]:
        """The scale of each agent at the layer of this full name."""
        alphas = _by_agent(matching(self.alpha_pattern, name, self.alpha), self.count, name)
        pairs = zip(alphas, self.ranks(name), strict=True)
        return [alpha / (math.sqrt(rank) if self.rslora else rank) for alpha, rank in pairs]

    def peft_form(self, agent: int) -> dict[str, Any]:
        """One agent's rank, alpha and patterns, as peft's configuration has them; empty patterns are left out."""

        def own(value: Any) -> Any:
            return value[agent] if isinstance(value, list | tuple) else value

        patterns: dict[str, dict[str, Any]] = {"rank_pattern": self.rank_pattern, "alpha_pattern": self.alpha_pattern}
        return {"r": own(self.rank), "lora_alpha": own(self.alpha)} | {
            name: {key: own(value) for key, value in pattern.items()} for name, pattern in patterns.items() if pattern
        }

    def attach(self, backbone: Backbone) -> None:
        """Make the weights for a backbone and hook them into its layers; its modules and names stay as they are.

        Raises:
            ValueError: when already attached, or when the backbone lacks the targets.
        """
        if self.names:
            raise ValueError("agents: already attached to a backbone; make others for another one")
        layers = backbone.targets(self.targets, self.top_layers, self.exclude)
        self.names = list(layers)
        for key in (*self.rank_pattern, *self.alpha_pattern):
            if not any(fits(key, name) for name in self.names):
                raise ValueError(
                    f"agents: the pattern {key!r} fits none of the adapted layers, such as {self.names[0]}"
                )
        seeds = sample_uniforms([self.seed], self.count)[:, 0] * SEEDS
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        for index, (name, layer) in enumerate(layers.items()):
            inputs, outputs = backbone.sizes(layer)
            ranks = self.ranks(name)
            pairs = [
                self._first_weights(*each, max(ranks), inputs, outputs) for each in zip(ranks, generators, strict=True)
            ]
            magnitude = torch.ones(self.count, outputs, device="cpu") if self.dora else None
            stacked = torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
            lora = Lora(*stacked, self.scales(name), magnitude)
            weight: Any = layer.weight
            if lora.lora_magnitude_vector is not None and not weight.is_meta:
                lora.to(weight.device)
                lora.lora_magnitude_vector.data.copy_(lora.norms(layer))
                lora.cpu()
            _place(self.adapters, name, lora)
            layer.register_forward_hook(partial(self._add, lora, index))
        backbone.recompute_contexts = self.recompute_contexts

    def draw_noise(self) -> list[int] | None:
        """Seeds for the masks of one training pass, by one number of the global CPU generator; None without masks."""
        if not self.training or self.dropout == self.dropconnect == 0:
            return None
        key = int(torch.randint(2**62, (), device="cpu"))
        draws = sample_uniforms_numpy([key], self.count * len(self.names) * _STREAMS)[:, 0]
        return (draws * SEEDS).astype(np.int64).tolist()

    @contextmanager
    def using(self, active: Active | None) -> Iterator[None]:
        """Let the rows of the passes within belong to these agents; None lets the backbone compute alone."""
        before, self.active = self.active, active
        try:
            yield
        finally:
            self.active = before

    def recompute_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts of a checkpointed block: the second lets its recomputation use the agents and masks of now."""
        return nullcontext(), self.using(self.active)

    def delta(self, lora: Lora, index: int, x: Tensor) -> Tensor:
        """What the n active agents add at one layer, (n, positions, out), to x (rows, ..., in), agent after agent."""
        return self._product(lora, index, self._inputs(lora, index, x))

    def _inputs(self, lora: Lora, index: int, x: Tensor) -> Tensor:
        """The inputs (n, positions, in) of the active agents at a layer, dropout applied."""
        active = self._now()
        rows = x.reshape(active.last - active.first, -1, x.shape[-1])  # (n, positions, in)
        if not torch.is_autocast_enabled(x.device.type):
            rows = rows.to(lora.lora_A.dtype)
        return self._masked(rows, self.dropout, True, active, index, 0)

    def _product(self, lora: Lora, index: int, rows: Tensor) -> Tensor:
        """Scale B A x (n, positions, out) of the active agents, for inputs (n, positions, in)."""
        active = self._now()
        lora_a, lora_b = lora.lora_A[active.first : active.last], lora.lora_B[active.first : active.last]
        lora_a = self._masked(lora_a, self.dropconnect, self.dropconnect_rescale, active, index, 1)
        lora_b = self._masked(lora_b, self.dropconnect, self.dropconnect_rescale, active, index, 2)
        return torch.bmm(torch.bmm(rows, lora_a.mT) * lora.scale(active), lora_b.mT)  # (n, positions, out)

    def _add(self, lora: Lora, index: int, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Hook of a layer: add what the active agents compute of its input."""
        if self.active is None:
            return output
        x, own, spread = inputs[0], output, self.active.spread
        if spread is not None:
            x, own = x[spread.rows], output[spread.rows]
        if lora.lora_magnitude_vector is None:
            change = self.delta(lora, index, x)
        else:
            change = self._rescaled(lora, index, module, x, own)
        change = change.reshape(own.shape).to(output.dtype)
        return output + change if spread is None else output.index_add(0, spread.own, change[spread.slots])

    def _rescaled(self, lora: Any, index: int, module: Any, x: Tensor, output: Tensor) -> Tensor:
        """DoRA's change (n, positions, out) of a layer's output: (m / n - 1) W x + (m / n) scale B A x."""
        active, magnitude = self._now(), lora.lora_magnitude_vector
        rows = self._inputs(lora, index, x)
        if active.noise is not None and self.dropout:  # the layer sees the same dropped inputs
            output = type(module).forward(module, rows.reshape(x.shape).to(x.dtype))
        base = output if module.bias is None else output - module.bias
        own = slice(active.first, active.last)
        share = (magnitude[own] / lora.norms(module)[own])[:, None]  # (n, 1, out)
        return (share - 1) * base.reshape(*rows.shape[:2], -1) + share * self._product(lora, index, rows)

    def adapter(self, agent: int) -> dict[str, Tensor]:
        """One agent's weights under peft's names: A (rank, in), B (out, rank), float32, detached; magnitudes (out,)."""
        found: dict[str, Tensor] = {}
        for name in self.names:
            lora: Any = self.adapters.get_submodule(name)
            rank = self.ranks(name)[self._checked(agent)]
            found[f"{PEFT_PREFIX}{name}.lora_A.weight"] = lora.lora_A.detach()[agent, :rank]
            found[f"{PEFT_PREFIX}{name}.lora_B.weight"] = lora.lora_B.detach()[agent, :, :rank]
            if lora.lora_magnitude_vector is not None:
                found[f"{PEFT_PREFIX}{name}.lora_magnitude_vector"] = lora.lora_magnitude_vector.detach()[agent]
        return found

    def load_adapter(self, agent: int, weights: dict[str, Tensor]) -> None:
        """Put one agent's weights, under peft's names as `adapter` gives them, in place.

        Raises:
            ValueError: when there is no such agent, or when names or shapes differ.
        """
        own = self.adapter(agent)
        missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
        if missing or unexpected:
            raise ValueError(
                f"agent {agent}: adapter and targets differ: missing {_some(missing)}, unexpected {_some(unexpected)}; "
                "give agents.targets and top_layers as the adapter was trained, and keys without an adapter's name"
            )
        for key, value in own.items():
            if weights[key].shape != value.shape:
                raise ValueError(
                    f"agent {agent}: {key} has shape {tuple(weights[key].shape)}, expected {tuple(value.shape)}; "
                    "rank and backbone must be those of the adapter"
                )
        for key, value in own.items():
            value.copy_(weights[key])

    def _now(self) -> Active:
        if self.active is None:
            raise ValueError("agents: no agents are active; call delta within using()")
        return self.active

    def _checked(self, agent: int) -> int:
        if not 0 <= agent < self.count:
            raise ValueError(f"agent {agent} does not exist: there are agents 0 to {self.count - 1}")
        return agent

    def _first_weights(
        self, rank: int, generator: torch.Generator, largest: int, inputs: int, outputs: int
    ) -> tuple[Tensor, Tensor]:
        """A (largest, in) and B (out, largest) of an agent, zero beyond its rank."""
        lora_a = torch.empty(rank, inputs, device="cpu")
        lora_b = torch.zeros(outputs, rank, device="cpu")
        if self.init == "lora":
            nn.init.kaiming_uniform_(lora_a, a=math.sqrt(5), generator=generator)
        else:
            lora_a.normal_(std=self.std, generator=generator)
            lora_b.normal_(std=self.std, generator=generator)
        return F.pad(lora_a, (0, 0, 0, largest - rank)), F.pad(lora_b, (0, largest - rank))

    def _masked(self, x: Tensor, share: float, rescale: bool, active: Active, index: int, stream: int) -> Tensor:
        """Leave out a share of (n, ...), by one mask for each agent."""
        if share == 0 or active.noise is None:
            return x
        mask = torch.empty_like(x)
        generator = torch.Generator(x.device)
        for row, agent in enumerate(range(active.first, active.last)):
            generator.manual_seed(active.noise[(agent * len(self.names) + index) * _STREAMS + stream])
            mask[row].bernoulli_(1 - share, generator=generator)
        return x * (mask / (1 - share) if rescale else mask)


def _by_agent(value: Any, count: int, name: str) -> list[Any]:
    """One value for each agent."""
    values = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(values) != count:
        raise ValueError(f"agents: {name} has {len(values)} values for {count} agents; give one, or one for each")
    return values


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern of peft's fits the end of a layer's full name."""
    return re.match(rf"(.*\.)?({pattern})$", name) is not None


def matching(patterns: dict[str, Any], name: str, otherwise: Any) -> Any:
    """The value of the first pattern that fits a layer."""
    return next((value for pattern, value in patterns.items() if fits(pattern, name)), otherwise)


def _place(tree: nn.Module, name: str, module: nn.Module) -> None:
    """Hang a module into a tree of plain modules at a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in tree._modules:
            tree.add_module(part, nn.Module())
        tree = tree.get_submodule(part)
    tree.add_module(last, module)


def _some(names: list[str]) -> str:
    """At most three names of a list, and how many there are."""
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else "none"
