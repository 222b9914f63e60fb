"""K agents in one pass equal K separate PEFT models: every family, padding on both sides, unequal adapters, DoRA."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone, positions
from zoo.ci_llm.nets.crowd import Crowd

_NUMBERS = {"vocab_size": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
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
EAGER = ("gemma2",)
ALL = {"targets": "all-linear", "rank": [2, 4, 3], "alpha": [4, 8, 5.0]}


def backbone(family, **how):
    return Backbone(
        config={"model_type": family, **FAMILIES[family]}, attention="eager" if family in EAGER else "sdpa", **how
    )


def crowd(family, top_layers=None, checkpointing=True, **agents):
    settings = {"init": "normal", "std": 0.2, "dropout": 0.0, **ALL, **agents}
    net = Crowd(
        backbone(family, gradient_checkpointing=checkpointing), Agents(COUNT, top_layers=top_layers, **settings)
    )
    if net.agents.dora:  # lengths that are no longer the rows' own
        torch.manual_seed(1)
        for name, weight in net.agents.named_parameters():
            if name.endswith("magnitude_vector"):
                weight.data.mul_(1 + 0.2 * torch.rand_like(weight))
    return net


def batch():
    ids = torch.randint(3, 24, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3, [0] * 4 + [1] * 5])
    return ids * mask, mask


def peft_of(net, agent, **config):
    """The agent as a model of its own, by peft."""
    of = {key: value[agent] if isinstance(value, list) else value for key, value in config.items()}
    patterns = {key: {name: v[agent] if isinstance(v, list) else v for name, v in of.pop(key, {}).items()}
                for key in ("rank_pattern", "alpha_pattern")}  # fmt: skip
    targets = of.get("targets")
    made = LoraConfig(
        task_type="CAUSAL_LM",
        r=of["rank"],
        lora_alpha=of["alpha"],
        target_modules=targets if isinstance(targets, str) else list(targets),
        use_dora=of.get("dora", False),
        use_rslora=of.get("rslora", False),
        exclude_modules=of.get("exclude"),
        fan_in_fan_out="GPT2" in type(net.backbone.model).__name__,
        **patterns,
    )
    model = copy.deepcopy(net.backbone.model)
    for block, theirs in zip(net.backbone.blocks, copy_blocks(model, net), strict=True):
        theirs.forward = type(block).forward.__get__(theirs)  # without our recomputation
    model.get_output_embeddings()._forward_pre_hooks.clear()
    for module in model.modules():
        module._forward_hooks.clear()
    model = get_peft_model(model, made)
    found = set_peft_model_state_dict(model, {k: v.clone() for k, v in net.agents.adapter(agent).items()})
    assert not found.unexpected_keys and not [key for key in found.missing_keys if "lora" in key]
    return model


def copy_blocks(model, net):
    return model.get_submodule(net.backbone._blocks_name())


def check(net, **config):
    """Logits, gradients, and logits after a step of AdamW."""
    ids, mask = batch()
    weigh = torch.randn(3, 9, 24, generator=torch.Generator().manual_seed(3)) * mask[..., None] / mask.sum()
    ours = net.eval()(ids, mask)
    (ours * weigh).sum().backward()
    slots = {key: value.grad for key, value in net.agents.named_parameters()}
    assert all(value.flatten(1).norm(dim=1).min() > 0 for value in slots.values())
    optimizer = torch.optim.AdamW(net.agents.parameters(), lr=1e-2, weight_decay=0.1)
    models = [peft_of(net, agent, **config) for agent in range(COUNT)]
    optimizer.step()
    after = net(ids, mask).detach()
    for agent, model in enumerate(models):
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)}
        theirs = model.eval()(**inputs).logits
        torch.testing.assert_close(ours[agent][mask == 1], theirs[mask == 1], atol=1e-4, rtol=1e-4)
        (theirs * weigh).sum().backward()
        trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
        for key, value in trained.items():
            name = key.removeprefix("base_model.model.").replace(".default", "").removesuffix(".weight")
            grad = slots[f"adapters.{name}"][agent]
            own = tuple(slice(size) for size in value.shape)
            torch.testing.assert_close(grad[own], value.grad, atol=1e-4, rtol=1e-4)
            assert grad.count_nonzero() == grad[own].count_nonzero()  # nothing in the filling
        torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.1).step()
        with torch.no_grad():
            theirs = model(**inputs).logits
        torch.testing.assert_close(after[agent][mask == 1], theirs[mask == 1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_separate_peft_models(family):
    check(crowd(family, **ALL), **ALL)


FUSED = {"phi3": "qkv_proj", "gpt2": "attn.c_attn", "gpt_neox": "query_key_value"}
VARIANTS = {
    "dora-llama": ("llama", {**ALL, "dora": True}),
    "dora-gpt2": ("gpt2", {**ALL, "dora": True}),
    "dora-phi3": ("phi3", {**ALL, "targets": r".*\.0\..*(qkv|gate_up)_proj", "dora": True}),
    "rslora-gemma3": ("gemma3_text", {**ALL, "targets": ("q_proj", "down_proj"), "rslora": True}),
    "patterns-qwen3": (
        "qwen3",
        {
            **ALL, "exclude": ("k_proj",), "rank_pattern": {r"layers\.0\.self_attn\.q_proj": [1, 5, 2], "q_proj": 3},
            "alpha_pattern": {"down_proj": [1, 2.5, 3], "up_proj": 7},
        },
    ),
    **{f"fused-{family}": (family, {**ALL, "targets": (name,)}) for family, name in FUSED.items()},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_adapters_equal_separate_peft_models(variant):
    family, settings = VARIANTS[variant]
    check(crowd(family, **settings), **settings)


@pytest.mark.parametrize("mode", ["sequential", "shared trunk"])
def test_dora_in_other_modes(mode):
    settings = {**ALL, "dora": True}
    if mode == "sequential":
        net = crowd("llama", checkpointing=False, **settings)
        net.mode, net.chunk = mode, 1
        check(net, **settings)
    else:
        check(crowd("llama", top_layers=1, **settings), **{**settings, "targets": r"model\.layers\.1\..*_proj"})


def test_dora_begins_as_the_backbone_and_drops_the_layers_inputs_too():
    net = crowd("gpt2", init="lora")
    ids, mask = batch()
    dora = Crowd(backbone("gpt2"), Agents(COUNT, **{**ALL, "init": "lora", "dropout": 0.5, "dora": True}))
    torch.testing.assert_close(dora.eval()(ids, mask), net.eval()(ids, mask))
    for agent in range(COUNT):
        dora.agents.load_adapter(agent, {key: value + 0.05 for key, value in dora.agents.adapter(agent).items()})
    changed = dora(ids, mask)  # whose norms are made anew
    assert not torch.allclose(changed, net(ids, mask))
    dora.train()
    assert not torch.allclose(dora(ids, mask), changed)
    dora.agents.dropout = 0.0
    torch.testing.assert_close(dora(ids, mask), changed)


REFUSED = {
    "lm_head lies outside the blocks; agents": ("llama", {"targets": ("q_proj", "lm_head")}),
    "outside the blocks .and is tied": ("qwen3", {"targets": ("embed_tokens",)}),
    "is a .*Attention, no linear layer": ("llama", {"targets": r".*self_attn"}),
    r"have no .*nothing": ("llama", {"targets": ".*nothing"}),
    "fits none of the adapted layers": ("llama", {"targets": ("q_proj",), "rank_pattern": {"k_proj": 2}}),
    "rank has 2 values for 3 agents": ("llama", {"rank": [1, 2]}),
    "dora has no dropconnect": ("llama", {"dora": True, "dropconnect": 0.1}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_equal_is_refused(said):
    family, settings = REFUSED[said]
    with pytest.raises(ValueError, match=said):
        crowd(family, **settings)


def test_experts_are_refused():
    config = {"model_type": "mixtral", **_GROUPED, "num_local_experts": 2}
    net = Backbone(config=config)
    assert {name.rpartition(".")[2] for name in net.targets("all-linear")} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    with pytest.raises(ValueError, match="gate_up_proj is one tensor of all experts"):
        net.targets(["gate_up_proj"])
