"""The frozen causal language model that all agents share."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from zoo.blocks.attention_masks import keep_masks_on_the_device
from zoo.common.tensors import seeded_rng
from zoo.runs.frozen import FrozenModule, suppress_loading_messages
from zoo.runs.pretrained_files import build_config, find_backbone, load_pretrained

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
ALL_LINEAR = "all-linear"  # every linear layer but the output layer
_QUANTIZED = ("weight.absmax", "weight.quant_map", "weight.nested_", "weight.quant_state.")  # beside packed weights


class Backbone(FrozenModule):
    """A causal LM of transformers, frozen and always in evaluation mode.

    Args:
        source: hub id, a folder in transformers' layout, or a folder of runs that wrote some; null for random weights
            of `config`. Loading from the hub was not run here.
        revision: commit of the hub repository.
        config: for random weights, where there is no source: `model_type` and what else the configuration takes.
        seed: of random weights.
        dtype: of the weights; with nf4, of those that are not quantised (norms, embeddings).
        quantization: "nf4" keeps linear layers in 4 bits (double quantisation, bfloat16 compute; needs `zoo[llm]`).
        attention: transformers' implementation; models that cap attention logits (Gemma 2) have "eager" alone.
        gradient_checkpointing: recompute the blocks' activations in the backward pass.

    Attributes:
        recompute_contexts: called in the forward of each checkpointed block; gives the contexts of that forward and of
            its recomputation. Whoever hooks into the layers sets it, so that both see the same.

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
        how: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
        if quantization == "nf4":
            self.model = _quantized(self.source, revision, config, seed, how)
            self.register_load_state_dict_post_hook(_forgive_quantized)
        else:
            self.model = _build(self.source, revision, config, seed, how)
        self._logits_at: Tensor | None = None  # of the running pass
        self.model.get_output_embeddings().register_forward_pre_hook(self._select)
        keep_masks_on_the_device(self.model)
        self.recompute_contexts: Contexts = noop_context_fn
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            for block in self.blocks:
                block.forward = _Recomputed(self, block)
        self.requires_grad_(False)
        self.eval()

    @property
    def settings(self) -> Any:
        """Configuration of the text model."""
        return self.model.config.get_text_config()

    @property
    def dim(self) -> int:
        """Width of the hidden states."""
        return self.settings.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of tokens V."""
        return self.settings.vocab_size

    @property
    def context_tokens(self) -> int | None:
        """Longest text in tokens, where the configuration knows it."""
        return getattr(self.settings, "max_position_embeddings", None)

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer's blocks, lowest first."""
        return self.model.get_submodule(self._blocks_name())

    def targets(
        self, names: Sequence[str] | str, top_layers: int | None = None, exclude: Sequence[str] | str = ()
    ) -> dict[str, nn.Module]:
        """Linear layers within the blocks, by their full names within `model`, lowest block first.

        Args:
            names: last parts of their names (`q_proj`, `attn.c_proj`), a regular expression that full names match as a
                whole, or "all-linear".
            top_layers: look in the last so many blocks only; None for all.
            exclude: what to leave out, told in the same two ways.

        Raises:
            ValueError: when a name or the expression finds nothing, or what cannot be adapted.
        """
        prefix, depth = self._blocks_name(), len(self.blocks)
        top = depth if top_layers is None else top_layers
        if not 1 <= top <= depth:
            raise ValueError(f"agents.top_layers is {top_layers}, the backbone has {depth} blocks")
        every = names == ALL_LINEAR
        output = self.model.get_output_embeddings()
        found = {
            name: module
            for name, module in self.model.named_modules()
            if (_is_linear(module) and module is not output if every else _named(name, names))
            and not _named(name, exclude)
        }
        self._check_targets(names, found)
        return {
            name: module
            for name, module in found.items()
            if (name.startswith(f"{prefix}.") and self.block_of(name) >= depth - top)
        }

    def _check_targets(self, names: Sequence[str] | str, found: dict[str, nn.Module]) -> None:
        """Refuse targets that nothing has, that lie outside the blocks, or that are no linear layers."""
        inside = f"{self._blocks_name()}."
        for name, module in found.items():
            if not name.startswith(inside):
                reason = " (and is tied: a merge would change its twin)" if self.settings.tie_word_embeddings else ""
                raise ValueError(
                    f"agents.targets: {name} lies outside the blocks{reason}; agents adapt linear layers inside them"
                )
            if not _is_linear(module):
                raise ValueError(f"agents.targets: {name} is a {type(module).__name__}, no linear layer")
        wanted = [names] if isinstance(names, str) else names
        absent = [each for each in wanted if not any(isinstance(names, str) or _named(name, [each]) for name in found)]
        if absent:
            block = self.blocks[-1]
            linear = {name.rpartition(".")[2] for name, module in block.named_modules() if _is_linear(module)}
            weights = {name.rpartition(".")[2] for name, _ in block.named_parameters()} - {"weight", "bias"}
            stacked = sorted(weights & set(absent))
            raise ValueError(
                f"agents.targets: the blocks of this {self.settings.model_type} have no {', '.join(absent)}; "
                f"their linear layers are {', '.join(sorted(linear))}"
                + (f" ({', '.join(stacked)} is one tensor of all experts, which no agent can adapt)" if stacked else "")
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

    @staticmethod
    def weight(layer: nn.Module) -> Tensor:
        """The weight (out, in) of a linear layer, float32; out of 4 bits where it is kept in them."""
        weight: Any = layer.weight
        if hasattr(weight, "quant_state"):
            from bitsandbytes.functional import dequantize_4bit

            weight = dequantize_4bit(weight.data, weight.quant_state)
        return (weight if isinstance(layer, nn.Linear) else weight.T).float()

    def forward(self, logits_at: Tensor | None = None, **inputs: Any) -> Any:
        """Run transformers' model.

        Args:
            logits_at: (N,) int64, places in the flattened rows and positions of the inputs. The output layer then runs
                there alone, and `logits` are (1, N, V).
        """
        self._logits_at = logits_at
        try:
            return self.model(**inputs)
        finally:
            self._logits_at = None

    def _select(self, head: nn.Module, args: tuple[Any, ...]) -> Any:
        """Hook before the output layer: keep the hidden states (1, N, D) whose logits are wanted."""
        if self._logits_at is None:
            return None
        return (args[0].flatten(0, 1).index_select(0, self._logits_at)[None],)

    def _blocks_name(self) -> str:
        depth = self.settings.num_hidden_layers
        for name, module in self.model.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) == depth:
                return name
        raise ValueError(f"backbone: no list of {depth} blocks in {type(self.model).__name__}; take another model")


class _Recomputed:
    """A block's forward that keeps its inputs alone for the backward pass.

    transformers' own switch asks the blocks to be in training mode, which turns on their dropout; this one does not.
    """

    def __init__(self, backbone: Backbone, block: nn.Module) -> None:
        self.backbone = backbone
        self.block = block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = partial(type(self.block).forward, self.block, **kwargs)
        if not torch.is_grad_enabled():
            return forward(*args)
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=self.backbone.recompute_contexts,
        )


def _named(name: str, wanted: Sequence[str] | str) -> bool:
    """Whether a full name is meant by last parts of names, or by a regular expression."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, name) is not None
    return any(name == each or name.endswith(f".{each}") for each in wanted)


def _is_linear(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def _build(
    source: str | None, revision: str | None, config: dict[str, Any] | None, seed: int, how: dict[str, Any]
) -> Any:
    from transformers import AutoModelForCausalLM

    if source is not None:
        return load_pretrained(AutoModelForCausalLM, source, revision, **how)
    with seeded_rng(seed):
        exact = {**how, "dtype": torch.float32}
        model = AutoModelForCausalLM.from_config(build_config(config or {}), trust_remote_code=False, **exact)
    for weight in model.parameters():  # and not the buffers: rotary frequencies stay float32, as when loaded
        weight.data = weight.data.to(how["dtype"])
    return model


def _quantized(
    source: str | None, revision: str | None, config: dict[str, Any] | None, seed: int, how: dict[str, Any]
) -> Any:
    """Build a model in 4 bits; random weights go through a folder, as only loading quantises."""
    from transformers import BitsAndBytesConfig

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
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            with suppress_loading_messages():
                _build(None, None, config, seed, how).save_pretrained(folder)
        return _build(source or folder, revision, None, seed, {**how, "quantization_config": four_bits})


def _forgive_quantized(module: nn.Module, keys: Any) -> None:
    """Loading finds the statistics beside packed weights unexpected; they are the module's own."""
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
    if attention_mask.ndim > 3:
        raise ValueError("attention_mask of pairs of positions needs position_ids")
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def packed(segments: Tensor) -> tuple[Tensor, Tensor]:
    """Mask (B, 1, T, T) and positions (B, T) of rows that hold several texts.

    Each token sees those before it in its text and itself; positions are counted anew in each text.

    Args:
        segments: (B, T) int64, number of the text that a token belongs to, from 1; 0 for padding.
    """
    length = segments.shape[1]
    index = torch.arange(length, device=segments.device)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    starts = torch.where(begins, index, 0).cummax(1).values
    same = segments[:, :, None] == segments[:, None, :]  # (B, T, T)
    return (same & (index[:, None] >= index))[:, None], index - starts
