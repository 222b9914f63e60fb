"""K LoRA agents in stacked weights, added to a frozen backbone by forward hooks: one pass serves all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from zoo.ci_llm.nets.backbone import Backbone
from zoo.common.checks import check_above, check_at_least, check_below
from zoo.common.tensors import sample_uniforms, sample_uniforms_numpy

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEFT_PREFIX = "base_model.model."  # of peft's key names; the layer's name in the causal LM follows
INPUT_MASK, A_MASK, B_MASK, MASK_STREAMS = 0, 1, 2, 3  # independent masks per agent and layer
SEEDS = 2**52  # number of seeds that sample_uniforms distinguishes


class LoraStack(nn.Module):
    """The weights of all agents at one layer, float32.

    Args:
        lora_a: (K, rank, in).
        lora_b: (K, out, rank).
    """

    def __init__(self, lora_a: Tensor, lora_b: Tensor) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(lora_a)
        self.lora_B = nn.Parameter(lora_b)


class Agents(nn.Module):
    """K LoRA adapters: layer output + scale * B_k A_k dropout(x) for the rows of agent k.

    Agent k starts the same for every K. Masks are keyed by one random number per pass, agent and layer: they do not
    depend on which agents share a pass, and a recomputed block gets the masks of its forward. A fused layer (q, k and v
    in one) has one A and one B over all its rows, as in peft.

    Args:
        count: number of agents K, at least 1.
        rank: rows of A, columns of B.
        alpha: the scale is alpha / rank.
        targets: last parts of the names of the adapted layers, a regular expression that whole names match, or
            "all-linear".
        dropout: probability that an input element is dropped while training, 0 to below 1; a mask for each agent.
        init: "lora" (A Kaiming-uniform, B zero: begins as the backbone) or "normal" (both normal: begins perturbed).
        std: of the weights with init "normal".
        dropconnect: probability that a weight of A or B is dropped in a training pass, 0 to below 1.
        dropconnect_rescale: divide the remaining weights by 1 - dropconnect; the original does not.
        seed: of the first weights.
        top_layers: adapt the last so many blocks only; the agents share the blocks below. Null for all.
        rslora: the scale is alpha / sqrt(rank).

    Source: LoRA (arXiv 2106.09685), equation 3; rsLoRA (arXiv 2312.03732), theorem 3.2; masks of weights: DropConnect
    (Wan et al., 2013).
    """

    def __init__(
        self,
        count: int,
        rank: int = 16,
        alpha: int | float = 32,
        targets: tuple[str, ...] | str = LINEAR_LAYERS,
        dropout: float = 0.05,
        init: Literal["lora", "normal"] = "lora",
        std: float = 0.02,
        dropconnect: float = 0.0,
        dropconnect_rescale: bool = True,
        seed: int = 0,
        top_layers: int | None = None,
        rslora: bool = False,
    ) -> None:
        super().__init__()
        check_at_least(1, count=count, rank=rank)
        check_above(0, alpha=alpha)
        check_at_least(0, dropout=dropout, dropconnect=dropconnect)
        check_below(1, dropout=dropout, dropconnect=dropconnect)
        self.count, self.rank, self.alpha, self.rslora = count, rank, alpha, rslora
        self.targets = targets if isinstance(targets, str) else tuple(targets)
        self.dropout, self.dropconnect, self.dropconnect_rescale = dropout, dropconnect, dropconnect_rescale
        self.init, self.std, self.seed = init, std, seed
        self.top_layers = top_layers
        self.scale = alpha / (math.sqrt(rank) if rslora else rank)
        self.adapters = nn.Module()  # a tree with the names of the backbone's layers
        self.names: list[str] = []
        self.active: range | None = None
        self._mask_seeds: list[int] | None = None

    def attach(self, backbone: Backbone) -> None:
        """Create the weights for a backbone and hook them into its layers; its modules and names stay as they are."""
        if self.names:
            raise ValueError("agents: already attached to a backbone; create others for another one")
        layers = backbone.targets(self.targets, self.top_layers)
        self.names = list(layers)
        seeds = sample_uniforms([self.seed], self.count)[:, 0] * SEEDS
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        for index, (name, layer) in enumerate(layers.items()):
            pairs = [self._first_weights(generator, *backbone.sizes(layer)) for generator in generators]
            lora = LoraStack(torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs]))
            _add_module(self.adapters, name, lora)
            layer.register_forward_hook(partial(self._add_delta, lora, index))
        backbone.recompute_contexts = self.recompute_contexts

    def sample_mask_seeds(self) -> list[int] | None:
        """Sample the seeds of a training pass's masks by one number of the global CPU generator; None without masks."""
        if not self.training or self.dropout == self.dropconnect == 0:
            return None
        key = int(torch.randint(2**62, (), device="cpu"))
        uniforms = sample_uniforms_numpy([key], self.count * len(self.names) * MASK_STREAMS)[:, 0]
        return (uniforms * SEEDS).astype(np.int64).tolist()

    @contextmanager
    def active_agents(self, members: range | None, mask_seeds: list[int] | None = None) -> Iterator[None]:
        """Assign the rows of the passes within to neighbouring agents, equally many to each, agent after agent.

        Args:
            members: the agents; None leaves the backbone alone.
            mask_seeds: of `sample_mask_seeds`; None for no dropout and no DropConnect.
        """
        previous = self.active, self._mask_seeds
        self.active, self._mask_seeds = members, mask_seeds
        try:
            yield
        finally:
            self.active, self._mask_seeds = previous

    def recompute_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts of a checkpointed block: the second repeats the agents and masks of now in its recomputation."""
        return nullcontext(), self.active_agents(self.active, self._mask_seeds)

    def add_delta(self, lora: LoraStack, index: int, x: Tensor, output: Tensor) -> Tensor:
        """Add to the output (rows, ..., out) of layer `index` what the active agents make of its input (rows, ..., in).

        The output's memory is reused.
        """
        if self.active is None:
            raise ValueError("agents: no agents are active; call add_delta within active_agents()")
        lora_a: Tensor = lora.lora_A
        lora_b: Tensor = lora.lora_B
        dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else lora_a.dtype
        if len(self.active) < self.count:
            members = slice(self.active.start, self.active.stop)
            lora_a, lora_b = lora_a[members], lora_b[members]
        rows = x.reshape(len(self.active), -1, x.shape[-1]).to(dtype)  # (n, positions, in)
        if self._mask_seeds is not None:
            rows = self._mask(rows, self.dropout, True, index, INPUT_MASK)
            lora_a = self._mask(lora_a, self.dropconnect, self.dropconnect_rescale, index, A_MASK)
            lora_b = self._mask(lora_b, self.dropconnect, self.dropconnect_rescale, index, B_MASK)
        total, weights = output.to(dtype).contiguous(), (lora_a.to(dtype), lora_b.to(dtype))
        if torch.is_grad_enabled():
            total = _AddDelta.apply(total, rows, *weights, self.scale)
        else:
            _add_product(total, rows, *weights, self.scale)
        return total.to(output.dtype)

    def _add_delta(
        self, lora: LoraStack, index: int, module: nn.Module, inputs: tuple[Any, ...], output: Tensor
    ) -> Tensor:
        """Forward hook of a layer."""
        return output if self.active is None else self.add_delta(lora, index, inputs[0], output)

    def _mask(self, x: Tensor, probability: float, rescale: bool, index: int, stream: int) -> Tensor:
        """Drop elements of x (n, ...) by one mask for each active agent."""
        if probability == 0 or self._mask_seeds is None or self.active is None:
            return x
        mask = torch.empty_like(x)
        generator = torch.Generator(x.device)
        for row, agent in enumerate(self.active):
            generator.manual_seed(self._mask_seeds[(agent * len(self.names) + index) * MASK_STREAMS + stream])
            mask[row].bernoulli_(1 - probability, generator=generator)
        return x * (mask / (1 - probability) if rescale else mask)

    def adapter(self, agent: int) -> dict[str, Tensor]:
        """One agent's weights under peft's names: A (rank, in) and B (out, rank), float32, detached."""
        if not 0 <= agent < self.count:
            raise ValueError(f"agent {agent} does not exist: there are agents 0 to {self.count - 1}")
        weights: dict[str, Tensor] = {}
        for name in self.names:
            lora: Any = self.adapters.get_submodule(name)
            weights[f"{PEFT_PREFIX}{name}.lora_A.weight"] = lora.lora_A.detach()[agent]
            weights[f"{PEFT_PREFIX}{name}.lora_B.weight"] = lora.lora_B.detach()[agent]
        return weights

    def load_adapter(self, agent: int, weights: dict[str, Tensor]) -> None:
        """Copy weights, as `adapter` returns them, into one agent; ValueError when names or shapes differ."""
        current = self.adapter(agent)
        faults = [f"missing {key}" for key in current if key not in weights]
        faults += [f"unexpected {key}" for key in weights if key not in current]
        faults += [
            f"{key} is {tuple(weights[key].shape)}, expected {tuple(value.shape)}"
            for key, value in current.items()
            if key in weights and weights[key].shape != value.shape
        ]
        if faults:
            raise ValueError(
                f"agent {agent}: {len(faults)} tensors do not fit ({'; '.join(faults[:3])}); rank, targets, top_layers "
                "and backbone must be those of the adapter"
            )
        for key, value in current.items():
            value.copy_(weights[key])

    def _first_weights(self, generator: torch.Generator, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        """A (rank, in) and B (out, rank) of an agent."""
        lora_a = torch.empty(self.rank, inputs, device="cpu")
        lora_b = torch.zeros(outputs, self.rank, device="cpu")
        if self.init == "lora":
            nn.init.kaiming_uniform_(lora_a, a=math.sqrt(5), generator=generator)
        else:
            lora_a.normal_(std=self.std, generator=generator)
            lora_b.normal_(std=self.std, generator=generator)
        return lora_a, lora_b


def _add_product(output: Tensor, x: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
    """Add scale * B A x, for x (n, positions, in), to an output of any shape, in place; A x (n, rank, positions)."""
    hidden = torch.bmm(lora_a, x.mT)
    output.view(x.shape[0], -1, lora_b.shape[1]).baddbmm_(hidden.mT, lora_b.mT, alpha=scale)
    return hidden


class _AddDelta(torch.autograd.Function):
    """`_add_product` with gradients by products whose rows are the rank, on a CPU up to four times as fast."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(x, _add_product(output, x, lora_a, lora_b, scale), lora_a, lora_b)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        x, hidden, lora_a, lora_b = ctx.saved_tensors
        grad = grad_outputs[0].reshape(x.shape[0], -1, lora_b.shape[1])
        grad_hidden = torch.bmm(lora_b.mT, grad.mT).mul_(ctx.scale)  # (n, rank, positions)
        grad_x = torch.bmm(grad_hidden.mT, lora_a) if ctx.needs_input_grad[1] else None
        return grad_outputs[0], grad_x, torch.bmm(grad_hidden, x), torch.bmm(hidden, grad).mul_(ctx.scale).mT, None


def _add_module(tree: nn.Module, name: str, module: nn.Module) -> None:
    """Add a module to a tree of plain modules at a dotted name."""
    *path, last = name.split(".")
    for node in path:
        if node not in tree._modules:
            tree.add_module(node, nn.Module())
        tree = tree.get_submodule(node)
    tree.add_module(last, module)
