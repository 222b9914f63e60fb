"""Following a training: state, curves, log, sounds and pictures; stopping and resuming it."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import gradio as gr

from zoo.runs.listing import LOG_NAME, is_rate, losses_of
from zoo.ui import charts
from zoo.ui.jobs.trainings import BUSY, Trainings
from zoo.ui.places import Places
from zoo.ui.readings import Metrics, last_media, log_of
from zoo.ui.tabs.pieces import one_line, title


class WatchTab:
    """The tab; its components are made in the current Blocks."""

    def __init__(self, places: Places, trainings: Trainings) -> None:
        self.places = places
        self.trainings = trainings
        self._metrics = Metrics()
        with gr.Row():
            self.run = gr.Dropdown([], label="Run", allow_custom_value=True, scale=5, elem_id="run")
            self.stop_button = gr.Button(
                "Stop", variant="stop", scale=1, min_width=110, elem_classes="zoo-button", interactive=False
            )
            self.resume_button = gr.Button(
                "Resume", variant="primary", scale=1, min_width=110, elem_classes="zoo-button", interactive=False
            )
        self.status = gr.HTML(padding=False, elem_id="status")
        with gr.Row():
            with gr.Column(scale=3):
                gr.HTML(title("Losses and metrics"), padding=False)
                self.loss_chart = gr.HTML(padding=False, elem_id="losses")
                with gr.Row():
                    self.metrics = gr.Dropdown(
                        [],
                        multiselect=True,
                        allow_custom_value=True,
                        label="Curves (empty: the losses)",
                        scale=4,
                        elem_id="metrics",
                    )
                    self.smooth = gr.Slider(0, 0.99, 0, step=0.01, label="Smoothing", scale=2)
                    self.log_scale = gr.Checkbox(label="Log scale", scale=2, min_width=150)
            with gr.Column(scale=2):
                gr.HTML(title("Learning rate"), padding=False)
                self.rate_chart = gr.HTML(padding=False, elem_id="rates")
        gr.HTML(title(LOG_NAME), padding=False)
        self.log = gr.HTML(padding=False, elem_id="log")
        gr.HTML(title("Last validation"), padding=False)
        self.media = gr.HTML(padding=False, elem_id="media")
        self.seen = gr.State({})

    @property
    def inputs(self) -> list[Any]:
        """What `refresh` takes."""
        return [self.run, self.metrics, self.smooth, self.log_scale, self.seen]

    @property
    def outputs(self) -> list[Any]:
        """What `refresh` gives."""
        shown = [self.status, self.loss_chart, self.rate_chart, self.log, self.media]
        return [*shown, self.metrics, self.stop_button, self.resume_button, self.seen]

    def follow(self, timer: Any) -> None:
        """Say what happens when."""
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        timer.tick(self.refresh, self.inputs, self.outputs, **quiet)
        for changed in (self.run, self.metrics, self.smooth, self.log_scale):
            changed.change(self.refresh, self.inputs, self.outputs, trigger_mode="always_last", **quiet)
        resume = partial(self.trainings.resume, owner="page")
        for button, action in ((self.stop_button, self.trainings.stop), (self.resume_button, resume)):
            button.click(lambda run, action=action: one_line(lambda: action(run)), self.run, None, **quiet).then(
                self.refresh, self.inputs, self.outputs, **quiet
            )

    def refresh(self, run: str | None, chosen: list[str], smooth: float, log_scale: bool, seen: dict[str, str]) -> Any:
        """Show the run as it is; what has not changed is left alone, so that a sound plays on."""
        if not run:
            empty = '<div class="zoo-empty">No run yet: start one in the tab Train</div>'
            return [empty, *[gr.skip()] * 8]
        folder = one_line(lambda: self.places.run(run))
        state = self.trainings.state(run)
        series = self._metrics.read(folder)
        keys = [key for key in series if key != "epoch"]
        shown = [key for key in chosen or losses_of(keys) if key in series]
        step, names = last_media(folder)
        rates = {key: series[key] for key in keys if is_rate(key)}
        log = escape(log_of(folder, state in ("failed", "ended")))
        pieces = {
            "status": charts.status(run, state, _facts(series, self.places.checkpoints(run))),
            "losses": charts.curves({key: series[key] for key in shown}, log_scale, smooth),
            "rates": charts.curves(rates, width=500),
            "log": f'<pre class="zoo-log"><span>{log}</span></pre>'
            if log
            else '<div class="zoo-empty">No log yet</div>',
            "media": charts.media(f"/_zoo/media/{run}/{step}/", step, names),
        }
        updates = [gr.skip() if seen.get(name) == text else text for name, text in pieces.items()]
        listed = "\n".join(sorted(keys))
        offered = gr.skip() if seen.get("keys") == listed else gr.update(choices=sorted(keys))
        can_resume = state not in BUSY and bool(self.places.checkpoints(run))
        buttons = [gr.update(interactive=state == "running"), gr.update(interactive=can_resume)]
        buttons = [gr.skip()] * 2 if seen.get("buttons") == f"{state} {can_resume}" else buttons
        now = pieces | {"keys": listed, "buttons": f"{state} {can_resume}"}
        return [*updates, offered, *buttons, gr.skip() if now == seen else now]


def _facts(series: dict[str, Any], checkpoints: list[str]) -> list[tuple[str, str]]:
    facts = []
    steps = [points[-1][0] for key, points in series.items() if points and key.startswith("train/")]
    if steps:
        facts.append(("batches", f"{max(steps) + 1:,.0f}"))
    for key, name, unit in (("epoch", "epoch", ""), ("train/samples_per_sec", "speed", " items/s")):
        if series.get(key):
            facts.append((name, f"{series[key][-1][1]:.4g}{unit}"))
    return [*facts, ("checkpoints", str(len(checkpoints)))]
