"""The crowd against the original: logits, hidden states, losses, and the gradients of every agent in every mode."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from zoo.ci_llm import Agents, Backbone, Crowd, Diversity
from zoo.ci_llm.losses.likelihood import losses
from zoo.ci_llm.losses.objective import CrowdObjective

SIDES = ["right", "left"]
MODES = [("batched", None), ("sequential", None), ("chunked", 2), ("chunked", 1)]


def built(folder: Path, mode: Any = "batched", chunk: int | None = None, **backbone: Any) -> Crowd:
    agents = Agents(3, rank=4, alpha=8, dropout=0.0)
    crowd = Crowd(Backbone(source=str(folder / "backbone"), **backbone), agents, mode, chunk)
    for agent in range(3):
        agents.load_adapter(agent, load_file(folder / f"peft_adapters/agent{agent}/adapter_model.safetensors"))
    return crowd


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("side", SIDES)
def test_logits_hidden_states_and_losses(folder, io, scalars, side, mode, attention):
    crowd = built(folder, *mode, attention=attention)
    ids, mask, labels = (io[f"{side}.{name}"] for name in ("input_ids", "attention_mask", "labels"))
    real = mask.bool()
    with torch.no_grad():
        output = crowd.outputs(ids, mask, hidden=True)
        with crowd.without_agents():
            base = crowd(ids, mask)[0]
    assert output.hidden is not None
    for actual, reference in (
        (output.logits[:, real], io[f"{side}.agent_logits"][:, real]),
        (output.hidden[:, real], io[f"{side}.agent_last_hidden"][:, real]),
        (base[real], io[f"{side}.base_logits"][real]),
    ):
        torch.testing.assert_close(actual, reference, atol=1e-4, rtol=0)
    for shift, name in ((True, "shifted"), (False, "original_unshifted")):
        expected = torch.tensor(scalars[f"{side}.agent_loss_{name}"])
        torch.testing.assert_close(losses(output.logits, labels, shift=shift), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_gradients_of_every_agent(folder, io, scalars, mode, checkpointing):
    crowd = built(folder, *mode, gradient_checkpointing=checkpointing)
    batch = {name: io[f"right.{name}"] for name in ("input_ids", "attention_mask", "labels")}
    term = Diversity(scalars["lambda_sw"], strategy="last_token", shared=False)
    loss = CrowdObjective({**batch, "directions": io["swd.projections_per_pair"]}, term).compute(crowd)
    assert loss.total.item() == pytest.approx(scalars["correct.right.total"], abs=1e-5)
    assert loss.losses.mean().item() == pytest.approx(scalars["correct.right.task"], abs=1e-5)
    loss.total.backward()
    gradients = {k: p.grad for k, p in crowd.agents.adapters.named_parameters()}
    expected = load_file(folder / "grads_correct_right.safetensors")
    assert len(expected) == 3 * len(gradients)
    for key, value in expected.items():
        agent, name = key.removeprefix("agent").split(".base_model.model.")
        actual = gradients[name.removesuffix(".weight")][int(agent)]
        assert (actual - value).norm() <= 1e-4 * value.norm(), key
