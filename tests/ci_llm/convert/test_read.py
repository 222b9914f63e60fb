"""Folders of the original and of peft: written and read without a difference; what does not fit is refused."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from zoo.ci_llm.convert.read import META, Adapters, adapter_weights, read_original, read_peft
from zoo.ci_llm.convert.write import write_original, write_peft
from zoo.ci_llm.data.tokenizers import ByteTokenizer

assert_same_weights = partial(torch.testing.assert_close, rtol=0, atol=0)
LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj")


def adapter(seed, layers=LAYERS, rank=2):
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in layers:
        weights[f"base_model.model.{layer}.lora_A.weight"] = torch.randn(rank, 4, generator=generator)
        weights[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(6, rank, generator=generator)
    return weights


def make_adapters(count, weights=None, targets=("q_proj", "up_proj"), **options):
    weights = weights or [adapter(seed) for seed in range(count)]
    return Adapters(weights=weights, rank=2, alpha=4, dropout=0.1, targets=list(targets), **options)


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_both_layouts_and_back(tmp_path):
    """Of twelve agents, whose names do not sort as their numbers do; tests/parity has the original's own files."""
    progress = {"epoch": 1, "global_step": 7, "config": {"model_name": "some/model"}, "completed": True}
    adapters = make_adapters(12, progress=progress, tokenizer=ByteTokenizer(), backbone={"sha256": "0" * 64})
    folder = tmp_path / "checkpoint_step_7"
    write_original(folder, adapters)
    names = {path.name for path in folder.iterdir()}
    assert names == {META, "training_progress.json", "tokenizer", *(f"agent{i}_weights.pth" for i in range(12))}
    read = read_original(folder)
    assert (read.progress, read.base, read.backbone) == (progress, "some/model", {"sha256": "0" * 64})
    assert read.tokenizer == folder / "tokenizer" and read.blocks is None
    adapters = replace(read, rslora=True)
    write_peft(tmp_path / "peft", adapters)
    for again in (read, read_peft(tmp_path / "peft")):
        assert_same_weights(again.weights, [adapter(seed) for seed in range(12)])
        assert (again.rank, again.alpha, again.dropout, again.targets) == (2, 4, 0.1, ["q_proj", "up_proj"])
    assert again.rslora and again.base == "some/model"
    assert_same_weights(read_peft(tmp_path / "peft" / "agent10").weights, adapters.weights[10:11])
    with pytest.raises(ValueError, match="rsLoRA"):
        write_original(tmp_path / "original", adapters)


@pytest.mark.parametrize(
    ("values", "targets"),
    [
        ({"layers_to_transform": 1}, ["q_proj", "up_proj"]),  # as peft saves one block
        ({"layers_to_transform": [0, 1]}, list(LAYERS)),
        ({"target_modules": r".*\.(0\.self_attn\.q|1\.mlp\.up)_proj"}, list(LAYERS)),
        ({"exclude_modules": ["k_proj"]}, list(LAYERS)),
        ({"target_modules": "all-linear"}, ["q_proj", "up_proj"]),
    ],
    ids=str,
)
def test_targets_of_a_peft_folder(tmp_path, values, targets):
    write_peft(tmp_path / "peft", make_adapters(1))
    change(tmp_path / "peft/agent0/adapter_config.json", **values)
    assert read_peft(tmp_path / "peft").targets == targets


def test_missing_agents(tmp_path):
    folder, adapters = tmp_path / "final_checkpoint", make_adapters(4)
    write_original(folder, adapters)
    (folder / "agent2_weights.pth").unlink()
    with pytest.raises(FileNotFoundError, match=r"K_agents 4, but agent2_weights\.pth is missing"):
        read_original(folder)
    write_peft(tmp_path / "peft", adapters)
    (tmp_path / "peft/agent1/adapter_config.json").unlink()
    with pytest.raises(FileNotFoundError, match="agent1 is missing"):
        read_peft(tmp_path / "peft")


def test_agents_from_accelerates_state_of_several_processes(tmp_path):
    """That of one process, whose names have no `module.`, is in tests/parity."""
    folder, adapters = tmp_path / "final_checkpoint", make_adapters(12)
    write_original(folder, adapters)
    state = {"module.base_model.model.norm.weight": torch.zeros(3)}
    for number, weights in enumerate(adapters.weights):
        for key, value in weights.items():
            layer, side = key.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
            state[f"module.base_model.{layer}.lora_{side}.agent{number}.weight"] = value
    save_file(state, folder / "model.safetensors")
    for number in (0, 1, 10):
        (folder / f"agent{number}_weights.pth").unlink()
    assert_same_weights(read_original(folder).weights, adapters.weights)


def test_names_of_other_adapters():
    weights = adapter(1)
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    others = {f"{layer}.lora_A0.weight": torch.ones(1), f"{layer}.lora_B.agent10.weight": torch.ones(1)}
    assert_same_weights([adapter_weights({**weights, **others}, "agent1", "file")], [weights])
    named = {key.replace(".weight", ".agent1.weight"): value for key, value in weights.items()}
    assert_same_weights([adapter_weights(named, "agent1", "file")], [weights])
    for content, message in (
        ({**weights, "model.norm.weight": torch.ones(1)}, r"no LoRA weights of peft: model\.norm\.weight"),
        (dict(list(weights.items())[1:]), "is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            adapter_weights(content, "agent1", "file")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lora_alpha": 8}, "lora_alpha is 8, agent0 has 4"),
        ({"use_dora": True}, "use_dora"),
        ({"future_option": 1}, "future_option"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"bias": "all"}, "bias"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"lora_dropout": None}, "lora_dropout is None, expected a number"),
        ({"base_model_name_or_path": 5}, "is 5, expected a text"),
    ],
    ids=str,
)
def test_refused_peft_folders(tmp_path, values, message):
    write_peft(tmp_path / "peft", make_adapters(3))
    change(tmp_path / "peft/agent1/adapter_config.json", **values)
    with pytest.raises(ValueError, match=message):
        read_peft(tmp_path / "peft")
