"""Curves of a growing metrics.csv: read in pieces as if read at once, thinned without losing extremes."""

import csv
import io
import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zoo.runs.run_info import read_curves
from zoo.ui.curves import POINTS, Envelope, Metrics

NAMES = st.lists(st.text(min_size=1, max_size=12).filter(lambda name: name not in ("step", "epoch")), unique=True)
VALUES = st.one_of(st.floats().map(repr), st.just(""), st.just("torn"), st.integers(-5, 5).map(str))


@st.composite
def records(draw: st.DrawFn) -> bytes:
    names = ["step", "epoch", *draw(NAMES.filter(lambda names: len(names) < 5))]
    rows = draw(st.lists(st.lists(VALUES, min_size=len(names), max_size=len(names)), max_size=12))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([names, *([str(number), *row[1:]] for number, row in enumerate(rows))])
    return text.getvalue().encode("utf-8", "replace")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records(), st.lists(st.floats(0, 1), max_size=6))
def test_read_in_pieces_it_is_what_is_read_at_once(tmp_path: Path, content: bytes, cuts: list[float]) -> None:
    path, metrics = tmp_path / "metrics.csv", Metrics()
    path.write_bytes(b"")
    for cut in [*sorted(cuts), 1.0]:
        with path.open("ab") as file:
            file.write(content[path.stat().st_size : round(cut * len(content))])
        metrics.read(tmp_path)
    assert metrics.read(tmp_path) == read_curves(path)


def test_a_file_that_was_rewritten_cut_or_deleted_is_read_again(tmp_path: Path) -> None:
    path, metrics = tmp_path / "metrics.csv", Metrics()
    text = "step,epoch,a\n" + "".join(f"{step},0,{step / 7}\n" for step in range(40))
    for change in (text, text + "40,0,1.0\n", text[: text.index("20,")], text.replace(",a", ",a,b"), text * 2):
        aside = tmp_path / "aside"
        aside.write_text(change)
        os.replace(aside, path)
        assert metrics.read(tmp_path) == read_curves(path)
    path.write_text(text.replace(",0,", ",0,9"))  # in place, as long as before or longer
    assert metrics.read(tmp_path) == read_curves(path)
    path.unlink()
    assert metrics.read(tmp_path) == {}


def test_a_torn_last_line_waits(tmp_path: Path) -> None:
    path, metrics = tmp_path / "metrics.csv", Metrics()
    path.write_text("step,epoch,a\n0,0,0.5\n1,0,0.")
    assert metrics.read(tmp_path) == {"epoch": [(0.0, 0.0)], "a": [(0.0, 0.5)]}
    with path.open("a") as file:
        file.write("25\n")
    assert metrics.read(tmp_path)["a"] == [(0.0, 0.5), (1.0, 0.25)]


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(4, 40))
def test_thinning_keeps_extremes_order_and_the_last(values: list[float], most: int) -> None:
    envelope = Envelope(most)
    points = [(float(step), value) for step, value in enumerate(values)]
    for point in points:
        envelope.add(point)
    shown = envelope.points()
    assert len(shown) <= most
    assert list(shown) == sorted(set(shown)) and set(shown) <= set(points)
    assert shown[-1:] == tuple(points[-1:])
    if points:
        assert {min(values), max(values)} <= {value for _, value in shown}
    if len(points) < most // 2:
        assert list(shown) == points


def test_what_has_not_changed_is_the_same_object_for_all(tmp_path: Path) -> None:
    path, metrics = tmp_path / "metrics.csv", Metrics()
    path.write_text("step,epoch,a,b\n" + "".join(f"{step},0,{step % 7},1\n" for step in range(2000)))
    first, second = metrics.shown(tmp_path), metrics.shown(tmp_path)
    assert len(first["a"]) <= POINTS and all(first[key] is second[key] for key in first)
    with path.open("a") as file:
        file.write("2000,0,,3\n")
    third = metrics.shown(tmp_path)
    assert third["a"] is first["a"] and third["b"][-1] == (2000.0, 3.0)


def test_smoothing_is_an_exponential_mean_of_all_points(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,epoch,a\n0,0,1\n1,0,3\n2,0,5\n")
    assert Metrics().shown(tmp_path, 0.5)["a"] == ((0.0, 1.0), (1.0, 2.0), (2.0, 3.5))
