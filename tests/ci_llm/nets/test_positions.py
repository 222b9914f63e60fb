"""Positions of tokens, by mask and by text."""

import pytest
import torch

from zoo.ci_llm.nets.positions import packed, positions


def test_positions_count_tokens_and_not_padding():
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1]])
    assert positions(mask).tolist() == [[0, 1, 2, 2], [0, 0, 0, 1], [0, 1, 2, 3]]
    assert positions(mask[None].bool()).tolist() == [positions(mask).tolist()]
    with pytest.raises(ValueError, match="position_ids"):
        positions(mask[:, None, None])


def test_packed_texts_begin_anew():
    mask, places = packed(torch.tensor([[1, 1, 2, 3, 3, 0]]))
    assert places.tolist() == [[0, 1, 0, 0, 1, 0]]
    seen = {(q, k) for q, k in mask[0, 0].nonzero().tolist()}
    assert seen == {(0, 0), (1, 0), (1, 1), (2, 2), (3, 3), (4, 3), (4, 4), (5, 5)}
