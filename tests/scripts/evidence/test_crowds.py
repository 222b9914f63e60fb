"""The comparison of crowds at tiny size: tasks without leaks, arms as large as they say, scores of their definition."""

import random

import pytest

from scripts.evidence import crowds
from scripts.evidence.crowds import TASKS, TEST, TRAIN, Texts
from zoo.ci_llm.losses.likelihood import IGNORED


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
