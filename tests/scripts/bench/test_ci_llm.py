"""What a benchmark compares computes the same."""

import torch

from scripts.bench.ci_llm import AGENTS, make_crowd
from scripts.bench.ci_llm_others import PeftCrowd, generate_sequential
from zoo.ci_llm.aggregation import Mean
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.nets.crowd import Crowd, Mode


def tiny(mode: Mode = "batched") -> Crowd:
    return make_crowd(32, mode, None, 2, count=AGENTS, init="normal")


def test_others_write_the_same_text() -> None:
    crowd = tiny()
    ids = torch.randint(3, 500, (2, 5), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    actual = generate(crowd, ids, mask, Mean(), 4)
    assert actual.shape == (2, 9)
    assert torch.equal(generate_sequential(crowd, ids, mask, 4), actual)
    other = PeftCrowd(crowd)
    assert torch.equal(other.generate(ids, mask, 4), actual)
    with torch.no_grad():
        torch.testing.assert_close(other.logits(ids, mask), crowd(ids, mask), atol=1e-5, rtol=1e-4)
    assert crowd.backbone.model.state_dict().keys() == tiny().backbone.model.state_dict().keys()
