"""What the parser says of a wrong value."""

from typing import Any, Literal

import pytest
from jsonargparse.typing import PositiveInt

from zoo.cli.parser import OneLineParser


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (PositiveInt | None, "0", "expected PositiveInt (v>0) or null, got 0"),
        (PositiveInt, "0", "expected PositiveInt (v>0), got 0"),
        (int, "x", "expected int, got x"),
        (Literal["a", "b"] | None, "c", "expected 'a' or 'b' or null, got c"),
        (dict[str, float] | int | None, "{a: b}", "expected dict[str, float] or int or null, got {'a': 'b'}"),
    ],
)
def test_a_wrong_value_is_told_by_what_was_expected(
    kind: Any, value: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = OneLineParser(prog="zoo predict")
    parser.add_argument("--some.key", type=kind)
    with pytest.raises(SystemExit):
        parser.parse_args(["--some.key", value])
    assert capsys.readouterr().err == f'zoo predict: error: Parser key "some.key": {told}\n'
