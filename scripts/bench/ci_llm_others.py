"""What the benchmarks of CI-LLM compare with: agent by agent with a cache each, and peft's mixed batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.aggregation import aggregate, uniform_log_weights
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd


class PeftCrowd:
    """The agents of a crowd as adapters of peft on a copy of its backbone; rows name their adapters."""

    def __init__(self, crowd: Crowd) -> None:
        from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict

        agents, config = crowd.agents, crowd.backbone.model.config
        lora = LoraConfig(
            r=agents.rank, lora_alpha=int(agents.alpha), target_modules=list(agents.targets), task_type="CAUSAL_LM"
        )
        base = Backbone(config=config.to_dict())
        base.model.load_state_dict(crowd.backbone.model.state_dict())
        self.names = [f"agent{number}" for number in range(agents.count)]
        model = get_peft_model(base.model, lora, self.names[0])
        assert isinstance(model, PeftModel)
        for name in self.names[1:]:
            model.add_adapter(name, lora)
        for number, name in enumerate(self.names):
            set_peft_model_state_dict(model, agents.adapter(number), name)
        self.model = model.eval()

    @torch.no_grad()
    def logits(self, ids: Tensor, mask: Tensor, **cached: Any) -> Tensor:
        """Logits (K, B, T, V) of texts (B, T), or (K, B, T) where each agent has its own."""
        everyone = ids.expand(len(self.names), *ids.shape[-2:])
        rows = mask.repeat(len(self.names), 1)
        named = [name for name in self.names for _ in range(everyone.shape[1])]
        output = self.model(input_ids=everyone.flatten(0, 1), attention_mask=rows, adapter_names=named, **cached)
        return output.logits.unflatten(0, everyone.shape[:2])

    def generate(self, ids: Tensor, mask: Tensor, steps: int) -> Tensor:
        """Greedy text of the mean prediction, with one cache."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        read = partial(self.logits, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return _greedy(ids, mask, steps, len(self.names), read)


@torch.no_grad()
def generate_sequential(crowd: Crowd, ids: Tensor, mask: Tensor, steps: int) -> Tensor:
    """Agent by agent, each with its own cache; texts (B, T + steps)."""
    from transformers import DynamicCache

    caches = [DynamicCache(config=crowd.backbone.model.config) for _ in range(crowd.count)]

    def read(tokens: Tensor, mask: Tensor) -> Tensor:
        parts = []
        for number, cache in enumerate(caches):
            with crowd.select_agents(number):
                parts.append(crowd.outputs(tokens, mask, cache=cache, logits_to_keep=1).logits)
        return torch.cat(parts)

    return _greedy(ids, mask, steps, crowd.count, read)


def _greedy(ids: Tensor, mask: Tensor, steps: int, count: int, read: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Append the likeliest tokens of the mean prediction; `read` keeps caches and gives logits (K, B, 1, V)."""
    weights = uniform_log_weights(count, len(ids))
    texts = tokens = ids
    for step in range(steps):
        if step:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        chosen = aggregate(read(tokens, mask)[:, :, -1].float().log_softmax(-1), weights).argmax(-1)
        tokens = chosen[:, None]
        texts = torch.cat([texts, tokens], 1)
    return texts
