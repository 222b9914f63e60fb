"""The original's folders and PEFT folders: what is written, read, and refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from zoo.ci_llm.convert.read import (
    META,
    Adapters,
    adapter_weights,
    from_ours,
    is_original_folder,
    is_peft_folder,
    read_original,
    read_peft,
    split_state,
    to_ours,
)
from zoo.ci_llm.convert.write import write_original, write_peft
from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.nets.agents import Agents

LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj")


def adapter(seed, layers=LAYERS, rank=2):
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in layers:
        weights[f"base_model.model.{layer}.lora_A.weight"] = torch.randn(rank, 4, generator=draw)
        weights[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(6, rank, generator=draw)
    return weights


def crowd(count, **options):
    return adapters([adapter(seed) for seed in range(count)], 0.1, ["q_proj", "up_proj"], **options)


def adapters(weights, dropout, targets, **options):
    return Adapters(weights=weights, rank=2, alpha=4, dropout=dropout, targets=targets, **options)


def same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def change(path, **values):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | values))


def test_original_and_back(tmp_path):
    progress = {"epoch": 1, "global_step": 7, "config": {"model_name": "some/model"}, "completed": True}
    made = crowd(12, progress=progress, tokenizer=ByteTokenizer(), backbone={"sha256": "0" * 64})
    folder = tmp_path / "checkpoint_step_7"
    write_original(folder, made)
    names = {path.name for path in folder.iterdir()}
    assert names == {META, "training_progress.json", "tokenizer", *(f"agent{i}_weights.pth" for i in range(12))}
    weights = torch.load(folder / "agent10_weights.pth", weights_only=True)
    assert torch.equal(next(iter(weights.values())), next(iter(made.weights[10].values())))
    read = read_original(folder)
    same(read.weights, made.weights)
    assert (read.rank, read.alpha, read.dropout, read.targets) == (2, 4, 0.1, ["q_proj", "up_proj"])
    assert (read.progress, read.base, read.backbone) == (progress, "some/model", {"sha256": "0" * 64})
    assert read.tokenizer == folder / "tokenizer" and read.blocks is None
    again = tmp_path / "again"
    write_original(again, read)
    assert (again / META).read_bytes() == (folder / META).read_bytes()
    assert (again / "training_progress.json").read_bytes() == (folder / "training_progress.json").read_bytes()
    assert {path.name for path in (again / "tokenizer").iterdir()} == {"tokenizer.json", "tokenizer_config.json"}


def test_peft_and_back(tmp_path):
    made = crowd(12, base="some/model")
    write_peft(tmp_path / "peft", made)
    assert sorted(path.name for path in (tmp_path / "peft").iterdir()) == sorted(f"agent{i}" for i in range(12))
    read = read_peft(tmp_path / "peft")
    same(read.weights, made.weights)
    assert (read.rank, read.alpha, read.dropout, read.targets, read.base) == (2, 4, 0.1, made.targets, "some/model")
    single = read_peft(tmp_path / "peft" / "agent10")
    same(single.weights, made.weights[10:11])
    assert is_peft_folder(tmp_path / "peft") and is_peft_folder(tmp_path / "peft" / "agent3")
    assert not is_peft_folder(tmp_path) and not is_original_folder(tmp_path / "peft")


def test_top_blocks_are_told(tmp_path):
    made = adapters([adapter(0, LAYERS[1:])], 0.0, ["up_proj"])
    assert made.blocks == [1]
    write_original(tmp_path / "original", made)
    write_peft(tmp_path / "peft", made)
    assert read_original(tmp_path / "original").blocks == [1]
    assert json.loads((tmp_path / "peft/agent0/adapter_config.json").read_text())["layers_to_transform"] == [1]


def test_stacked_and_back():
    made = crowd(3).weights
    stacked = to_ours(made)
    assert stacked["crowd.agents.adapters.model.layers.0.self_attn.q_proj.lora_A"].shape == (3, 2, 4)
    same(from_ours({**stacked, "crowd.other": torch.zeros(1)}), made)
    assert from_ours({}) == []


def test_missing_agents(tmp_path):
    folder = tmp_path / "final_checkpoint"
    made = crowd(4)
    write_original(folder, made)
    (folder / "agent2_weights.pth").unlink()
    with pytest.raises(FileNotFoundError, match=r"K_agents 4, but agent2_weights\.pth is missing; allow_partial"):
        read_original(folder)
    same(read_original(folder, allow_partial=True).weights, [made.weights[i] for i in (0, 1, 3)])
    for path in folder.glob("*.pth"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"agent0_weights\.pth, agent1"):
        read_original(folder, allow_partial=True)
    write_peft(tmp_path / "peft", made)
    (tmp_path / "peft/agent1/adapter_config.json").unlink()
    with pytest.raises(FileNotFoundError, match="agent1 is missing"):
        read_peft(tmp_path / "peft")
    same(read_peft(tmp_path / "peft", True).weights, [made.weights[i] for i in (0, 2, 3)])


@pytest.mark.parametrize("prefix", ["", "module."])
def test_agents_out_of_the_whole_state(tmp_path, prefix):
    made = crowd(12)
    folder = tmp_path / "final_checkpoint"
    write_original(folder, made)
    state = {f"{prefix}base_model.model.norm.weight": torch.zeros(3)}
    for number, weights in enumerate(made.weights):
        for key, value in weights.items():
            layer, side = key.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
            state[f"{prefix}base_model.{layer}.lora_{side}.agent{number}.weight"] = value
            state[f"{prefix}base_model.{layer}.base_layer.weight"] = torch.zeros(2)
    save_file(state, folder / "model.safetensors")
    for number in (0, 1, 10):
        (folder / f"agent{number}_weights.pth").unlink()
    same(read_original(folder).weights, made.weights)
    assert set(split_state(state)) == {f"agent{i}" for i in range(12)}
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        read_original(folder)


def test_more_agents_than_the_meta_file_says(tmp_path):
    folder = tmp_path / "checkpoint_step_1"
    write_original(folder, crowd(3))
    change(folder / META, K_agents=2)
    with pytest.raises(ValueError, match=r"K_agents 2, but there is agent2_weights\.pth"):
        read_original(folder)


@pytest.mark.parametrize(
    ("values", "said"),
    [({"r": 3}, "agent 0 has rank"), ({"r": "2"}, "r is missing"), ({"K_agents": 0}, "K_agents is missing")],
)
def test_meta_that_does_not_fit(tmp_path, values, said):
    write_original(tmp_path / "folder", crowd(1))
    change(tmp_path / "folder" / META, **values)
    with pytest.raises(ValueError, match=said):
        read_original(tmp_path / "folder")


def test_names_of_other_adapters():
    own = adapter(1)
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    bled = {f"{layer}.lora_A0.weight": torch.ones(1), f"{layer}.lora_B.agent10.weight": torch.ones(1)}
    same([adapter_weights({**own, **bled}, "agent1", "file")], [own])
    unstripped = {key.replace(".weight", ".agent1.weight"): value for key, value in own.items()}
    same([adapter_weights(unstripped, "agent1", "file")], [own])
    with pytest.raises(ValueError, match=r"no LoRA weights of peft: model\.norm\.weight"):
        adapter_weights({**own, "model.norm.weight": torch.ones(1)}, "agent1", "file")
    with pytest.raises(ValueError, match="holds no LoRA weights"):
        adapter_weights(bled, "agent1", "file")
    half = dict(list(own.items())[1:])
    with pytest.raises(ValueError, match="is missing; is the file complete"):
        adapter_weights(half, "agent1", "file")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"r": 3}, "agent 1 has rank 2, the configuration says 3"),
        ({"use_dora": True}, "use_dora is True, agent0 has False"),
        ({"use_rslora": True}, "use_rslora is True, agent0 has False"),
        ({"future_option": 1}, "future_option: 1 is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: pissa_niter_4"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_bias": True}, "lora_bias"),
        ({"bias": "all"}, "bias: all"),
        ({"rank_pattern": {"q_proj": 8}}, "agent 1 has rank 2, the configuration says 8"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    ],
)
def test_peft_that_is_refused(tmp_path, values, said):
    write_peft(tmp_path / "peft", crowd(3))
    change(tmp_path / "peft/agent1/adapter_config.json", **values)
    with pytest.raises(ValueError, match=said):
        read_peft(tmp_path / "peft")


def test_agents_that_adapt_other_layers(tmp_path):
    made = adapters([adapter(0), adapter(1, LAYERS[:1])], 0.1, ["q_proj", "up_proj"])
    write_peft(tmp_path / "peft", made)
    with pytest.raises(ValueError, match="target_modules is"):
        read_peft(tmp_path / "peft")
    write_original(tmp_path / "original", made)
    with pytest.raises(ValueError, match="agents 0 and 1 adapt different layers"):
        read_original(tmp_path / "original")


def test_a_failed_write_leaves_the_old_folder(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint_step_1"
    write_original(folder, crowd(1))

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("zoo.ci_llm.convert.write.torch.save", fail)
    with pytest.raises(OSError, match="disk full"):
        write_original(folder, crowd(2))
    assert len(read_original(folder).weights) == 1 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", [".lora_magnitude_vector", ".lora_magnitude_vector.weight"])
def test_unequal_adapters_and_back(tmp_path, name):
    kinds = {"rank_pattern": {"q_proj": [1, 3]}, "alpha_pattern": {"up_proj": 7}, "rslora": True, "dora": True}
    weights = [{**adapter(0, LAYERS[:1], 1), **adapter(0, LAYERS[1:], 2)},
               {**adapter(1, LAYERS[:1], 3), **adapter(1, LAYERS[1:], 4)}]  # fmt: skip
    for each in weights:
        each.update({f"base_model.model.{layer}.lora_magnitude_vector": torch.rand(6) for layer in LAYERS})
    made = Adapters(weights=weights, rank=[2, 4], alpha=[4, 5.5], dropout=0.0, targets=["q_proj", "up_proj"], **kinds)
    write_peft(tmp_path / "peft", made)
    if name.endswith("weight"):  # as other releases of peft
        for number, each in enumerate(weights):
            named = {key.replace(".lora_magnitude_vector", name): value for key, value in each.items()}
            save_file(named, tmp_path / f"peft/agent{number}/adapter_model.safetensors")
    read = read_peft(tmp_path / "peft")
    same(read.weights, weights)
    assert {key: getattr(read, key) for key in kinds} == kinds and (read.rank, read.alpha) == ([2, 4], [4, 5.5])
    write_peft(tmp_path / "again", read)
    config = "agent1/adapter_config.json"
    assert (tmp_path / "again" / config).read_bytes() == (tmp_path / "peft" / config).read_bytes()
    same(from_ours(to_ours(weights), Agents(**made.form())), weights)
    with pytest.raises(ValueError, match="one rank and alpha for all agents"):
        write_original(tmp_path / "checkpoint_step_1", made)


def test_patterns_of_other_names_are_told_by_layer(tmp_path):
    write_peft(tmp_path / "peft", crowd(2))
    change(tmp_path / "peft/agent1/adapter_config.json", alpha_pattern={"k_proj": 3, "up_proj": 9})
    read = read_peft(tmp_path / "peft")
    assert read.alpha_pattern == {LAYERS[1]: [4, 9]} and read.alpha == 4
    change(tmp_path / "peft/agent0/adapter_config.json", alpha_pattern={"k_proj": 3, "up_proj": 8})
    assert read_peft(tmp_path / "peft").alpha_pattern == {"up_proj": [8, 9]}


def test_targets_that_are_an_expression_are_spelled_out(tmp_path):
    write_peft(tmp_path / "peft", crowd(1))
    change(tmp_path / "peft/agent0/adapter_config.json", target_modules=r".*\.(0\.self_attn\.q|1\.mlp\.up)_proj")
    read = read_peft(tmp_path / "peft")
    assert read.targets == list(LAYERS)
    write_peft(tmp_path / "again", read)
    assert json.loads((tmp_path / "again/agent0/adapter_config.json").read_text())["layers_to_transform"] is None
