import pytest

from zoo.audio.evaluation.asr import character_errors, has_words, normalize_text, word_errors


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


def test_word_errors():
    assert word_errors("the cat sat sat", "the bat sat") == (2, 3)
    assert word_errors("世界", "世界中") == (0, 0)


def test_character_errors_ignore_the_spaces_of_scripts_without_words():
    assert character_errors("こん にちは", "こんにちわ") == (1, 5)
    assert character_errors("ab c", "abc") == (1, 3)


def test_scripts():
    assert has_words("hello") and has_words("привет мир") and has_words("안녕 세상") and has_words("123")
    assert not has_words("漢字かな") and not has_words("สวัสดี")
