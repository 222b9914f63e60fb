"""What a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import gradio as gr

from zoo.runs.listing import CONFIG_NAME
from zoo.ui.jobs.commands import last_error
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.tabs.pieces import one_line, said

WHOLE = "the whole run"


class InspectTab:
    """The tab; its components are made in the current Blocks."""

    def __init__(self, places: Places, trainings: Trainings) -> None:
        self.places = places
        self.trainings = trainings
        with gr.Row():
            self.run = gr.Dropdown([], label="Run", allow_custom_value=True, scale=4)
            self.checkpoint = gr.Dropdown([WHOLE], value=WHOLE, label="Checkpoint", allow_custom_value=True, scale=3)
            button = gr.Button("Inspect", variant="primary", scale=1, min_width=110, elem_classes="zoo-button")
        report = gr.HTML(padding=False, elem_id="report")
        with gr.Accordion("Config of the run", open=False):
            config = gr.Code(language="yaml", max_lines=40, interactive=False, label=CONFIG_NAME)
        self.run.change(self._choose, self.run, [self.checkpoint, config], show_progress="hidden")
        button.click(self._inspect, [self.run, self.checkpoint], [report], show_progress="hidden")

    def _choose(self, run: str | None) -> list[Any]:
        if not run:
            return [gr.skip(), gr.skip()]
        file = one_line(lambda: self.places.run(run)) / CONFIG_NAME
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return [gr.update(choices=[WHOLE, *self.places.checkpoints(run)], value=WHOLE), text]

    def _inspect(self, run: str | None, checkpoint: str) -> Iterator[str]:
        if not run:
            raise gr.Error("Choose a run first", print_exception=False)
        path = one_line(
            lambda: self.places.run(run) if checkpoint == WHOLE else self.places.checkpoint(run, checkpoint)
        )
        yield said("busy", "Reading ...")
        code, text = self.trainings.call("inspect", str(path))
        report = text.replace(f"{self.places.runs}/", "")
        if code != 0 and "TORN" not in report and "sound" not in report:
            yield said("bad", last_error(report))
        else:
            yield f'<pre class="zoo-log tall">{escape(report)}</pre>'
