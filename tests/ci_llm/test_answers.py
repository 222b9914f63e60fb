from decimal import Decimal

import pytest

from zoo.ci_llm.answers import flexible_answer, same_answer, strict_answer, vote


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("He has 3 + 4 = <<3+4=7>>7 apples.\n#### 7", "7", "7"),
        ("#### $1,234.50.", "1234.50", "1234.50"),
        ("####-5", "-5", "-5"),
        ("#### 8\nQuestion: 12 or 13?", "8", "13"),
        ("The answer is 18.", None, "18"),
        ("#### .5", "0.5", "0.5"),
        ("It costs $.50", None, "0.50"),
        ("below, \u22125", None, "-5"),
        ("3...5 of 1.25", None, "1.25"),
        ("That makes 10-3", None, "3"),
        ("cost -$4 each", None, "-4"),
        ("in 1234,567", None, "567"),
        ("#### none", None, None),
    ],
)
def test_answers_in_texts(text, strict, flexible):
    assert strict_answer(text) == (None if strict is None else Decimal(strict))
    assert flexible_answer(text) == (None if flexible is None else Decimal(flexible))


def test_answers_are_compared_as_numbers():
    assert same_answer(Decimal("18.00"), Decimal("18"))
    assert not same_answer(None, None)


def test_votes():
    a, b, same_b = Decimal("1"), Decimal("2"), Decimal("2.0")
    assert vote([a, b, same_b]) == (b, pytest.approx(2 / 3), 1)
    assert vote([None, None, b]) == (b, pytest.approx(1 / 3), 2)
    assert vote([None, None]) == (None, 0.0, 0)
