"""Fields: what they let through, and that nothing else comes through."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zoo.runs.interactive import FIELD_KINDS, Field, Part, checked, field_of, part_of, to_row

FIELDS = (
    Field("sound", "Sound", "audio", suffixes=(".wav",)),
    Field("steps", "Steps", "int", 5, 1, 10),
    Field("scale", "Scale", "float", None, -1.0, 2.5, optional=True),
    Field("loud", "Loud", "bool", False),
    Field("method", "Method", "choice", "a", choices=("a", "b")),
    Field("classes", "Classes", "choices", ("a",), 1, 2, choices=("a", "b", "c")),
    Field("said", "Said", "text", "hello", high=20),
)
GIVEN = {"sound": "/tmp/x.wav"}


def test_defaults_stand_where_nothing_is_given():
    expected = {"sound": Path("/tmp/x.wav"), "steps": 5, "scale": None, "loud": False, "method": "a"}
    expected |= {"classes": ("a",), "said": "hello"}
    assert checked(FIELDS, GIVEN) == expected
    assert checked(FIELDS, {**GIVEN, "steps": None, "said": "", "classes": [], "scale": None}) == expected


def test_numbers_take_their_type():
    found = checked(FIELDS, {**GIVEN, "steps": 4.0, "scale": 2})
    assert (found["steps"], type(found["steps"])) == (4, int)
    assert (found["scale"], type(found["scale"])) == (2.0, float)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sound", None, "Sound: give a file"),
        ("sound", "x.exe", "Sound: .*ends in .wav.*x.exe"),
        ("sound", "a\0.wav", "Sound"),
        ("sound", 3, "Sound"),
        ("steps", 0, "Steps: expected 1 to 10"),
        ("steps", 2.5, "Steps: expected a whole number"),
        ("steps", True, "Steps"),
        ("steps", "3", "Steps"),
        ("scale", math.nan, "Scale"),
        ("scale", math.inf, "Scale"),
        ("scale", 10**400, "Scale"),
        ("loud", 1, "Loud: expected yes or no"),
        ("method", "c", "Method: expected one of a, b"),
        ("method", ["a"], "Method"),
        ("classes", ["a", "a"], "Classes: .*twice"),
        ("classes", ["a", "z"], "Classes"),
        ("classes", ["a", "b", "c"], "Classes: expected 1 to 2"),
        ("classes", "a", "Classes"),
        ("said", " ", "Said: write something"),
        ("said", "x" * 21, "Said: expected at most 20 characters, found 21"),
        ("said", "\ud800", "Said"),
        ("other", 1, "there is no field 'other'"),
        ("__class__", 1, "there is no field"),
    ],
)
def test_what_is_refused(name, value, said):
    with pytest.raises(ValueError, match=said) as caught:
        checked(FIELDS, {**GIVEN, name: value})
    assert "\n" not in str(caught.value)


TEXT = st.text(st.sampled_from("abc./wv \0\n\ud800é"), max_size=30)
PLAIN = st.none() | st.booleans() | st.integers(-12, 12) | st.integers() | st.floats() | TEXT
JSON = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(TEXT, PLAIN, max_size=2)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from([field.name for field in FIELDS]), JSON))
def test_whatever_comes_through_keeps_the_bounds(values):
    try:
        found = checked(FIELDS, GIVEN | values)
    except ValueError:
        return
    assert found.keys() == {field.name for field in FIELDS}
    assert found["sound"].suffix.lower() == ".wav"
    assert type(found["steps"]) is int
    assert 1 <= found["steps"] <= 10
    assert found["scale"] is None or -1.0 <= found["scale"] <= 2.5
    assert type(found["loud"]) is bool
    assert found["method"] in ("a", "b")
    assert 1 <= len(found["classes"]) <= 2
    assert set(found["classes"]) <= {"a", "b", "c"}
    assert 0 < len(found["said"].strip()) <= len(found["said"]) <= 20
    again = json.loads(json.dumps(found, default=str))
    assert checked(FIELDS, again) == found


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.kind)
def test_fields_cross_as_json(field):
    assert field_of(json.loads(json.dumps(to_row(field)))) == field


@pytest.mark.parametrize("part", [Part("audio", "A", "a.wav", beside="x"), Part("table", "T", data={"rows": [[1]]})])
def test_parts_cross_as_json(part):
    assert part_of(json.loads(json.dumps(to_row(part)))) == part


@pytest.mark.parametrize("name", ["", ".", "..", "a/b.wav", "/etc/passwd", "..\\x", "a\0b"])
def test_files_of_an_answer_lie_in_its_folder(name):
    with pytest.raises(ValueError, match="name of a file"):
        part_of({"kind": "audio", "title": "A", "name": name})


@pytest.mark.parametrize(
    "row", [{"kind": "audio"}, {"kind": "script", "title": "x"}, {"kind": "text", "title": "x", "y": 1}, [], "x", None]
)
def test_what_is_no_part_is_refused(row):
    with pytest.raises(ValueError):
        part_of(row)


def test_kinds_are_known():
    with pytest.raises(ValueError, match="kind of a field"):
        Field("a", "A", "slider")
    assert {field.kind for field in FIELDS} | {"file"} == set(FIELD_KINDS)
