"""What the benchmarks of CI-LLM compare with: a model of peft for each agent, and peft's mixed batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.aggregation import aggregate, uniform_log_weights
from zoo.ci_llm.losses.objective import Batch
from zoo.ci_llm.nets.crowd import Crowd


class PeftModels:
    """The agents of a crowd as models of peft, which share the crowd's frozen weights."""

    def __init__(self, crowd: Crowd) -> None:
        base = plain_backbone(crowd)
        frozen = {id(weight): weight for weight in base.parameters()}
        self.models = [adapt(copy.deepcopy(base, dict(frozen)), crowd, [agent]) for agent in range(crowd.agents.count)]

    def training(self, batches: Sequence[Batch], lr: float) -> PeftTraining:
        """Steps of all models in turn on batches by turns."""
        return PeftTraining(self.models, batches, lr)

    def generate(self, ids: Tensor, steps: int) -> Tensor:
        """Greedy text of the mean prediction; each model has a cache."""
        reads = [_cached(model.eval()) for model in self.models]
        return _greedy(ids, steps, len(reads), lambda tokens: torch.stack([read(tokens) for read in reads]))


class PeftTraining:
    """Steps of models of peft in turn; `losses` as those of `scripts.bench.ci_llm.Training`."""

    def __init__(self, models: Sequence[Any], batches: Sequence[Batch], lr: float) -> None:
        self.batches, self.losses = cycle(batches), list[Tensor]()
        weights = [[each for each in model.parameters() if each.requires_grad] for model in models]
        self.pairs = [(model.train(), torch.optim.AdamW(each, lr)) for model, each in zip(models, weights, strict=True)]

    def __call__(self) -> None:
        """Take a step of each model."""
        batch, losses = next(self.batches), []
        for model, optimizer in self.pairs:
            optimizer.zero_grad()
            loss = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        self.losses.append(torch.stack(losses))


class MixedBatch:
    """The agents of a crowd as adapters of one model of peft, whose rows name their adapters."""

    def __init__(self, crowd: Crowd) -> None:
        self.count = crowd.agents.count
        self.model = adapt(plain_backbone(crowd), crowd, range(self.count)).eval()

    def generate(self, ids: Tensor, steps: int) -> Tensor:
        """Greedy text of the mean prediction, with one cache."""
        read = _cached(self.model, adapter_names=[f"agent{agent}" for agent in range(self.count) for _ in ids])
        shape = (self.count, len(ids))
        return _greedy(ids, steps, self.count, lambda tokens: read(tokens.repeat(self.count, 1)).unflatten(0, shape))


def plain_backbone(crowd: Crowd) -> Any:
    """A model as transformers builds it, which shares the weights of a crowd's backbone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = crowd.backbone.model.config.to_dict()
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.load_state_dict(crowd.backbone.model.state_dict(), assign=True)
    return model


def adapt(model: Any, crowd: Crowd, agents: Sequence[int]) -> Any:
    """A model of peft with the adapters of these agents, `agent<k>`."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    source, alpha = crowd.agents, int(crowd.agents.alpha)
    lora = LoraConfig(r=source.rank, lora_alpha=alpha, target_modules=list(source.targets), task_type="CAUSAL_LM")
    adapted: Any = get_peft_model(model, lora, f"agent{agents[0]}")
    for agent in agents[1:]:
        adapted.add_adapter(f"agent{agent}", lora)
    for agent in agents:
        set_peft_model_state_dict(adapted, source.adapter(agent), f"agent{agent}")
    return adapted


def _cached(model: Any, **options: Any) -> Callable[[Tensor], Tensor]:
    """A function of new tokens (rows, L) that keeps their keys and values; returns logits (rows, V) of the last."""
    from transformers import DynamicCache

    options |= {"past_key_values": DynamicCache(config=model.config), "use_cache": True, "logits_to_keep": 1}
    return lambda tokens: model(input_ids=tokens, **options).logits[:, -1]


@torch.no_grad()
def _greedy(ids: Tensor, steps: int, count: int, read: Callable[[Tensor], Tensor]) -> Tensor:
    """Append the likeliest tokens of the mean prediction; `read` takes new tokens (B, L) to logits (K, B, V)."""
    weights = uniform_log_weights(count, len(ids))
    texts = tokens = ids
    for _ in range(steps):
        tokens = aggregate(read(tokens).log_softmax(-1), weights).argmax(-1)[:, None]
        texts = torch.cat([texts, tokens], 1)
    return texts
