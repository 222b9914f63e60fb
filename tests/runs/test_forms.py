"""The fields of a form: what they accept, and that nothing else passes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zoo.runs.inference.forms import InputField, Output, read_form

FIELDS = (
    InputField("sound", "Sound", "audio", allowed=(".wav",)),
    InputField("steps", "Steps", "int", 5, (1, 10)),
    InputField("scale", "Scale", "float", None, (-1.0, 2.5), optional=True),
    InputField("loud", "Loud", "bool", False),
    InputField("method", "Method", "choice", "a", allowed=("a", "b")),
    InputField("classes", "Classes", "choices", ("a",), (1, 2), allowed=("a", "b", "c")),
    InputField("note", "Note", "text", "hello", bounds=(None, 20)),
    InputField("question", "Question", "text"),
    InputField("other", "Other", "file", optional=True),
)
REQUIRED = {"sound": "/tmp/x.wav", "question": "why"}


def test_defaults_replace_empty_values() -> None:
    expected = {"sound": Path("/tmp/x.wav"), "steps": 5, "scale": None, "loud": False, "method": "a"}
    expected |= {"classes": ("a",), "note": "hello", "question": "why", "other": None}
    assert read_form(FIELDS, REQUIRED) == expected
    assert read_form(FIELDS, {**REQUIRED, "steps": None, "note": "", "classes": [], "scale": None}) == expected
    values = read_form(FIELDS, {**REQUIRED, "steps": 4.0, "scale": 2})
    assert (values["steps"], type(values["steps"]), type(values["scale"])) == (4, int, float)


@pytest.mark.parametrize(
    ("name", "value", "label"),
    [
        ("sound", "x.exe", "Sound"),
        ("steps", 0, "Steps"),
        ("scale", math.nan, "Scale"),
        ("classes", ["a", "b", "c"], "Classes"),
        ("note", "x" * 21, "Note"),
        ("note", "\ud800", "Note"),
        ("question", " ", "Question"),
        ("unknown", 1, "unknown"),
    ],
)
def test_refused_values_name_the_field_in_one_line(name: str, value: Any, label: str) -> None:
    with pytest.raises(ValueError, match=label) as caught:
        read_form(FIELDS, {**REQUIRED, name: value})
    assert "\n" not in str(caught.value)


TEXT = st.text(st.sampled_from("abc./wv \0\n\ud800é"), max_size=30)
PLAIN = st.none() | st.booleans() | st.integers(-12, 12) | st.integers() | st.floats() | TEXT
JSON = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(TEXT, PLAIN, max_size=2)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from([field.name for field in FIELDS]), JSON))
def test_accepted_values_are_within_bounds(entered: dict[str, Any]) -> None:
    try:
        values = read_form(FIELDS, REQUIRED | entered)
    except ValueError:
        return
    assert values.keys() == {field.name for field in FIELDS}
    assert values["sound"].suffix.lower() == ".wav"
    assert type(values["steps"]) is int and 1 <= values["steps"] <= 10
    assert values["scale"] is None or -1.0 <= values["scale"] <= 2.5
    assert type(values["loud"]) is bool and values["method"] in ("a", "b")
    assert 1 <= len(values["classes"]) <= 2 and set(values["classes"]) <= {"a", "b", "c"}
    assert 0 < len(values["note"]) <= 20 and values["question"].strip()
    assert read_form(FIELDS, json.loads(json.dumps(values, default=str))) == values


@pytest.mark.parametrize("name", ["", ".", "..", "a/b.wav", "/etc/passwd", "..\\x", "a\0b"])
def test_output_files_are_in_the_folder(name: str) -> None:
    with pytest.raises(ValueError, match="name of a file"):
        Output("audio", "A", name)
