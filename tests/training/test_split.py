from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from zoo.training.gan import split_batch


class Pair(NamedTuple):
    first: torch.Tensor
    second: float


@dataclass
class Record:
    pair: Pair
    names: list[str]


def test_split_batch_cuts_every_structure():
    batch = {
        "x": torch.arange(10).reshape(5, 2),
        "names": list("abcde"),
        "rate": 16000,
        "pair": (torch.arange(5), None),
    }
    first, second = split_batch(batch, 2)
    assert first["x"].tolist() == [[0, 1], [2, 3]] and second["x"].tolist() == [[4, 5], [6, 7], [8, 9]]
    assert second["names"] == ["c", "d", "e"] and second["rate"] == 16000
    assert second["pair"][0].tolist() == [2, 3, 4] and second["pair"][1] is None
    assert len(split_batch(torch.zeros(2, 1), 5)) == 2
    with pytest.raises(ValueError, match="cannot be split"):
        split_batch({"names": ["a"]}, 2)


def test_named_tuples_and_dataclasses_keep_their_type():
    record = Record(Pair(torch.arange(3), 0.5), ["a", "b", "c"])
    parts = split_batch(record, 3)
    assert [(int(part.pair.first), part.pair.second, part.names) for part in parts] == [
        (0, 0.5, ["a"]),
        (1, 0.5, ["b"]),
        (2, 0.5, ["c"]),
    ]
