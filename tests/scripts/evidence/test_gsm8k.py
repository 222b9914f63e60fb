"""The arithmetic of the demo on GSM8K: which tokens are computed results, and intervals over items."""

import numpy as np
import pytest

from scripts.evidence.real.gsm8k import interval, result_tokens
from zoo.ci_llm.data.tokenizers import ByteTokenizer


def test_results_are_computed_in_annotations() -> None:
    tokenizer = ByteTokenizer()
    answer = [*tokenizer.encode(" 4+3 = <<4+3=7>>7, = <<7*2=14>>14\n#### 14"), tokenizer.eos_id]
    chosen = result_tokens(tokenizer, answer)
    assert tokenizer.decode([token for token, each in zip(answer, chosen, strict=True) if each]) == "7>>14>>"


def test_interval_is_of_the_ratio_of_sums() -> None:
    value, low, high = interval(np.array([1.0, 4.0]), np.array([1.0, 2.0]))
    assert value == pytest.approx(5 / 3)
    assert (low, high) == pytest.approx((1.0, 2.0))
