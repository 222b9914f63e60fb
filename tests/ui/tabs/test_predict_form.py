"""The form of a trained system: a control for each kind of field, its values, and what is wrong at which field."""

import io
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from nicegui import ui

from zoo.runs.inference.forms import InputField, Output
from zoo.ui.folders import Folders
from zoo.ui.tabs.predict_form import PredictForm
from zoo.ui.tabs.results import Compare, show_outputs

AUDIO = InputField("input", "Recording", "audio", allowed=(".wav",))
STEPS = InputField("steps", "Steps", "int", default=4, bounds=(1, 64))
CLASSES = InputField("classes", "Classes", "choices", default=("0",), allowed=("0", "1"), bounds=(1, 2))
SEED = InputField("seed", "Seed", "int", optional=True, advanced=True)
pytestmark = pytest.mark.usefixtures("client")


def control(form: PredictForm, label: str) -> Any:
    """The element with a label."""
    elements = ui.context.client.elements.values()
    return next(each for each in elements if each.props.get("label") == label and hasattr(each, "value"))


def upload(folders: Folders, name: str) -> str:
    return folders.store_upload(name, io.BytesIO(b"RIFF"))


def test_values_of_all_kinds_are_read(folders: Folders) -> None:
    form = PredictForm([AUDIO, STEPS, CLASSES, SEED], folders, set())
    control(form, "Recording").value = [upload(folders, "音声.wav")]
    (values,) = form.read()
    assert values["input"].name == "音声.wav" and values["input"].read_bytes() == b"RIFF"
    assert (values["steps"], values["classes"], values["seed"]) == (4, ("0",), None)
    assert form.title(values) == "音声.wav · Steps: 4 · Classes: 0"


@pytest.mark.parametrize(
    ("label", "value", "message"),
    [
        ("Recording", [], "Field required"),
        ("Recording", ["../../x"], "is not below"),
        ("Steps", 65, "less than or equal to 64"),
    ],
)
def test_an_error_is_shown_at_its_field(folders: Folders, label: str, value: Any, message: str) -> None:
    form = PredictForm([AUDIO, STEPS], folders, set())
    control(form, "Recording").value = [upload(folders, "a.wav")]
    element = control(form, label)
    element.value = value
    with pytest.raises(ValueError, match=message):
        form.read()
    assert message in element.error


def test_outputs_of_all_kinds_are_shown() -> None:
    outputs = [
        Output("audio", "Result", "a.wav", group="x"),
        Output("audio", "Input", "b.wav", group="x"),
        Output("image", "Spectrogram", "c.png", group="x"),
        Output("animation", "Way", "d.gif"),
        Output("file", "Features", "gone.npy"),
        Output("text", "Answer", data="<b>4</b>"),
        Output("table", "Facts", data={"columns": ["", ""], "rows": [["rate", 1.0], ["list", [1]]]}),
        Output("chart", "Return", data={"x": "episode", "y": "return", "curves": {"agent": [[0, 1], [1, 2]]}}),
    ]
    with ui.element() as box:
        show_outputs(outputs, lambda name: "" if "gone" in name else f"/{name}")
    elements = list(box.descendants())
    (player,) = [each for each in elements if isinstance(each, Compare)]
    assert [source["url"] for source in player.props["sources"]] == ["/a.wav", "/b.wav"]
    assert {each.props.get("src") for each in elements} >= {"/c.png", "/d.gif"}
    texts = [each.text for each in elements if isinstance(each, ui.label | ui.link)]
    assert {"Features: the file does not exist any more", "<b>4</b>", "Download a.wav"} <= set(texts)
    (table,) = [each for each in elements if isinstance(each, ui.table)]
    assert [row["c1"] for row in table.rows] == [1.0, "[1]"]
