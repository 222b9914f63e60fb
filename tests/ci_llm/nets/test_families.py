"""K agents in one pass equal K separate PEFT models: every family, padding on both sides."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

from tests.ci_llm.crowd_parts import batch
from zoo.ci_llm import Agents, Backbone, Crowd
from zoo.ci_llm.nets.backbone import positions

_NUMBERS = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {
    **_NUMBERS, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 6}  # not hidden_size / heads
_GEMMA = {**_GROUPED, "sliding_window": 4, "query_pre_attn_scalar": 8}
FAMILIES = {
    "llama": {**_GROUPED, "attention_bias": True},
    "mistral": {**_GROUPED, "sliding_window": 4},
    "qwen2": {**_GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {**_GROUPED, "tie_word_embeddings": True},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {**_GEMMA, "sliding_window_pattern": 2},
    "phi": _SIZES,
    "phi3": {**_SIZES, "num_key_value_heads": 2, "sliding_window": 4},
    "gpt2": {**_NUMBERS, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": {**_SIZES, "rotary_pct": 0.5},
}
COUNT = 3
ALL = {"targets": "all-linear", "rank": 3, "alpha": 5.0}


def crowd(family, **agents):
    config, attention = {"model_type": family, **FAMILIES[family]}, "eager" if family == "gemma2" else "sdpa"
    settings = {"init": "normal", "std": 0.2, "dropout": 0.0, **ALL, **agents}
    return Crowd(Backbone(config=config, attention=attention, gradient_checkpointing=True), Agents(COUNT, **settings))


def peft_model(net, agent, targets, rank, alpha, rslora=False):
    """The agent as a model of peft."""
    modules = targets if isinstance(targets, str) else list(targets)
    is_conv1d = "GPT2" in type(net.backbone.model).__name__
    config = LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, target_modules=modules, use_rslora=rslora,
        fan_in_fan_out=is_conv1d,
    )  # fmt: skip
    model = copy.deepcopy(net.backbone.model)
    names = {module: name for name, module in net.backbone.model.named_modules()}
    for block in net.backbone.blocks:
        copied = model.get_submodule(names[block])
        copied.forward = type(block).forward.__get__(copied)  # without activation checkpointing
    model.get_output_embeddings()._forward_pre_hooks.clear()
    for module in model.modules():
        module._forward_hooks.clear()
    model = get_peft_model(model, config)
    result = set_peft_model_state_dict(model, {k: v.clone() for k, v in net.agents.adapter(agent).items()})
    assert not result.unexpected_keys and not [key for key in result.missing_keys if "lora" in key]
    return model


def check(net, **config):
    """Logits, gradients, and logits after a step of AdamW."""
    ids, mask, _ = batch()
    weights = torch.randn(3, 7, 40, generator=torch.Generator().manual_seed(3)) * mask[..., None] / mask.sum()
    logits = net.eval()(ids, mask)
    (logits * weights).sum().backward()
    gradients = {key: value.grad for key, value in net.agents.named_parameters()}
    assert all(value.flatten(1).norm(dim=1).min() > 0 for value in gradients.values())
    optimizer = torch.optim.AdamW(net.agents.parameters(), lr=1e-2, weight_decay=0.1)
    models = [peft_model(net, agent, **config) for agent in range(COUNT)]
    optimizer.step()
    after = net(ids, mask).detach()
    for agent, model in enumerate(models):
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)}
        expected = model.eval()(**inputs).logits
        torch.testing.assert_close(logits[agent][mask == 1], expected[mask == 1], atol=1e-4, rtol=1e-4)
        (expected * weights).sum().backward()
        trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
        for key, value in trained.items():
            name = key.removeprefix("base_model.model.").replace(".default", "").removesuffix(".weight")
            torch.testing.assert_close(gradients[f"adapters.{name}"][agent], value.grad, atol=1e-4, rtol=1e-4)
        torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.1).step()
        with torch.no_grad():
            expected = model(**inputs).logits
        torch.testing.assert_close(after[agent][mask == 1], expected[mask == 1], atol=1e-3, rtol=1e-3)


VARIANTS = {
    **{family: (family, {}) for family in FAMILIES},
    "rslora": ("gemma3_text", {"targets": ("q_proj", "down_proj"), "rslora": True}),
    "expression": ("phi3", {"targets": r".*\.0\..*(qkv|gate_up)_proj"}),
    "fused-gpt2": ("gpt2", {"targets": ("attn.c_attn",)}),
    "fused-gpt_neox": ("gpt_neox", {"targets": ("query_key_value",)}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_separate_peft_models(variant):
    family, changes = VARIANTS[variant]
    settings = {**ALL, **changes}
    check(crowd(family, **settings), **settings)
