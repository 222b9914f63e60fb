"""Forms made of declared fields: what controls give, and errors at their fields."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from zoo.runs.inference.forms import InputField
from zoo.ui.store import MIB, Store

FIELDS = (
    InputField("sound", "Recording", "audio", allowed=(".wav",)),
    InputField("count", "Count", "int", 4, (1, 8)),
    InputField("scale", "Scale", "float", 2.0, (0, None)),
    InputField("fast", "Fast", "bool", True),
    InputField("method", "Method", "choice", "a", allowed=("a", "b")),
    InputField("classes", "Classes", "choices", allowed=("x", "y"), optional=True),
    InputField("note", "Note", "text", bounds=(None, 5), optional=True),
    InputField("seed", "Seed", "int", 0, (0, 9), advanced=True),
)
TALK = (InputField("question", "Question", "text", bounds=(None, 20)), InputField("tokens", "Tokens", "int", 8, (1, 9)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path, MIB)
    made.uploads.mkdir()
    return made


def make(store: Store, *fields: InputField) -> Any:
    from zoo.ui.forms.asking import Form

    return Form(fields, store, "me", lambda key: store.forget("me", key), lambda: None)


def give(store: Store, form: Any, *names: str) -> list[str]:
    keys = [store.add("me", name, io.BytesIO(name.encode())) for name in names]
    drop(form, keys)
    return keys


def drop(form: Any, keys: Any) -> None:
    """What the browser says of the files."""
    from nicegui.events import GenericEventArguments

    control = form.controls["sound"]
    control._take(GenericEventArguments(sender=control, client=control.client, args=keys))


def test_what_is_shown_is_what_is_given(client: Any, store: Store) -> None:
    form = make(store, *FIELDS)
    give(store, form, "a.wav")
    (values,) = form.read()
    assert values.pop("sound").name == "a.wav"
    assert values == {
        "count": 4, "scale": 2.0, "fast": True, "method": "a", "classes": None, "note": None, "seed": 0
    }  # fmt: skip
    form.controls["classes"].set_value(["y", "x"])
    form.controls["count"].set_value(3.0)
    (values,) = form.read()
    assert values["classes"] == ("y", "x") and values["count"] == 3
    assert form.title([values]) == "a.wav · Count: 3 · Scale: 2.0 · Fast: True · Method: a · Classes: y, x"


def test_all_errors_stand_at_their_fields(client: Any, store: Store) -> None:
    form = make(store, *FIELDS)
    form.controls["count"].set_value(9)
    form.controls["note"].set_value("too long")
    form.controls["seed"].set_value(-1)
    with pytest.raises(ValueError, match="Recording"):
        form.read()
    errors = {name for name, control in form.controls.items() if getattr(control, "error", None)}
    assert errors == {"sound", "count", "note", "seed"}
    assert form._folded.value  # a folded error is unfolded
    give(store, form, "a.wav")
    for name, value in {"count": 8, "note": "", "seed": 1}.items():
        form.controls[name].set_value(value)
    assert len(form.read()) == 1
    assert not any(getattr(control, "error", None) for control in form.controls.values())


def test_several_files_are_several_sets(client: Any, store: Store) -> None:
    form = make(store, *FIELDS)
    give(store, form, "a.wav", "b.wav")
    values = form.read()
    assert [each["sound"].name for each in values] == ["a.wav", "b.wav"]
    assert {each["count"] for each in values} == {4}
    assert form.title(values).startswith("2 files")


def test_with_two_places_for_files_each_takes_one(client: Any, store: Store) -> None:
    form = make(store, FIELDS[0], InputField("other", "Other", "file", optional=True))
    give(store, form, "a.wav", "b.wav")
    assert [each["sound"].name for each in form.read()] == ["a.wav"]
    assert not form.controls["sound"].props.get("multiple")


@pytest.mark.parametrize("keys", [["0123456789abcdef"], ["../../etc/passwd"], [{"path": "/etc/passwd"}], "/etc/passwd"])
def test_only_uploads_of_the_session_are_files(client: Any, store: Store, keys: Any) -> None:
    store.add("other", "secret.wav", io.BytesIO(b"secret"))
    keys = [*store._records["other"], *keys] if isinstance(keys, list) else keys
    form = make(store, *FIELDS)
    drop(form, keys)
    with pytest.raises(ValueError, match=r"is no upload of this session|Recording"):
        form.read()
    assert form.controls["sound"].error


def test_what_is_removed_is_forgotten(client: Any, store: Store) -> None:
    form = make(store, *FIELDS)
    first, second = give(store, form, "a.wav", "b.wav")
    drop(form, [second])
    assert [each["sound"].name for each in form.read()] == ["b.wav"]
    with pytest.raises(ValueError):
        store.owned("me", first)


def test_hostile_values_are_errors_of_their_field(client: Any, store: Store) -> None:
    form = make(store, *FIELDS[1:])
    for name in ("count", "scale", "note", "method", "fast"):
        with contextlib.suppress(TypeError):  # of NiceGUI, which shows no such value
            form.controls[name].value = {"a": ["<b>"]}
    with pytest.raises(ValueError, match="Count"):
        form.read()
    assert {name for name, each in form.controls.items() if getattr(each, "error", None)} >= {"count", "scale", "note"}


def test_a_form_that_needs_a_text_alone_is_a_conversation(client: Any, store: Store) -> None:
    form = make(store, *TALK)
    assert form.conversation and not make(store, *FIELDS).conversation
    form.controls["question"].set_value("<b>Why?</b>")
    (values,) = form.read()
    assert form.question(values) == "<b>Why?</b>"
    form.clear_question()
    with pytest.raises(ValueError, match="Question"):
        form.read()
    assert make(store, *FIELDS[1:]).question({}) == ""
