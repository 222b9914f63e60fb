"""The frozen causal language model that all agents share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from zoo.blocks.attention_masks import keep_masks_on_the_device
from zoo.common.tensors import seeded_rng
from zoo.runs.frozen import FrozenModule
from zoo.runs.pretrained_files import build_config, find_backbone, load_pretrained

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
FEW_ROWS, FEW_NUMBERS = 4, 4096  # of text generation, a row for each agent; limits of MKL's kernel on AMD EPYC
ALL_LINEAR = "all-linear"  # every linear layer but the output layer
_QUANTIZED = ("weight.absmax", "weight.quant_map", "weight.nested_", "weight.quant_state.")  # statistics of 4 bits


class FewRowsLinear(nn.Linear):
    """A linear layer without bias; for a few rows on the CPU by W x^T, which reads W faster than x W^T."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        is_small = x.numel() <= FEW_ROWS * x.shape[-1] and x.numel() < FEW_NUMBERS
        if is_small and x.dtype == torch.float32 and x.device.type == "cpu":
            columns = F.linear(self.weight, x.reshape(-1, x.shape[-1]).contiguous())  # (out, rows)
            return columns.T.contiguous().view(*x.shape[:-1], self.out_features)
        return F.linear(x, self.weight)


class Backbone(FrozenModule):
    """A causal LM of transformers, frozen and always in evaluation mode.

    Args:
        source: hub id, a folder in transformers' layout, or a folder of runs that wrote some; null for random weights
            of `config`.
        revision: commit of the hub repository.
        config: for random weights, where there is no source: `model_type` and what else the configuration takes.
        seed: of random weights.
        dtype: of the weights; with nf4, of those that are not quantised (norms, embeddings).
        quantization: "nf4" keeps linear layers in 4 bits (double quantisation, bfloat16 compute; needs `zoo[llm]`).
        attention: transformers' implementation; models that cap attention logits (Gemma 2) have "eager" alone.
        gradient_checkpointing: recompute the blocks' activations in the backward pass.

    Attributes:
        recompute_contexts: called in the forward of each checkpointed block; returns the contexts of that forward and
            of its recomputation. Hooks of the layers set it, so that both compute the same.

    Source: 4-bit weights: QLoRA (arXiv 2305.14314).
    """

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        seed: int = 0,
        dtype: Literal["float32", "bfloat16"] = "float32",
        quantization: Literal["none", "nf4"] = "none",
        attention: Literal["sdpa", "eager"] = "sdpa",
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__(source=None if source is None else find_backbone(source), revision=revision)
        if source is None and "model_type" not in (config or {}):
            raise ValueError("backbone: give source (pretrained), or config with a model_type (random weights)")
        self.quantization = quantization
        options: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
        if quantization == "nf4":
            self.model = _build_quantized(self.source, revision, options)
            self.register_load_state_dict_post_hook(_ignore_quantization_statistics)
        else:
            self.model = _build(self.source, revision, config, seed, options)
        for name, layer in list(self.model.named_modules()):
            if type(layer) is nn.Linear and layer.bias is None:
                self.model.set_submodule(name, FewRowsLinear(layer.weight))
        self._logits_at: Tensor | None = None  # of the running pass
        self.model.get_output_embeddings().register_forward_pre_hook(self._select_positions)
        keep_masks_on_the_device(self.model)
        self.recompute_contexts: Contexts = noop_context_fn
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            for block in self.blocks:
                block.forward = partial(_checkpointed_forward, self, block)
        self.requires_grad_(False)
        self.eval()

    @property
    def text_config(self) -> Any:
        """Configuration of the text model."""
        return self.model.config.get_text_config()

    @property
    def dim(self) -> int:
        """Width of the hidden states."""
        return self.text_config.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of tokens V."""
        return self.text_config.vocab_size

    @property
    def context_tokens(self) -> int | None:
        """Longest text in tokens, where the configuration knows it."""
        return getattr(self.text_config, "max_position_embeddings", None)

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer's blocks, lowest first."""
        return self.model.get_submodule(self._blocks_name())

    def targets(self, names: Sequence[str] | str, top_layers: int | None = None) -> dict[str, nn.Module]:
        """Find linear layers within the blocks, by their full names within `model`, lowest block first.

        Args:
            names: last parts of their names (`q_proj`, `attn.c_proj`), a regular expression that whole names match, or
                "all-linear"; ValueError: one matches nothing, or something that cannot be adapted.
            top_layers: search the last so many blocks only; None for all.
        """
        depth = len(self.blocks)
        top = depth if top_layers is None else top_layers
        if not 1 <= top <= depth:
            raise ValueError(f"agents.top_layers is {top_layers}, the backbone has {depth} blocks")
        if not names:
            raise ValueError("agents.targets is empty; name the linear layers that adapt, or give all-linear")
        output = self.model.get_output_embeddings()
        if names == ALL_LINEAR:
            matches = {name: m for name, m in self.model.named_modules() if _is_linear(m) and m is not output}
        else:
            matches = {name: m for name, m in self.model.named_modules() if _is_named(name, names)}
        self._check_targets(names, matches)
        return {name: module for name, module in matches.items() if self.block_of(name) >= depth - top}

    def _check_targets(self, names: Sequence[str] | str, matches: dict[str, nn.Module]) -> None:
        """Refuse targets that match nothing, lie outside the blocks, or are no linear layers."""
        for name, module in matches.items():
            if not name.startswith(f"{self._blocks_name()}."):
                tied = " (its weight is tied)" if self.text_config.tie_word_embeddings else ""
                raise ValueError(
                    f"agents.targets: {name} lies outside the blocks{tied}; agents adapt linear layers inside them"
                )
            if not _is_linear(module):
                raise ValueError(f"agents.targets: {name} is a {type(module).__name__}, no linear layer")
        is_expression = isinstance(names, str)
        targets: list[Any] = [names] if is_expression else [[name] for name in names]
        absent = [each for each in targets if not any(_is_named(name, each) for name in matches)]
        if absent and names != ALL_LINEAR:
            linear = {name.rpartition(".")[2] for name, each in self.blocks[-1].named_modules() if _is_linear(each)}
            hint = f". A text is a regular expression that whole names match; last parts are a list: [{names}]"
            raise ValueError(
                f"agents.targets: the blocks of this {self.text_config.model_type} have no "
                f"{', '.join(''.join(each) for each in absent)}; their linear layers are {', '.join(sorted(linear))}"
                f"{hint if is_expression else ''}"
            )

    def block_of(self, name: str) -> int:
        """Index of the block that holds the layer of this full name."""
        return int(name.removeprefix(f"{self._blocks_name()}.").partition(".")[0])

    @staticmethod
    def sizes(layer: nn.Module) -> tuple[int, int]:
        """Input and output width of a linear layer."""
        if isinstance(layer, nn.Linear):
            return layer.in_features, layer.out_features
        return layer.nx, layer.nf  # type: ignore[return-value]  # GPT-2's Conv1D

    def forward(self, logits_at: Tensor | None = None, **inputs: Any) -> Any:
        """Run transformers' model.

        Args:
            logits_at: (N,) int64, indices into the flattened rows and positions of the inputs. The output layer then
                runs there alone, and `logits` are (1, N, V).
        """
        self._logits_at = logits_at
        try:
            return self.model(**inputs)
        finally:
            self._logits_at = None

    def _select_positions(self, head: nn.Module, args: tuple[Any, ...]) -> Any:
        """Pre-hook of the output layer: select the hidden states (1, N, D) of `logits_at`."""
        if self._logits_at is None:
            return None
        return (args[0].flatten(0, 1).index_select(0, self._logits_at)[None],)

    def _blocks_name(self) -> str:
        depth = self.text_config.num_hidden_layers
        for name, module in self.model.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) == depth:
                return name
        raise ValueError(f"backbone: no list of {depth} blocks in {type(self.model).__name__}; take another model")


def _checkpointed_forward(backbone: Backbone, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A block's forward under activation checkpointing; that of transformers needs training mode, which has dropout."""
    forward = partial(type(block).forward, block, **kwargs)
    if not torch.is_grad_enabled():
        return forward(*args)
    context_fn = backbone.recompute_contexts
    keep = block.training  # the block's own dropout
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=keep, context_fn=context_fn)


def _is_named(name: str, targets: Sequence[str] | str) -> bool:
    """Whether a full name ends with one of the targets, or matches the regular expression."""
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(f".{name}".endswith(f".{target}") for target in targets)


def _is_linear(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def _build(
    source: str | None, revision: str | None, config: dict[str, Any] | None, seed: int, options: dict[str, Any]
) -> Any:
    from transformers import AutoModelForCausalLM

    if source is not None:
        return load_pretrained(AutoModelForCausalLM, source, revision, **options)
    with seeded_rng(seed):
        full_precision = {**options, "dtype": torch.float32}
        model = AutoModelForCausalLM.from_config(build_config(config or {}), trust_remote_code=False, **full_precision)
    for weight in model.parameters():  # not buffers: rotary frequencies stay float32, as when loaded
        weight.data = weight.data.to(options["dtype"])
    return model


def _build_quantized(source: str | None, revision: str | None, options: dict[str, Any]) -> Any:
    """Load a model in 4 bits."""
    from transformers import BitsAndBytesConfig

    if source is None:
        raise ValueError("backbone.quantization: nf4 needs backbone.source, since random weights are not quantised")
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ValueError("backbone.quantization: nf4 needs bitsandbytes; pip install 'zoo[llm]'") from error
    four_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return _build(source, revision, None, 0, {**options, "quantization_config": four_bits})


def _ignore_quantization_statistics(module: nn.Module, keys: Any) -> None:
    """Do not report the statistics of packed weights as unexpected."""
    keys.unexpected_keys[:] = [key for key in keys.unexpected_keys if not any(part in key for part in _QUANTIZED)]


class LearningBackbone(Backbone):
    """A causal LM of random weights, all of which train.

    Args:
        config: `model_type` and what else transformers' configuration takes.
        seed: of the first weights.
        gradient_checkpointing: recompute the blocks' activations in the backward pass.
    """

    def __init__(self, config: dict[str, Any], seed: int = 0, gradient_checkpointing: bool = False) -> None:
        super().__init__(config=config, seed=seed, gradient_checkpointing=gradient_checkpointing)
        self.requires_grad_(True)
        self.train()

    def frozen_state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}


def positions(attention_mask: Tensor) -> Tensor:
    """Positions (..., T) of tokens within their text, by a mask with 1 for tokens; 0 on padding before it."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
