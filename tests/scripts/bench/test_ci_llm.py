"""What a benchmark compares computes the same."""

import torch

from scripts.bench.ci_llm import LEARNING_RATE, Training, generate_batched, make_crowd, read_rows
from scripts.bench.ci_llm_others import MixedBatch, PeftModels


def test_others_write_the_same_text() -> None:
    crowd = make_crowd().eval()
    ids = torch.randint(3, 500, (2, 5), generator=torch.Generator().manual_seed(1))
    actual = generate_batched(crowd, ids, 4)
    assert actual.shape == (2, 9)
    assert torch.equal(PeftModels(crowd).generate(ids, 4), actual)
    assert torch.equal(MixedBatch(crowd).generate(ids, 4), actual)
    assert crowd.backbone.model.state_dict().keys() == make_crowd().backbone.model.state_dict().keys()


def test_others_train_the_same() -> None:
    rows, crowd = read_rows(), make_crowd()
    ways = [Training(crowd, rows), PeftModels(crowd).training(rows, LEARNING_RATE)]
    for _ in range(3):
        for each in ways:
            each()
    for actual, expected in zip(*(each.losses for each in ways), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
