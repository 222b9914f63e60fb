"""Small charts of a run's curves, by group, each with its own axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from zoo.runs.run_info import is_learning_rate, select_loss_metrics
from zoo.ui.curves import Shown

COLOURS = ("#0f766e", "#c2410c", "#3b5bdb", "#a61e4d", "#5c7c00", "#862e9c", "#0b7285", "#7a4a2b")
FEW = 40  # points that are drawn as dots, too
_SYSTEM = ("grad_norm", "samples_per_sec", "data_wait", "memory_gib", "amp_scale")
_STAGES = {"train": "Training", "val": "Validation", "test": "Test"}


@dataclass(frozen=True)
class Panel:
    """One chart: a metric, of training and validation where both have it."""

    title: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A curve in a chart.

    Args:
        colour: the index of one.
        dashed: whether it belongs to a validation beside a training.
        raw: the same without smoothing; empty where there is none.
    """

    name: str
    points: Shown
    colour: int
    dashed: bool = False
    raw: Shown = ()


def arrange(metrics: Sequence[str], monitor: str | None = None) -> dict[str, list[Panel]]:
    """Sort metrics into charts and those into groups.

    Args:
        monitor: the metric that decides what is best; its chart comes first.

    Returns:
        Charts by a group's title: what is monitored and the losses, the rest by prefix, learning rates, the system.
    """
    keys = [key for key in metrics if key != "epoch"]
    rates = tuple(key for key in keys if is_learning_rate(key))
    together: dict[str, list[str]] = {}
    for key in keys:
        if key not in rates:
            together.setdefault(_tail(key), []).append(key)
    panels = {title: Panel(title if len(each) > 1 else each[0], tuple(each)) for title, each in together.items()}
    totals = [key for key in keys if re.search(r"(^|[/_])(loss|total)$", key) and key.count("/") < 3]
    first = [key for key in (monitor, *(totals or select_loss_metrics(keys))) if key in keys]
    groups: dict[str, list[Panel]] = {}
    for title in dict.fromkeys([*map(_tail, first), *panels]):
        groups.setdefault("Losses" if title in map(_tail, first) else _group(panels[title]), []).append(panels[title])
    system = groups.pop("System", [])
    if rates:
        groups["Learning rates"] = [Panel("learning rate", rates)]
    return groups | ({"System": system} if system else {})


def _tail(key: str) -> str:
    stage, slash, tail = key.partition("/")
    return tail if slash and stage in _STAGES else key


def _group(panel: Panel) -> str:
    stage, _, tail = panel.metrics[0].partition("/")
    if tail.startswith(_SYSTEM):
        return "System"
    part = tail.rpartition("/")[0]
    name = "Training and validation" if len(panel.metrics) > 1 else _STAGES.get(stage, stage)
    return f"{name}: {part}" if part else name


def options(lines: Sequence[Line], log_scale: bool = False, legend: bool = True) -> dict[str, Any]:
    """What ECharts draws.

    Args:
        log_scale: logarithmic values; those that are not positive are left out.
        legend: whether several curves are named above them.
    """
    series: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        colour = COLOURS[line.colour % len(COLOURS)]
        style = {"color": colour, "width": 1.6, "type": "dashed" if line.dashed else "solid"}
        if line.raw:
            faint = {"color": colour, "width": 1, "opacity": 0.3}
            raw = _series(f"{number} raw", f"{line.name} (raw)", line.raw, log_scale, faint)
            series.append({**raw, "silent": True})
        series.append(_series(str(number), line.name, line.points, log_scale, style))
    named = [line.name for line in lines] if legend and len(lines) > 1 else []
    number_axis = {"type": "log" if log_scale else "value", "scale": True}
    return {
        "animation": False,
        "grid": {"left": 4, "right": 14, "top": 30 if named else 14, "bottom": 4, "containLabel": True},
        "legend": {"show": bool(named), "type": "scroll", "top": 0, "left": 0, "right": 60, "data": named},
        "tooltip": {"trigger": "axis", "confine": True},
        "toolbox": {
            "top": 0,
            "right": 4,
            "itemSize": 12,
            "feature": {"dataZoom": {"yAxisIndex": "none", "title": {"zoom": "Zoom", "back": "Zoom back"}}},
        },
        # a wheel alone scrolls the page
        "dataZoom": [{"type": "inside", "zoomOnMouseWheel": "ctrl", "preventDefaultMouseMove": False}],
        "xAxis": {
            "type": "value",
            "min": "dataMin",
            "max": "dataMax",
            "splitNumber": 4,
            "splitLine": {"show": False},
            "axisPointer": {"label": {"formatter": "step {value}", "precision": 0}},
        },
        "yAxis": {**number_axis, "splitNumber": 4},
        "series": series,
    }


def _series(key: str, name: str, points: Shown, log_scale: bool, style: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": key,
        "name": name,
        "type": "line",
        "data": tuple(point for point in points if point[1] > 0) if log_scale else points,
        "showSymbol": len(points) <= FEW,
        "symbol": "circle",
        "symbolSize": 8 if len(points) == 1 else 4,
        "lineStyle": style,
        "itemStyle": {"color": style["color"], "opacity": style.get("opacity", 1)},
        "emphasis": {"disabled": True},
    }


class Plot(ui.echart, component="../static/plot.js"):
    """A chart of ECharts that costs nothing while it is out of sight."""


class Chart:
    """A card with a chart, made in the current slot."""

    def __init__(self, panel: Panel, address: str) -> None:
        """Make an empty one.

        Args:
            address: of the run's curves as csv.
        """
        self.panel = panel
        self._drawn: tuple[Any, ...] = ()
        with ui.element("section").classes("zoo-chart") as self.card:
            with ui.row(wrap=False).classes("zoo-chart-head"):
                ui.label(panel.title).classes("zoo-chart-title")
                self.last = ui.label().classes("zoo-small")
                with ui.button(icon="more_vert").props("flat dense round size=sm color=grey-8") as button:
                    button.props["aria-label"] = f"Menu of the chart {panel.title}"
                    with ui.menu():
                        ui.menu_item("Show all steps", lambda: self.chart.run_method("show_all"))
                        ui.menu_item("Save as SVG", lambda: self.chart.run_method("save"))
                        wanted = urlencode([("metric", metric) for metric in panel.metrics])
                        ui.menu_item("Save as CSV", lambda: ui.download.from_url(f"{address}?{wanted}"))
            self.chart: Plot = Plot(options([])).classes("zoo-chart-plot").props("role=img")
            self.chart.props["name"] = re.sub(r"[^A-Za-z0-9_-]+", "_", panel.title).strip("_") or "chart"

    def draw(self, lines: Sequence[Line], log_scale: bool, legend: bool) -> None:
        """Send what is to be seen, if it is not what is seen."""
        drawn = (log_scale, legend, *((line.name, line.colour, id(line.points), id(line.raw)) for line in lines))
        if drawn == self._drawn:
            return
        self._drawn, self._held = drawn, lines  # while they are held, their identities are theirs
        last = [(line.name, f"{(line.raw or line.points)[-1][1]:.4g}") for line in lines if line.points]
        self.last.set_text(" · ".join(value for _, value in last[: len(self.panel.metrics)]))
        said = ", ".join(map(" ".join, last))
        self.chart.props["aria-label"] = f"Chart of {self.panel.title}: {said}"
        self.chart.props["options"] = options(lines, log_scale, legend)


class Charts:
    """All charts of a run, made in the current slot."""

    def __init__(self) -> None:
        self._legend = ui.row().classes("zoo-legend")
        self._named: list[str] = []
        self._box = ui.element().classes("zoo-charts zoo-wide")
        self._charts: list[Chart] = []
        self._groups: list[tuple[ui.element, list[Chart]]] = []
        self._made: Any = None

    def show(self, groups: Mapping[str, Sequence[Panel]], address: str) -> None:
        """Make the charts, unless they are there."""
        made = (address, {title: tuple(panels) for title, panels in groups.items()})
        if made == self._made:
            return
        self._made, self._charts, self._groups = made, [], []
        self._box.clear()
        with self._box:
            for title, panels in groups.items():
                with ui.element("div").classes("zoo-chart-group") as group:
                    ui.label(title).props("role=heading aria-level=3").classes("zoo-group-title")
                    with ui.element("div").classes("zoo-chart-grid"):
                        charts = [Chart(panel, address) for panel in panels]
                self._charts += charts
                self._groups.append((group, charts))

    def filter(self, text: str) -> int:
        """Show the charts of metrics that hold a text; tells how many there are."""
        text = text.strip().lower()
        for group, charts in self._groups:
            for chart in charts:
                chart.card.set_visibility(any(text in key.lower() for key in (chart.panel.title, *chart.panel.metrics)))
            group.set_visibility(any(chart.card.visible for chart in charts))
        return sum(chart.card.visible for chart in self._charts)

    def draw(self, runs: Mapping[str, tuple[Mapping[str, Shown], Mapping[str, Shown]]], log_scale: bool) -> None:
        """Draw curves.

        Args:
            runs: by a short name, "" for the run itself: curves, and the same without smoothing if they are smoothed.
        """
        self._name(list(runs))
        for chart in self._charts:
            if chart.card.visible:
                chart.draw(lines_of(chart.panel, runs), log_scale, legend=len(runs) < 2)

    def _name(self, runs: list[str]) -> None:
        """One legend for all charts, where they show several runs."""
        if runs == self._named:
            return
        self._named = runs
        self._legend.clear()
        with self._legend:
            for number, name in enumerate(runs if len(runs) > 1 else []):
                with ui.element():
                    ui.element("i").style(f"background: {COLOURS[number % len(COLOURS)]}")
                    ui.label(name)
            if len(runs) > 1:
                ui.label("dashed: the validation beside a training").classes("zoo-small")


def lines_of(panel: Panel, runs: Mapping[str, tuple[Mapping[str, Shown], Mapping[str, Shown]]]) -> list[Line]:
    """The curves of a chart: a colour for each, or for each run if there are several, whose validation is dashed."""
    lines = []
    for number, (run, (curves, raw)) in enumerate(runs.items()):
        for index, metric in enumerate(panel.metrics):
            if metric in curves:
                name = " ".join(part for part in (run, metric if len(panel.metrics) > 1 or not run else "") if part)
                colour = number if len(runs) > 1 else index
                lines.append(Line(name, curves[metric], colour, len(runs) > 1 and index > 0, raw.get(metric, ())))
    return lines
