"""The arithmetic of the demo on GSM8K: which tokens are the final number, and intervals over items."""

import numpy as np
import pytest

from scripts.evidence.real.gsm8k import interval, number_tokens
from zoo.ci_llm.data.tokenizers import ByteTokenizer


def test_final_number_lies_behind_the_mark() -> None:
    tokenizer = ByteTokenizer()
    answer = [*tokenizer.encode(" 4 + 3 = 7\n#### 72"), tokenizer.eos_id]
    assert tokenizer.decode(answer[number_tokens(tokenizer, answer)]) == " 72"


def test_interval_is_of_the_ratio_of_sums() -> None:
    value, low, high = interval(np.array([1.0, 4.0]), np.array([1.0, 2.0]))
    assert value == pytest.approx(5 / 3)
    assert (low, high) == pytest.approx((1.0, 2.0))
