"""CI-LLM's golden files: converted in every direction, bit for bit; logits of the original."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tests.ci_llm.convert.test_read import assert_same_weights
from zoo.ci_llm.convert import convert, describe, from_original, is_original
from zoo.ci_llm.convert.read import META, read_original, read_peft


@pytest.mark.parametrize("name", ["checkpoint_step_7", "peft_adapters"])
def test_logits(folder, io, name):
    crowd = from_original(folder / name, backbone=folder / "backbone")
    for side in ("right", "left"):
        mask = io[f"{side}.attention_mask"]
        with torch.no_grad():
            results = crowd(io[f"{side}.input_ids"], mask)
        assert results.shape == io[f"{side}.agent_logits"].shape
        assert (results - io[f"{side}.agent_logits"])[:, mask == 1].abs().max() <= 1e-4


def test_both_layouts_hold_the_same(folder):
    original, peft = read_original(folder / "checkpoint_step_7"), read_peft(folder / "peft_adapters")
    assert_same_weights(original.weights, peft.weights)
    for name in ("rank", "alpha", "dropout", "targets", "base"):
        assert getattr(original, name) == getattr(peft, name)


def test_round_trips(folder, tmp_path):
    source = folder / "checkpoint_step_7"
    weights = read_original(source).weights
    convert(source, tmp_path / "adapters")
    for number in range(3):
        reference = load_file(folder / f"peft_adapters/agent{number}/adapter_model.safetensors")
        assert_same_weights([load_file(tmp_path / f"adapters/agent{number}/adapter_model.safetensors")], [reference])
    convert(tmp_path / "adapters", tmp_path / "checkpoint_step_7")
    convert(source, tmp_path / "run/step.ckpt", folder / "backbone")
    convert(tmp_path / "run/step.ckpt", tmp_path / "run/final_checkpoint")
    convert(tmp_path / "adapters", tmp_path / "of_peft/step.ckpt", folder / "backbone")
    convert(tmp_path / "of_peft/step.ckpt", tmp_path / "of_peft/peft")
    assert_same_weights(read_peft(tmp_path / "of_peft/peft").weights, weights)
    for written in (tmp_path / "checkpoint_step_7", tmp_path / "run/final_checkpoint"):
        for number in range(3):
            assert_same_weights(
                [torch.load(written / f"agent{number}_weights.pth", weights_only=True)], [weights[number]]
            )
        actual = json.loads((written / META).read_text())
        actual.pop("backbone", None)
        assert actual == json.loads((source / META).read_text())
        progress = "training_progress.json"
        assert json.loads((written / progress).read_text()) == json.loads((source / progress).read_text())
    assert (tmp_path / "checkpoint_step_7" / META).read_bytes() == (source / META).read_bytes()


def test_peft_reads_what_we_write(folder, io, tmp_path):
    import peft
    from transformers import AutoModelForCausalLM

    convert(folder / "checkpoint_step_7", tmp_path / "adapters")
    model = AutoModelForCausalLM.from_pretrained(folder / "backbone", attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapters/agent2", adapter_name="agent2").eval()
    mask = io["right.attention_mask"]
    with torch.no_grad():
        results = model(io["right.input_ids"], attention_mask=mask).logits
    assert (results - io["right.agent_logits"][2])[mask == 1].abs().max() <= 1e-4


def test_agents_out_of_accelerates_state(folder, tmp_path):
    copy = tmp_path / "final_checkpoint"
    shutil.copytree(folder / "checkpoint_step_7", copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    for path in copy.glob("agent*_weights.pth"):
        path.unlink()
    assert_same_weights(read_original(copy).weights, read_original(folder / "checkpoint_step_7").weights)


def test_what_the_files_state(folder):
    assert is_original(folder / "checkpoint_step_7") and is_original(folder / "peft_adapters")
    assert not is_original(folder / "backbone") and not is_original(folder)
    facts = describe(folder / "checkpoint_step_7")
    assert (facts["agents"], facts["global_step"], facts["backbone"]) == (3, 7, "backbone")
    assert from_original(folder / "checkpoint_step_7").count == 3  # the backbone that it names is in the same folder
