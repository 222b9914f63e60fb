"""The page itself: a header and four tabs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from zoo.ui import charts
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.readings import machine_load
from zoo.ui.store import Store
from zoo.ui.tabs.inspect import InspectTab
from zoo.ui.tabs.predict import PredictTab
from zoo.ui.tabs.train import TrainTab
from zoo.ui.tabs.watch import WatchTab

TICK_SECONDS = 2.0
HEAD = '<div class="zoo-head"><h1>zoo</h1><p>train, watch, inspect, predict</p></div>'


class Page:
    """Builds the page and holds what its tabs share."""

    def __init__(self, places: Places, trainings: Trainings, store: Store, session_of: Callable[[Any], str]) -> None:
        self.places = places
        self.trainings = trainings
        with gr.Blocks(title="zoo", analytics_enabled=False, delete_cache=(3600, 3600)) as self.blocks:
            with gr.Row(equal_height=True):
                gr.HTML(HEAD, padding=False)
                load = gr.HTML(charts.load_bar(machine_load()), padding=False)
            with gr.Tabs() as tabs:
                with gr.Tab("Train", id="train"):
                    train = TrainTab(places, trainings)
                with gr.Tab("Watch", id="watch"):
                    watch = WatchTab(places, trainings)
                with gr.Tab("Inspect", id="inspect"):
                    inspect = InspectTab(places, trainings)
                with gr.Tab("Predict", id="predict"):
                    predict = PredictTab(places, trainings, store, session_of)
            # Gradio's own check of lists that change lags behind; names are looked up where they are used
            choosers = [watch.run, inspect.run, predict.run]
            timer = gr.Timer(TICK_SECONDS)
            listed = gr.State([])
            timer.tick(
                lambda: charts.load_bar(machine_load()), None, load, show_progress="hidden", api_visibility="private"
            )
            timer.tick(
                self._list_runs,
                [listed, *choosers],
                [listed, *choosers, train.weights],
                show_progress="hidden",
                api_visibility="private",
            )
            watch.follow(timer)
            watch.run.change(
                lambda run: [run, run], watch.run, choosers[1:], show_progress="hidden", api_visibility="private"
            )
            train.connect(self.blocks, tabs, watch)
            self.blocks.load(self._arrive, None, [listed, *choosers, train.weights, tabs], show_progress="hidden").then(
                watch.refresh, watch.inputs, watch.outputs, show_progress="hidden"
            )

    def _arrive(self) -> list[Any]:
        """Offer all runs; whoever comes while something trains is shown that."""
        runs = self.places.list_runs()
        running = next((run for run in runs if self.trainings.state(run) in ("running", "stopping")), None)
        chosen = running or (runs[0] if runs else None)
        choices = [gr.update(choices=runs, value=chosen) for _ in range(3)]
        weights = gr.update(choices=["", *self.places.weights()])
        return [runs, *choices, weights, gr.update(selected="watch") if running else gr.skip()]

    def _list_runs(self, listed: list[str], *chosen: str | None) -> list[Any]:
        """Offer runs that have come; what was chosen stays."""
        runs = self.places.list_runs()
        if sorted(runs) == sorted(listed):
            return [gr.skip()] * 5
        kept = [gr.update(choices=runs, value=run if run in runs else (runs[0] if runs else None)) for run in chosen]
        return [runs, *kept, gr.update(choices=["", *self.places.weights()])]
