"""Small charts of a run's curves, by group, each with its own axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from nicegui import ui

from zoo.runs.run_info import is_learning_rate, select_loss_metrics
from zoo.ui.metrics import Curve

COLORS = ("#0f766e", "#c2410c", "#3b5bdb", "#a61e4d", "#5c7c00", "#862e9c", "#0b7285", "#7a4a2b")
MAX_DOTS = 40  # points of a curve that are drawn as dots, too
_SYSTEM = ("grad_norm", "samples_per_sec", "data_wait", "memory_gib", "amp_scale")
_STAGES = {"train": "Training", "val": "Validation", "test": "Test"}
# by a short name, "" for a single run: curves, and the same without smoothing if they are smoothed
RunCurves = Mapping[str, tuple[Mapping[str, Curve], Mapping[str, Curve]]]


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
    metrics_of: dict[str, list[str]] = {}
    for key in keys:
        if key not in rates:
            metrics_of.setdefault(_without_stage(key), []).append(key)
    panels = {tail: Panel(tail if len(each) > 1 else each[0], tuple(each)) for tail, each in metrics_of.items()}
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
    if tail.startswith(_SYSTEM):
        return "System"
    prefix = tail.rpartition("/")[0]
    name = "Training and validation" if len(panel.metrics) > 1 else _STAGES.get(stage, stage)
    return f"{name}: {prefix}" if prefix else name


def panel_lines(panel: Panel, runs: RunCurves) -> list[Line]:
    """Return the lines of a chart: a color for each metric, or for each run if there are several, validation dashed."""
    lines = []
    for number, (run, (curves, raw)) in enumerate(runs.items()):
        for index, metric in enumerate(panel.metrics):
            if metric in curves:
                name = f"{run} {metric}" if run and len(panel.metrics) > 1 else run or metric
                color = COLORS[(number if len(runs) > 1 else index) % len(COLORS)]
                lines.append(Line(name, curves[metric], color, len(runs) > 1 and index > 0, raw.get(metric, ())))
    return lines


def echart_options(lines: Sequence[Line], log_scale: bool = False, legend: bool = True) -> dict[str, Any]:
    """Return what ECharts draws; a logarithmic scale leaves out values that are not positive."""
    series: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        style = {"color": line.color, "width": 1.6, "type": "dashed" if line.dashed else "solid"}
        if line.raw:
            faint = {"color": line.color, "width": 1, "opacity": 0.3}
            series.append(_series(f"{number} raw", f"{line.name} (raw)", line.raw, log_scale, faint) | {"silent": True})
        series.append(_series(str(number), line.name, line.points, log_scale, style))
    names = [line.name for line in lines] if legend and len(lines) > 1 else []
    zoom = {"yAxisIndex": "none", "title": {"zoom": "Zoom", "back": "Zoom back"}}
    pointer = {"label": {"formatter": "step {value}", "precision": 0}}
    steps = {"type": "value", "min": "dataMin", "max": "dataMax", "splitNumber": 4, "splitLine": {"show": False}}
    return {
        "animation": False,
        "grid": {"left": 4, "right": 14, "top": 30 if names else 14, "bottom": 4, "containLabel": True},
        "legend": {"show": bool(names), "type": "scroll", "top": 0, "left": 0, "right": 60, "data": names},
        "tooltip": {"trigger": "axis", "confine": True},
        "toolbox": {"top": 0, "right": 4, "itemSize": 12, "feature": {"dataZoom": zoom}},
        # a wheel alone scrolls the page
        "dataZoom": [{"type": "inside", "zoomOnMouseWheel": "ctrl", "preventDefaultMouseMove": False}],
        "xAxis": {**steps, "axisPointer": pointer},
        "yAxis": {"type": "log" if log_scale else "value", "scale": True, "splitNumber": 4},
        "series": series,
    }


def _series(key: str, name: str, points: Curve, log_scale: bool, style: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": key,
        "name": name,
        "type": "line",
        "data": tuple(point for point in points if point[1] > 0) if log_scale else points,
        "showSymbol": len(points) <= MAX_DOTS,
        "symbol": "circle",
        "symbolSize": 8 if len(points) == 1 else 4,
        "lineStyle": style,
        "itemStyle": {"color": style["color"], "opacity": style.get("opacity", 1)},
        "emphasis": {"disabled": True},
    }


class Plot(ui.echart, component="../static/plot.js"):
    """A chart of ECharts that is drawn only while it is in view."""


class Chart:
    """A card with a chart, made in the current slot; `address` is that of the run's metrics as csv."""

    def __init__(self, panel: Panel, address: str) -> None:
        self.panel = panel
        self._drawn: tuple[Any, ...] = ()
        with ui.element("section").classes("zoo-chart") as self.card:
            with ui.row(wrap=False).classes("zoo-chart-head"):
                ui.label(panel.title).classes("zoo-chart-title")
                self.last = ui.label().classes("zoo-small")
                with ui.button(icon="more_vert").props("flat dense round size=sm color=grey-8") as button, ui.menu():
                    ui.menu_item("Show all steps", lambda: self.chart.run_method("show_all"))
                    ui.menu_item("Save as SVG", lambda: self.chart.run_method("save"))
                    query = urlencode([("metric", metric) for metric in panel.metrics])
                    ui.menu_item("Save as CSV", lambda: ui.download.from_url(f"{address}?{query}"))
                button.props["aria-label"] = f"Menu of the chart {panel.title}"
            self.chart: Plot = Plot(echart_options([])).classes("zoo-chart-plot").props("role=img")
            self.chart.props["name"] = re.sub(r"[^A-Za-z0-9_-]+", "_", panel.title).strip("_") or "chart"

    def draw(self, lines: Sequence[Line], log_scale: bool, legend: bool) -> None:
        """Send the lines, unless the chart shows them already."""
        if (log_scale, legend, *lines) == self._drawn:
            return
        self._drawn = (log_scale, legend, *lines)
        last = [(line.name, f"{(line.raw or line.points)[-1][1]:.4g}") for line in lines if line.points]
        self.last.set_text(" · ".join(value for _, value in last[: len(self.panel.metrics)]))
        self.chart.props["aria-label"] = f"Chart of {self.panel.title}: {', '.join(map(' '.join, last))}"
        self.chart.props["options"] = echart_options(lines, log_scale, legend)


class Charts:
    """All charts of a run, made in the current slot."""

    def __init__(self) -> None:
        self._legend = ui.row().classes("zoo-legend")
        self._box = ui.element().classes("zoo-charts zoo-wide")
        self._names: list[str] = []
        self._groups: list[tuple[ui.element, list[Chart]]] = []
        self._panels: Any = None

    def show(self, groups: Mapping[str, Sequence[Panel]], address: str) -> None:
        """Make the charts, unless they exist already."""
        if (address, groups) == self._panels:
            return
        self._panels, self._groups = (address, groups), []
        self._box.clear()
        with self._box:
            for title, panels in groups.items():
                with ui.element("div").classes("zoo-chart-group") as group:
                    ui.label(title).props("role=heading aria-level=3").classes("zoo-group-title")
                    with ui.element("div").classes("zoo-chart-grid"):
                        self._groups.append((group, [Chart(panel, address) for panel in panels]))

    def filter(self, text: str) -> None:
        """Show the charts whose title or metrics contain a text."""
        for group, charts in self._groups:
            for chart in charts:
                keys = (chart.panel.title, *chart.panel.metrics)
                chart.card.set_visibility(any(text.strip().lower() in key.lower() for key in keys))
            group.set_visibility(any(chart.card.visible for chart in charts))

    def draw(self, runs: RunCurves, log_scale: bool) -> None:
        """Draw the curves of runs in the visible charts, with one legend for all where they show several runs."""
        names = list(runs) if len(runs) > 1 else []
        if names != self._names:
            self._names = names
            self._legend.clear()
            with self._legend:
                for number, name in enumerate(names):
                    with ui.element():
                        ui.element("i").style(f"background: {COLORS[number % len(COLORS)]}")
                        ui.label(name)
                ui.label("dashed: the validation of a metric" if names else "").classes("zoo-small")
        for chart in (chart for _, charts in self._groups for chart in charts if chart.card.visible):
            chart.draw(panel_lines(chart.panel, runs), log_scale, legend=not names)
