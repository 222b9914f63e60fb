"""Running a trained system on an uploaded file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import yaml

from zoo.common.reading.text import safe_load
from zoo.runs.listing import CONFIG_NAME, tail
from zoo.ui import charts
from zoo.ui.checks import strings
from zoo.ui.forms import Form, parse_lines
from zoo.ui.jobs.commands import last_error
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places
from zoo.ui.readings import is_media
from zoo.ui.store import Store
from zoo.ui.tabs.pieces import one_line, said

NEWEST = "the newest sound one"
RECORDS = ("manifest.jsonl", "summary.json")


class PredictTab:
    """The tab; its components are made in the current Blocks."""

    def __init__(self, places: Places, trainings: Trainings, store: Store, session_of: Callable[[Any], str]) -> None:
        self.places = places
        self.trainings = trainings
        self.store = store
        self.session_of = session_of
        with gr.Row():
            with gr.Column():
                self.run = gr.Dropdown([], label="Run", allow_custom_value=True)
                self.checkpoint = gr.Dropdown([NEWEST], value=NEWEST, label="Checkpoint", allow_custom_value=True)
                self.upload = gr.File(label="File", elem_id="upload", height=140)
                self.lines = gr.Textbox(
                    label="Other keys of the run's config (key=value, one a line)",
                    lines=3,
                    placeholder="model.init_args.solver.init_args.steps=20",
                )
                with gr.Row():
                    start = gr.Button("Run", variant="primary", elem_id="predict")
                    stop = gr.Button("Cancel")
            with gr.Column():
                self.answer = gr.HTML(
                    '<div class="zoo-empty">The result appears here</div>', padding=False, elem_id="result"
                )
        self.run.change(self._choose, self.run, self.checkpoint, show_progress="hidden")
        running = start.click(
            self._predict,
            [self.run, self.checkpoint, self.upload, self.lines],
            [self.answer, self.upload],
            show_progress="hidden",
        )
        stop.click(lambda: said("calm", "Cancelled."), None, self.answer, cancels=[running], show_progress="hidden")

    def _choose(self, run: str | None) -> Any:
        if not run:
            return gr.skip()
        return gr.update(choices=[NEWEST, *one_line(lambda: self.places.checkpoints(run))], value=NEWEST)

    def _predict(
        self, run: str | None, checkpoint: str, upload: str | None, lines: str, request: gr.Request
    ) -> Iterator[list[Any]]:
        if not run or not upload:
            raise gr.Error("Choose a run and a file first", print_exception=False)
        session = self.session_of(request)
        one_line(lambda: self.store.owned(session, upload))
        folder = one_line(lambda: self.places.run(run))
        path = folder if checkpoint == NEWEST else one_line(lambda: self.places.checkpoint(run, checkpoint))
        if lines:
            yield [said("busy", "Reading the config ..."), gr.skip()]
        changes = one_line(lambda: self._changes(folder, lines))
        job, source, target = one_line(lambda: self.store.new_job(session, upload))
        console = target.parent / "console.txt"
        args = ["predict", "--ckpt_path", str(path), "--input", str(source), "--output", str(target)]
        if changes:
            laid_over = target.parent / "changes.yaml"
            laid_over.write_text(yaml.safe_dump(changes), encoding="utf-8")
            args += ["--config", str(folder / CONFIG_NAME), "--config", str(laid_over)]
        code: int | None = None
        for waited, code in enumerate(self.trainings.follow(console, *args)):
            if code is None and waited % 2 == 0:
                progress = escape(tail(console, 8)) or "starting"
                working = said("busy", f"Working, {waited // 2} s")
                yield [f'{working}<pre class="zoo-log tall">{progress}</pre>', gr.skip()]
        yield [self._outcome(session, job, code, console), None]

    def _changes(self, folder: Path, lines: str) -> dict[str, Any]:
        """What the lines change in the run's config, after all of what comes of it has been checked."""
        if not parse_lines(lines or ""):
            return {}
        file = folder / CONFIG_NAME
        if not file.is_file():
            raise ValueError(f"this run has no {CONFIG_NAME}, so other keys have nothing to change")
        config = safe_load(file.read_text(encoding="utf-8"))
        changes = Form(config).changes({}, lines, self.places.rules())
        self.trainings.check([file], changes, self.places.rules(), lambda: strings(config))
        return changes

    def _outcome(self, session: str, job: str, code: int | None, console: Path) -> str:
        names = self.store.results(session, job)
        address = f"/_zoo/results/{job}/"
        results = [name for name in names if name not in RECORDS]
        if code != 0 or not results:
            return said("bad", last_error(tail(console, 200)))
        shown = [name for name in results if is_media(name)]
        return (
            said("good", "Done.")
            + (charts.media(address, "", shown) if shown else "")
            + charts.downloads(address, names)
        )
