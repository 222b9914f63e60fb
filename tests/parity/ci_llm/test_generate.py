import json
from pathlib import Path

import pytest
import torch

from zoo.ci_llm import Agents, Backbone, Crowd, Mean
from zoo.ci_llm.inference.generate import generate


@pytest.fixture(scope="module", params=["batched", "sequential"])
def crowd(folder: Path, request) -> Crowd:
    settings = json.loads((folder / "checkpoint_step_7" / "ci_llm_meta_config.json").read_text())
    agents = Agents(settings["K_agents"], settings["r"], settings["lora_alpha"], tuple(settings["target_modules"]))
    built = Crowd(Backbone(str(folder / "backbone"), attention="eager"), agents, request.param)
    for agent in range(agents.count):
        agents.load_adapter(agent, torch.load(folder / "checkpoint_step_7" / f"agent{agent}_weights.pth"))
    return built


def test_left_padded_batch(crowd, io):
    expected = io["gen.left_batch"]
    ids, mask = io["left.input_ids"][:, :-1], io["left.attention_mask"][:, :-1]
    new = expected.shape[1] - ids.shape[1]
    assert torch.equal(generate(crowd, ids, mask, Mean(), new, eos=[2], pad=0), expected)


def test_single_prompt(crowd, io):
    expected, ids = io["gen.single"], io["right.input_ids"][:1, :6]
    results = generate(crowd, ids, torch.ones_like(ids), Mean(), expected.shape[1] - 6, eos=[2], pad=0)
    assert torch.equal(results, expected)
