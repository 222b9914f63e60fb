"""Schemas: there and back as JSON, and refused with both printed."""

import json

import pytest

from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.schema import Box, Discrete, Schema, box

INF = float("inf")
SCHEMAS = [
    Schema(Discrete(16), Discrete(4), 100, reward=(0, 1)),
    Schema(box((4,), "float32", [-1, -INF, -2, -INF], [1, INF, 2, INF]), box((2,), "float32", -1, 1), 20, True),
    Schema(box((8, 8, 3), "uint8", 0, 255), Discrete(2), 7),
    Darkroom(5, 10).schema,
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_there_and_back(schema: Schema) -> None:
    assert Schema.read(json.loads(json.dumps(schema.describe()))) == schema
    assert (schema.dtype["state"].shape, schema.dtype["action"].shape) == (
        schema.observation.shape, schema.action.shape
    )  # fmt: skip


def test_a_difference_prints_both() -> None:
    other = Schema(Discrete(16), Discrete(5), 100, reward=(0, 1))
    with pytest.raises(ValueError, match=r"mine: .*\"n\": 4.*theirs: .*\"n\": 5"):
        SCHEMAS[0].require(other, "mine", "theirs")
    with pytest.raises(ValueError, match="expected the schema"):
        Schema.read({"limit": 3})
    with pytest.raises(ValueError, match="one or 4 numbers"):
        Box((4,), "float32", (0, 1), (1,))
    with pytest.raises(ValueError, match="low is at most high"):
        box((2,), "float32", 1, 0)
