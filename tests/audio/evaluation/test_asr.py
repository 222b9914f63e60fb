import pytest

from zoo.audio.evaluation.asr import error_rates, normalize_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't  STOP -- ever!", "dont stop ever"),
        ("it\u2019s well-known; 3.5 %", "its well known 3 5"),
        ("\uff21\uff22\uff23 \uff11\uff12", "abc 12"),
        ("\uff8a\uff9b\uff70、世界。", "ハロー 世界"),
        ("Straße, İzmir", "straße i̇zmir"),
        ("", ""),
    ],
)
def test_normalize_text(text, expected):
    assert normalize_text(text) == normalize_text(expected) == expected


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ("The cat sat sat!", "the bat sat", {"wer": 2 / 3, "words": 3, "cer": 5 / 11, "characters": 11}),
        ("こん にちは", "こんにちわ", {"cer": 1 / 5, "characters": 5}),
        ("ab c", "abc", {"wer": 2, "words": 1, "cer": 1 / 3, "characters": 3}),
    ],
)
def test_error_rates(hypothesis, reference, expected):
    assert error_rates(hypothesis, reference) == pytest.approx(expected)
