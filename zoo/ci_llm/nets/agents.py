"""K LoRA agents in stacked weights, added to a frozen backbone by hooks: one pass serves all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from zoo.ci_llm.nets.backbone import Backbone
from zoo.common.draws import host_uniforms, seeded_uniforms
from zoo.common.ranges import at_least, below

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEFT_PREFIX = "base_model.model."  # of peft's key names; what follows is the layer's name in the causal LM
_STREAMS = 3  # independent masks per agent and layer: of the input, of A, of B
SEEDS = 2**52  # as many as seeded_uniforms tells apart


@dataclass(frozen=True)
class Active:
    """Which agents the rows of a pass belong to.

    Args:
        first: agent of the first rows.
        last: one after the agent of the last rows.
        noise: seeds of the masks by agent, layer and stream; None for no dropout and no DropConnect.
    """

    first: int
    last: int
    noise: list[int] | None = None


class Lora(nn.Module):
    """The weights of all agents at one layer: A (K, rank, in) and B (K, out, rank), float32."""

    def __init__(self, lora_a: Tensor, lora_b: Tensor) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(lora_a)
        self.lora_B = nn.Parameter(lora_b)


class Agents(nn.Module):
    """K LoRA adapters: layer output + alpha / rank * B_k A_k drop(x) for the rows of agent k.

    Agent k starts the same whatever the number of agents. Masks are keyed by one draw per pass, agent and layer: they
    do not depend on which agents share a pass, and a recomputed block gets those of its forward.

    Args:
        count: number of agents K, at least 1.
        rank: rows of A, columns of B: the size of an adapter.
        alpha: the scale of an adapter is alpha / rank.
        targets: last parts of the names of the adapted layers.
        dropout: probability that an input element is dropped while training, 0 to below 1; a mask for each agent.
        init: "lora" (A Kaiming-uniform, B zero: begins as the backbone) or "normal" (both normal: begins perturbed).
        std: of the weights with init "normal".
        dropconnect: probability that a weight of A or B is left out of a training pass, 0 to below 1.
        dropconnect_rescale: divide the weights that are kept by 1 - dropconnect; the original does not.
        seed: of the first weights.
        top_layers: adapt the last so many blocks only; the blocks below are then shared by the agents. Null for all.

    Source: LoRA (arXiv 2106.09685), equation 3; masks of weights: DropConnect (Wan et al., 2013).
    """

    def __init__(
        self,
        count: int,
        rank: int = 16,
        alpha: int = 32,
        targets: tuple[str, ...] = LINEAR_LAYERS,
        dropout: float = 0.05,
        init: Literal["lora", "normal"] = "lora",
        std: float = 0.02,
        dropconnect: float = 0.0,
        dropconnect_rescale: bool = True,
        seed: int = 0,
        top_layers: int | None = None,
    ) -> None:
        super().__init__()
        at_least(1, count=count, rank=rank)
        at_least(0, dropout=dropout, dropconnect=dropconnect)
        below(1, dropout=dropout, dropconnect=dropconnect)
        self.count, self.rank, self.alpha = count, rank, alpha
        self.targets = tuple(targets)
        self.dropout, self.dropconnect, self.dropconnect_rescale = dropout, dropconnect, dropconnect_rescale
        self.init, self.std, self.seed = init, std, seed
        self.top_layers = top_layers
        self.adapters = nn.Module()  # a tree with the names of the backbone's layers
        self.names: list[str] = []
        self.active: Active | None = None

    def attach(self, backbone: Backbone) -> None:
        """Make the weights for a backbone and hook them into its layers; its modules and names stay as they are.

        Raises:
            ValueError: when already attached, or when the backbone lacks the targets.
        """
        if self.names:
            raise ValueError("agents: already attached to a backbone; make others for another one")
        layers = backbone.targets(self.targets, self.top_layers)
        self.names = list(layers)
        seeds = seeded_uniforms([self.seed], self.count)[:, 0] * SEEDS
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        for index, (name, layer) in enumerate(layers.items()):
            inputs, outputs = backbone.sizes(layer)
            pairs = [self._first_weights(inputs, outputs, generator) for generator in generators]
            lora = Lora(torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs]))
            _place(self.adapters, name, lora)
            layer.register_forward_hook(partial(self._add, lora, index))
        backbone.recompute_contexts = self.recompute_contexts

    def draw_noise(self) -> list[int] | None:
        """Seeds for the masks of one training pass, by one number of the global CPU generator; None without masks."""
        if not self.training or self.dropout == self.dropconnect == 0:
            return None
        key = int(torch.randint(2**62, (), device="cpu"))
        draws = host_uniforms([key], self.count * len(self.names) * _STREAMS)[:, 0]
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
        active = self.active
        if active is None:
            raise ValueError("agents: no agents are active; call delta within using()")
        count = active.last - active.first
        rows = x.reshape(count, -1, x.shape[-1])  # (n, positions, in)
        lora_a, lora_b = lora.lora_A[active.first : active.last], lora.lora_B[active.first : active.last]
        if not torch.is_autocast_enabled(x.device.type):
            rows = rows.to(lora_a.dtype)
        if active.noise is not None:
            rows = self._masked(rows, self.dropout, True, active, index, 0)
            lora_a = self._masked(lora_a, self.dropconnect, self.dropconnect_rescale, active, index, 1)
            lora_b = self._masked(lora_b, self.dropconnect, self.dropconnect_rescale, active, index, 2)
        return torch.bmm(torch.bmm(rows, lora_a.mT) * (self.alpha / self.rank), lora_b.mT)  # (n, positions, out)

    def _add(self, lora: Lora, index: int, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Hook of a layer: add what the active agents compute of its input."""
        if self.active is None:
            return output
        return output + self.delta(lora, index, inputs[0]).reshape(output.shape).to(output.dtype)

    def adapter(self, agent: int) -> dict[str, Tensor]:
        """One agent's weights under peft's names: A (rank, in), B (out, rank), float32, detached."""
        return {key: stacked.detach()[self._checked(agent)] for key, stacked in self._peft_parameters().items()}

    def load_adapter(self, agent: int, weights: dict[str, Tensor]) -> None:
        """Put one agent's weights, under peft's names as `adapter` gives them, in place.

        Raises:
            ValueError: when there is no such agent, or when names or shapes differ.
        """
        self._checked(agent)
        own = self._peft_parameters()
        missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
        if missing or unexpected:
            raise ValueError(
                f"agent {agent}: adapter and targets differ: missing {_some(missing)}, unexpected {_some(unexpected)}; "
                "give agents.targets and top_layers as the adapter was trained, and keys without an adapter's name"
            )
        for key, stacked in own.items():
            if weights[key].shape != stacked.shape[1:]:
                raise ValueError(
                    f"agent {agent}: {key} has shape {tuple(weights[key].shape)}, expected {tuple(stacked.shape[1:])}; "
                    "rank and backbone must be those of the adapter"
                )
        with torch.no_grad():
            for key, stacked in own.items():
                stacked[agent].copy_(weights[key])

    def _checked(self, agent: int) -> int:
        if not 0 <= agent < self.count:
            raise ValueError(f"agent {agent} does not exist: there are agents 0 to {self.count - 1}")
        return agent

    def _peft_parameters(self) -> dict[str, nn.Parameter]:
        return {f"{PEFT_PREFIX}{name}.weight": stacked for name, stacked in self.adapters.named_parameters()}

    def _first_weights(self, inputs: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        lora_a = torch.empty(self.rank, inputs, device="cpu")
        lora_b = torch.zeros(outputs, self.rank, device="cpu")
        if self.init == "lora":
            nn.init.kaiming_uniform_(lora_a, a=math.sqrt(5), generator=generator)
        else:
            lora_a.normal_(std=self.std, generator=generator)
            lora_b.normal_(std=self.std, generator=generator)
        return lora_a, lora_b

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
