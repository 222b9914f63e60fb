from pathlib import Path

import pytest
import torch

from tests.parity.ci_llm.test_crowd import built
from zoo.ci_llm import Crowd, Mean
from zoo.ci_llm.inference.generate import generate


@pytest.fixture(scope="module", params=["batched", "sequential"])
def crowd(folder: Path, request) -> Crowd:
    return built(folder, request.param, attention="eager")


def test_left_padded_batch(crowd, io):
    expected = io["gen.left_batch"]
    ids, mask = io["left.input_ids"][:, :-1], io["left.attention_mask"][:, :-1]
    new = expected.shape[1] - ids.shape[1]
    assert torch.equal(generate(crowd, ids, mask, Mean(), new, eos=[2], pad=0), expected)


def test_single_prompt(crowd, io):
    expected, ids = io["gen.single"], io["right.input_ids"][:1, :6]
    results = generate(crowd, ids, torch.ones_like(ids), Mean(), expected.shape[1] - 6, eos=[2], pad=0)
    assert torch.equal(results, expected)
