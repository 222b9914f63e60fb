"""Converters between CI-LLM's folders, PEFT folders and our checkpoints."""

import shutil

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import task
from zoo.ci_llm import Agents, Backbone, ByteTokenizer, Crowd
from zoo.ci_llm.convert import convert, convert_config, from_original, is_original, to_original
from zoo.ci_llm.convert.checkpoints import adapters_of
from zoo.ci_llm.convert.read import META
from zoo.ci_llm.convert.write import write_original, write_peft
from zoo.ci_llm.nets.backbone import positions
from zoo.runs.init_from import init_from
from zoo.runs.load import load

CONFIG = crowd_parts.CONFIGS["llama"]


def write_backbone(folder, seed=0, **changes):
    folder.mkdir()
    Backbone(config={**CONFIG, **changes}, seed=seed).save_source(folder)
    return folder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return write_backbone(tmp_path_factory.mktemp("models") / "backbone")


def made(backbone, count=12, **options):
    return Crowd(Backbone(str(backbone)), Agents(count, rank=2, alpha=4, init="normal", std=0.1, **options)).eval()


def test_wrong_backbone(backbone, tmp_path):
    other = write_backbone(tmp_path / "other", seed=1)
    to_original(made(backbone, 2), tmp_path / "original")
    with pytest.raises(ValueError, match=r"trained on a backbone with sha256 \w{16}, .* has \w{16}"):
        from_original(tmp_path / "original", other)
    convert(tmp_path / "original", tmp_path / "run/a.ckpt", backbone)
    with pytest.raises(ValueError, match=r"belongs to crowd\.backbone"):
        convert(tmp_path / "run/a.ckpt", tmp_path / "back", other)
    wide = write_backbone(tmp_path / "wide", hidden_size=64)
    write_peft(tmp_path / "peft", adapters_of(made(backbone, 2)))
    with pytest.raises(ValueError, match="does not fit the backbone"):
        from_original(tmp_path / "peft", wide)


def test_a_checkpoint_keeps_its_tokenizer(tmp_path):
    texts, wide = ["2 + 3"], write_backbone(tmp_path / "wide", vocab_size=259)
    original = made(wide, 2)
    write_original(tmp_path / "original", adapters_of(original, tokenizer=ByteTokenizer()))
    convert(tmp_path / "original", tmp_path / "run" / "step.ckpt", wide)
    expected = load(tmp_path / "run", max_new_tokens=4)(texts)
    for folder in ("original", "wide"):
        shutil.rmtree(tmp_path / folder)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert load(tmp_path / "moved", max_new_tokens=4)(texts) == expected
    convert(tmp_path / "moved", tmp_path / "final")
    assert (tmp_path / "final" / "tokenizer" / "tokenizer.json").is_file()


def test_folders_of_others_are_neither_read_nor_written(backbone, tmp_path):
    to_original(made(backbone, 2), tmp_path / "original")
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger/file").write_text("x")
    for path in (tmp_path / "stranger", tmp_path / "stranger/file", tmp_path / "none", tmp_path / "original" / META):
        assert not is_original(path)
    with pytest.raises(ValueError, match="holds something else"):
        convert(tmp_path / "original", tmp_path / "stranger")
    to_original(made(backbone, 1), tmp_path / "used")
    (tmp_path / "used/optimizer.bin").write_text("x")
    with pytest.raises(ValueError, match="would be replaced, and holds optimizer"):
        convert(tmp_path / "original", tmp_path / "used")
    with pytest.raises(ValueError, match="unknown layout"):
        from_original(tmp_path / "stranger")


def test_weights_from_a_folder_tell_another_scale(backbone, tmp_path, caplog):
    write_peft(tmp_path / "peft", adapters_of(made(backbone, 2, rslora=True)))
    started = task(made(backbone, 2))
    agents = {"init_args": {"rank": 2, "alpha": 16, "rslora": False}}
    started.specs = {"components": {"crowd": {"init_args": {"agents": agents}}}}
    init_from(started, tmp_path / "peft", 0.1)
    assert "agents.alpha 16 (4 in the file), agents.rslora False (True in the file)" in caplog.text


MAIN = {
    "model_name": "google/gemma-2-2b", "num_agents": 4, "lora_rank": 16, "lora_alpha": 32, "lora_dropout": 0.05,
    "lora_target_modules": None, "initialize_adapters_rand": True, "lambda_sw": 0.01, "swd_num_projections": 64,
    "use_gradient_checkpointing": True, "epochs": 3, "max_train_steps": None, "batch_size": 1, "lr": "3e-5",
    "gradient_accumulation_steps": 8, "lr_scheduler_type": "cosine", "num_warmup_steps_ratio": 0.03,
    "max_seq_length": 768, "dataset_name": "gsm8k", "dataset_subset": "main", "debug_subset_size": None,
    "mixed_precision": "bf16", "parallel_mode": "parallel", "save_steps": 200, "logging_steps": 10, "seed": 42,
    "use_deepspeed": True, "output_dir": "out", "resume_from_checkpoint": None, "eval_batch_size": 2,
}  # fmt: skip


def test_configuration(tmp_path):
    path = tmp_path / "configs.yaml"
    path.write_text(yaml.safe_dump(MAIN))
    recipe, left = convert_config(path)
    arguments = recipe["model"]["init_args"]
    agents = arguments["crowd"]["init_args"]["agents"]["init_args"]
    assert [agents[key] for key in ("count", "rank", "alpha", "init")] == [4, 16, 32, "normal"]
    assert len(agents["targets"]) == 7
    assert arguments["diversity"]["init_args"] == {"weight": 0.01, "projections": 64}
    assert arguments["optimizer"]["init_args"] == {"lr": 3e-5, "weight_decay": 0.01}
    assert recipe["trainer"]["max_steps"] == 3 * 935 and recipe["trainer"]["precision"] == "bf16-mixed"
    assert arguments["scheduler"]["init_args"] == {"warmup_steps": 0.03, "start_at_zero": True}
    assert recipe["data"]["init_args"]["agents"].startswith("${model.init_args.crowd.")
    assert recipe["data"]["init_args"]["max_length"] == 768 and recipe["data"]["init_args"]["root"].endswith("/gsm8k")
    assert {each.partition(":")[0] for each in left} == {"use_deepspeed", "output_dir", "eval_batch_size"}
    others = {"max_train_steps": 17, "lora_target_modules": "all-linear", "tokenizer_name": "gpt2"}
    path.write_text(yaml.safe_dump({**MAIN, **others}))
    recipe, left = convert_config(path)
    assert (recipe["trainer"]["max_steps"], recipe["trainer"]["max_epochs"]) == (17, 3)  # whichever comes first
    assert recipe["trainer"]["val_check_interval"] == 17 * 8
    assert recipe["model"]["init_args"]["crowd"]["init_args"]["agents"]["init_args"]["targets"] == "all-linear"
    assert recipe["data"]["init_args"]["tokenizer"]["init_args"] == {"source": "gpt2"}
    path.write_text(yaml.safe_dump({**MAIN, "initialize_adapters_rand": "false"}))
    with pytest.raises(ValueError, match="initialize_adapters_rand"):
        convert_config(path)
    full = {key: value for key, value in MAIN.items() if key != "lr_scheduler_type"}
    path.write_text(yaml.safe_dump({**full, "dataset_name": "./processed"}))
    recipe, left = convert_config(path)
    assert recipe["model"]["init_args"]["scheduler"] is None and recipe["trainer"]["val_check_interval"] == 200 * 8
    assert any("linear with a warm-up of 0.03" in each for each in left)
    path.write_text(yaml.safe_dump({"model_name": "gpt2", "num_agents": 2}))
    recipe, _ = convert_config(path)
    assert recipe["trainer"]["max_steps"] == 200 and recipe["data"]["init_args"]["max_items"] == 16


def test_folders_that_peft_wrote(tmp_path):
    net = crowd_parts.crowd("gpt2")
    net.backbone.save_source(tmp_path / "backbone")
    ids, mask, _ = crowd_parts.batch()
    expected = []
    for agent in range(2):
        config = LoraConfig(
            r=2, lora_alpha=3, target_modules=["c_attn", "c_fc"], layers_to_transform=1, use_rslora=True,
            fan_in_fan_out=True, init_lora_weights=False, task_type="CAUSAL_LM",
        )  # fmt: skip
        torch.manual_seed(agent)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "backbone"), config).eval()
        with torch.no_grad():
            expected.append(model(ids, attention_mask=mask, position_ids=positions(mask)).logits)
        model.save_pretrained(tmp_path / f"peft/agent{agent}")
    loaded = from_original(tmp_path / "peft", backbone=tmp_path / "backbone")
    assert loaded.agents.rslora and loaded.agents.top_layers == 1 and len(loaded.agents.names) == 2
    logits = loaded(ids, mask)
    for agent, expected_logits in enumerate(expected):
        torch.testing.assert_close(logits[agent][mask == 1], expected_logits[mask == 1], atol=1e-5, rtol=1e-5)
    write_peft(tmp_path / "peft_again", adapters_of(loaded))
    again = from_original(tmp_path / "peft_again", backbone=tmp_path / "backbone")
    torch.testing.assert_close(again(ids, mask), logits)
