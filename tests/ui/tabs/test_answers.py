"""Every kind of part on the page, and what hostile ones come to: text, never markup, code or an address."""

import json
from typing import Any

import pytest

from zoo.runs.inference.forms import OUTPUT_KINDS, Output

MARKUP = "<img src=x onerror=alert(1)></script><b>:x</b>"
FILES = ["a.wav", "b.wav", "c.png", "d.gif", "e.npy"]


def shown(client: Any, *parts: Output, conversation: bool = False) -> dict[str, list[Any]]:
    """The elements that an answer becomes, by their class."""
    from zoo.ui.tabs import answers

    before = set(client.elements)
    answers.show(parts, answers.addresses("0123", FILES), conversation)
    found: dict[str, list[Any]] = {}
    for number, element in client.elements.items():
        if number not in before:
            found.setdefault(type(element).__name__, []).append(element)
    return found


def texts(found: dict[str, list[Any]]) -> list[str]:
    return [label.text for label in found.get("Label", [])]


def pictures(found: dict[str, list[Any]]) -> list[Any]:
    return [element for element in found["Element"] if element.tag == "img"]


def test_sounds_side_by_side_share_a_player(client: Any) -> None:
    parts = [Output("audio", "Result", "a.wav", group="l"), Output("audio", "Input", "b.wav", group="l")]
    found = shown(client, *parts)
    assert [player.props["sources"] for player in found["Compare"]] == [
        [
            {"title": "Result", "url": "/_zoo/results/0123/a.wav"},
            {"title": "Input", "url": "/_zoo/results/0123/b.wav"},
        ]
    ]
    assert [link.props["download"] for link in found["Link"]] == ["a.wav", "b.wav"]


def test_a_sound_alone_has_a_player_of_its_own(client: Any) -> None:
    found = shown(client, Output("audio", "One", "a.wav"), Output("audio", "Two", "b.wav", group="alone"))
    assert [len(player.props["sources"]) for player in found["Compare"]] == [1, 1]


def test_pictures_have_their_title_as_the_alternative(client: Any) -> None:
    found = shown(client, Output("image", "Spectrogram", "c.png"), Output("animation", "Replay", "d.gif"))
    assert [(each.props["src"], each.props["alt"]) for each in pictures(found)] == [
        ("/_zoo/results/0123/c.png", "Spectrogram"),
        ("/_zoo/results/0123/d.gif", "Replay"),
    ]
    assert [button.text for button in found["Button"]] == ["Hide"]  # what moves can be stopped


def test_tables_have_rows_and_columns(client: Any) -> None:
    data = {"columns": ["x", "x"], "rows": [[1, "two"], [None, [3, 4]], [True]]}
    table = shown(client, Output("table", "T", data=data))["Table"][0]
    assert [column["label"] for column in table.columns] == ["x", "x"]
    assert [[row.get("c0"), row.get("c1")] for row in table.rows] == [[1, "two"], ["", "[3, 4]"], ["True", None]]


def test_charts_show_points_that_stand_alone(client: Any) -> None:
    data = {"x": "episode", "y": "return", "curves": {"a": [[0, 1], [1, 2]], "b": [[0, 3]]}}
    options = shown(client, Output("chart", "C", data=data))["EChart"][0].options
    assert [series["data"] for series in options["series"]] == [[[0, 1], [1, 2]], [[0, 3]]]
    assert all(series["showSymbol"] for series in options["series"])
    assert (options["xAxis"]["name"], options["yAxis"]["name"]) == ("episode", "return")


def test_texts_are_said_in_a_conversation(client: Any) -> None:
    part = Output("text", "Crowd", data="four")
    assert "four" in texts(shown(client, part))
    assert shown(client, part, conversation=True)["ChatMessage"][0].props["name"] == "Crowd"


@pytest.mark.parametrize("conversation", [False, True])
def test_markup_stays_text(client: Any, conversation: bool) -> None:
    parts = [
        Output("text", MARKUP, data=MARKUP),
        Output("table", MARKUP, data={"columns": [MARKUP, ":label"], "rows": [[MARKUP, {":x": "alert(1)"}]]}),
        Output("chart", MARKUP, data={"x": MARKUP, "y": ":y", "curves": {MARKUP: [[0, 1]], ":data": [[0, 1]]}}),
        Output("image", MARKUP, "c.png"),
    ]
    found = shown(client, *parts, conversation=conversation)
    for element in [each for elements in found.values() for each in elements]:
        sent = json.loads(json.dumps(element._to_dict(), default=str))
        assert not _evaluated(sent), sent
        assert not any("<img" in str(child) for child in _inner_html(element))


def _evaluated(value: Any) -> list[str]:
    """Names that the page would evaluate: NiceGUI takes the values of those with a colon in front for code."""
    if isinstance(value, list):
        return [name for each in value for name in _evaluated(each)]
    if isinstance(value, dict):
        own = [name for name in value if name.startswith(":")]
        return own + [name for each in value.values() for name in _evaluated(each)]
    return []


def _inner_html(element: Any) -> list[Any]:
    return [element.props["innerHTML"]] if "innerHTML" in element.props else []


@pytest.mark.parametrize("name", ["gone.wav", "..", "a b.wav", "a.wav?x", "<b>.wav", "a.wav/../b.wav"])
def test_a_file_that_the_store_does_not_give_out_has_no_address(client: Any, name: str) -> None:
    from zoo.ui.tabs import answers

    assert answers.addresses("0123", FILES)(name) == ""
    if "/" not in name and name != "..":
        found = shown(client, Output("audio", "Sound", name))
        assert texts(found) == ["Sound: the file is there no more"]
        assert "Compare" not in found and "Link" not in found


@pytest.mark.parametrize("data", [None, 3, [], {}, {"columns": [], "rows": 3}, {"curves": {"a": [1]}}, {"curves": 1}])
def test_nonsense_is_no_error_of_the_page(client: Any, data: Any) -> None:
    for kind in OUTPUT_KINDS:
        if kind in ("table", "chart", "text"):
            shown(client, Output(kind, "X", data=data))
