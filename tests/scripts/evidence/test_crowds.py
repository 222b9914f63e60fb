"""The comparison of crowds at tiny size: tasks without leaks, arms as large as they say, scores of their definition."""

from __future__ import annotations

import random

import pytest
import torch

from scripts.evidence import crowds
from scripts.evidence.crowds import ARMS, COUNT, RANK, TASKS, TEST, TRAIN, Texts, pretrained, scores, trained
from zoo.ci_llm.losses.likelihood import IGNORED, losses


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_exact_and_held_out(name):
    near, new = TASKS[name](random.Random(1))
    assert len({prompt for prompt, _ in new}) == len(new) >= TRAIN + TEST and not {*near} & {*new}
    for prompt, answer in new[:20]:
        right = eval(prompt[:-1]) if name == "differences" else prompt[-2::-1]
        assert answer == f"{right}\n"
    texts = Texts.from_pairs(new[:3], "B")
    for (prompt, answer), ids, labels in zip(new, texts.ids.tolist(), texts.labels.tolist(), strict=False):
        message = "".join(crowds.CHARACTERS[each] for each in ids if each)
        assert message == f"B{prompt}{answer}"
        assert [each for each in labels if each != IGNORED] == [crowds.CHARACTERS.index(each) for each in answer]


def test_a_backbone_is_right_where_greedy_writing_is():
    near, _ = TASKS["reversals"](random.Random(1))
    backbone, pairs = pretrained(near[:8], 0, 60), near[:12]
    right = []
    for prompt, answer in pairs:
        ids = [*map(crowds.CHARACTERS.index, prompt)]
        for _ in answer:
            with torch.no_grad():
                ids.append(int(backbone(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        right.append("".join(crowds.CHARACTERS[each] for each in ids[len(prompt) :]) == answer)
    assert 0 < sum(right) < len(pairs) and crowds.exact(backbone, pairs) == pytest.approx(sum(right) / len(pairs))


def test_arms_have_the_size_and_compute_that_they_state():
    for name, arm in ARMS.items():
        assert arm.count * arm.rank == COUNT * RANK, name
    examples = {name: arm.count * arm.batch * arm.steps for name, arm in ARMS.items()}
    assert {examples[name] for name in (*crowds.EQUAL_COMPUTE, "seeds", "splits")} == {examples["seeds"]}


@pytest.mark.parametrize("name", ["seeds", "splits", "prompts", "diversity"])
def test_agents_are_parted_and_scored(name):
    near, new = TASKS["reversals"](random.Random(2))
    backbone = pretrained(near, 0, 1)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    arm = ARMS[name]._replace(steps=3)
    crowd = trained(backbone, arm, new[:40], 3)
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    results = scores(crowd, arm, new[40:60])
    texts = [Texts.from_pairs(new[40:60], crowds.PROMPTS[agent] if arm.prompts else "") for agent in range(arm.count)]
    with torch.no_grad():
        separate = [float(losses(crowd(each.ids, each.mask)[agent : agent + 1], each.labels))
               for agent, each in enumerate(texts)]  # fmt: skip
    assert results["best agent's NLL"] == pytest.approx(min(separate), abs=1e-5)
    assert results["agents' mean NLL"] == pytest.approx(sum(separate) / len(separate), abs=1e-5)
    assert results["NLL"] <= results["agents' mean NLL"] and results["pair KL"] > 0
