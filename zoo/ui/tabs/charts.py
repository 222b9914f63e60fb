"""Small charts of a run's curves, by group, each with its own axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nicegui import ui

from zoo.runs.run_info import SYSTEM_METRICS, is_learning_rate, select_loss_metrics
from zoo.ui.metrics import Curve, Curves
from zoo.ui.tabs.widgets import Heading

COLORS = ("#0f766e", "#c2410c", "#3b5bdb", "#a61e4d", "#5c7c00", "#862e9c", "#0b7285", "#7a4a2b")
MAX_DOTS = 40  # points of a curve that are drawn as dots, too
_STAGES = {"train": "Training", "val": "Validation", "test": "Test"}
RunCurves = Mapping[str, Curves]  # by a short name, "" for a single run


class Panel(NamedTuple):
    """One chart: a metric, of training and validation where both have it."""

    title: str
    metrics: tuple[str, ...]


class Line(NamedTuple):
    """A curve in a chart; `raw` is the same without smoothing, () where there is none."""

    name: str
    points: Curve
    color: str
    dashed: bool = False
    raw: Curve = ()


def arrange_panels(metrics: Sequence[str], monitor: str | None = None) -> dict[str, list[Panel]]:
    """Sort metrics into charts and charts into groups by their titles.

    First come the metric that decides which checkpoints are best and the losses, last learning rates and the system.
    """
    keys = [key for key in metrics if key != "epoch"]
    rates = tuple(key for key in keys if is_learning_rate(key))
    panels: dict[str, Panel] = {}
    for key in keys:
        if key not in rates:
            tail = _without_stage(key)
            panels[tail] = Panel(tail, (*panels[tail].metrics, key)) if tail in panels else Panel(key, (key,))
    totals = [key for key in keys if re.search(r"(^|[/_])(loss|total)$", key) and key.count("/") < 3]
    first = [_without_stage(key) for key in (monitor, *(totals or select_loss_metrics(keys))) if key in keys]
    groups: dict[str, list[Panel]] = {}
    for tail in dict.fromkeys([*first, *panels]):
        groups.setdefault("Losses" if tail in first else _group_title(panels[tail]), []).append(panels[tail])
    system = groups.pop("System", [])
    if rates:
        groups["Learning rates"] = [Panel("learning rate", rates)]
    return groups | ({"System": system} if system else {})


def _without_stage(key: str) -> str:
    stage, _, tail = key.partition("/")
    return tail if tail and stage in _STAGES else key


def _group_title(panel: Panel) -> str:
    stage, _, tail = panel.metrics[0].partition("/")
    if tail.startswith(SYSTEM_METRICS):
        return "System"
    prefix = tail.rpartition("/")[0]
    name = "Training and validation" if len(panel.metrics) > 1 else _STAGES.get(stage, stage)
    return f"{name}: {prefix}" if prefix else name


def panel_lines(panel: Panel, runs: RunCurves) -> list[Line]:
    """Return the lines of a chart: a color for each metric, or for each run if there are several, validation dashed."""
    lines = []
    for number, (run, curves) in enumerate(runs.items()):
        for index, metric in enumerate(panel.metrics):
            if metric in curves:
                name = f"{run} {metric}" if run and len(panel.metrics) > 1 else run or metric
                color = COLORS[(number if len(runs) > 1 else index) % len(COLORS)]
                points, raw = curves[metric]
                lines.append(Line(name, points, color, len(runs) > 1 and index > 0, raw))
    return lines


def echart_options(lines: Sequence[Line], log_scale: bool = False, x_name: str = "step") -> dict[str, Any]:
    """Return what ECharts draws; a logarithmic scale leaves out values that are not positive."""
    series: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        if line.raw:
            faint = {"width": 1, "opacity": 0.3}
            series.append(_series(f"{number} raw", f"{line.name} (raw)", line.raw, line.color, log_scale, faint))
        style = {"width": 1.6, "type": "dashed" if line.dashed else "solid"}
        series.append(_series(str(number), line.name, line.points, line.color, log_scale, style))
    names = [line.name for line in lines] if len(lines) > 1 else []
    zoom = {"yAxisIndex": "none", "title": {"zoom": "Zoom", "back": "Zoom back"}}
    pointer = {"label": {"formatter": f"{x_name} {{value}}", "precision": 0}}
    steps = {"type": "value", "min": "dataMin", "max": "dataMax", "splitNumber": 4, "splitLine": {"show": False}}
    tools = {"dataZoom": zoom, "saveAsImage": {"title": "Save"}}
    return {
        "animation": False,
        "grid": {"left": 4, "right": 14, "top": 50 if names else 28, "bottom": 4, "containLabel": True},
        "legend": {"show": bool(names), "type": "scroll", "top": 22, "left": 0, "right": 0, "data": names},
        "tooltip": {"trigger": "axis", "confine": True},
        "toolbox": {"top": -12, "right": 4, "itemSize": 12, "feature": tools},
        # a wheel alone scrolls the page
        "dataZoom": [{"type": "inside", "zoomOnMouseWheel": "ctrl", "preventDefaultMouseMove": False}],
        "xAxis": {**steps, "axisPointer": pointer},
        "yAxis": {"type": "log" if log_scale else "value", "scale": True, "splitNumber": 4},
        "series": series,
    }


def _series(
    key: str, name: str, points: Curve, color: str, log_scale: bool, style: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "id": key,
        "name": name,
        "type": "line",
        "color": color,
        "data": tuple(point for point in points if point[1] > 0) if log_scale else points,
        "showSymbol": len(points) <= MAX_DOTS,
        "symbol": "circle",
        "symbolSize": 8 if len(points) == 1 else 4,
        "lineStyle": style,
        "emphasis": {"disabled": True},
    }


class Plot(ui.echart, component="../static/plot.js"):
    """A chart of ECharts that is drawn only while it is in view."""


class Chart:
    """A card with a chart, made in the current slot."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self._drawn: tuple[Any, ...] = ()
        with ui.element("section").classes("zoo-chart"):
            with ui.row(wrap=False).classes("zoo-chart-head"):
                ui.label(panel.title).classes("zoo-chart-title")
                self.last = ui.label().classes("zoo-small")
            self.chart = Plot(echart_options([])).classes("zoo-chart-plot").props("role=img")

    def draw(self, lines: Sequence[Line], log_scale: bool) -> None:
        """Send the lines, unless the chart shows them already."""
        if (log_scale, *lines) == self._drawn:
            return
        self._drawn = (log_scale, *lines)
        last = [(line.name, f"{(line.raw or line.points)[-1][1]:.4g}") for line in lines if line.points]
        self.last.set_text(" · ".join(value for _, value in last[: len(self.panel.metrics)]))
        self.chart.props["aria-label"] = f"Chart of {self.panel.title}: {', '.join(map(' '.join, last))}"
        self.chart.props["options"] = echart_options(lines, log_scale)


class Charts:
    """All charts of a run, made in the current slot."""

    def __init__(self) -> None:
        self._box = ui.element().classes("zoo-wide")
        self._charts: list[Chart] = []
        self._panels: Mapping[str, Sequence[Panel]] = {}

    def show(self, groups: Mapping[str, Sequence[Panel]]) -> None:
        """Make the charts, unless they exist already."""
        if groups == self._panels:
            return
        self._panels, self._charts = groups, []
        self._box.clear()
        with self._box:
            for title, panels in groups.items():
                Heading(title, 3)
                with ui.element().classes("zoo-chart-grid"):
                    self._charts += [Chart(panel) for panel in panels]

    def draw(self, runs: RunCurves, log_scale: bool) -> None:
        """Draw the curves of runs."""
        for chart in self._charts:
            chart.draw(panel_lines(chart.panel, runs), log_scale)
