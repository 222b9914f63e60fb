"""Choosing a recipe, editing it, checking it, and starting a training."""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from zoo.common.reading.text import safe_load
from zoo.common.systems import first_comment
from zoo.ui.checks import strings
from zoo.ui.controls import CONTROLS, GROUPS, OPTIONAL, Control
from zoo.ui.forms import Form
from zoo.ui.jobs.commands import last_error
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places, choose
from zoo.ui.tabs.pieces import one_line, said
from zoo.ui.tabs.watch import WatchTab

AS_RECIPE = "as in the recipe"
Marks = tuple[tuple[Path, int], ...]


class TrainTab:
    """The tab; its components are made in the current Blocks."""

    def __init__(self, places: Places, trainings: Trainings) -> None:
        self.places = places
        self.trainings = trainings
        self._complete: dict[Marks, dict[str, Any]] = {}
        self._reading: defaultdict[Marks, threading.Lock] = defaultdict(threading.Lock)
        self._shown: dict[str | None, Path] = {}
        systems = places.systems()
        system = next(iter(systems))
        with gr.Row():
            self.system = gr.Dropdown(list(systems), value=system, label="System", elem_id="system")
            names = list(places.recipes(system))
            self.recipe = gr.Dropdown(
                names, value=_smoke(names), label="Recipe", allow_custom_value=True, elem_id="recipe"
            )
            self.fragment = gr.Dropdown([AS_RECIPE, *places.fragments()], value=AS_RECIPE, label="Machine")
        self.about = gr.HTML(padding=False)
        with gr.Row():
            self.weights = gr.Dropdown(
                ["", *places.weights()],
                value="",
                label="Pretrained weights (of a run; empty for none)",
                allow_custom_value=True,
            )
            self.data = gr.Dropdown(
                [AS_RECIPE, *places.data_folders()], value=AS_RECIPE, label="Data (folders that the server offers)"
            )
        self.base = gr.State({})
        self.controls: dict[str, Any] = {}
        self.groups = []
        for group in GROUPS:
            with (
                gr.Accordion(group, open=group == GROUPS[0], visible=False) as accordion,
                gr.Row(elem_classes="zoo-grid"),
            ):
                for control in CONTROLS:
                    if control.group == group:
                        self.controls[control.label] = _component(control)
            self.groups.append(accordion)
        self.lines = gr.Textbox(
            label="Any other key (key=value, one a line)", lines=3, placeholder="data.init_args.segment_samples=8192"
        )
        with gr.Row():
            self.check_button = gr.Button("Check")
            self.try_button = gr.Button("Try one step")
            self.start_button = gr.Button("Start training", variant="primary")
        self.answer = gr.HTML(padding=False, elem_id="answer")
        with gr.Accordion("Complete config", open=False):
            self.config = gr.Code(language="yaml", lines=8, max_lines=30, interactive=False, label="config.yaml")

    @property
    def inputs(self) -> list[Any]:
        """What `check`, `try_step` and `start` take."""
        chosen = [self.system, self.recipe, self.fragment, self.weights, self.data, self.base, self.lines]
        return [*chosen, *self.controls.values()]

    def connect(self, blocks: gr.Blocks, tabs: gr.Tabs, watch: WatchTab) -> None:
        """Say what happens when."""
        shown = [self.base, self.about, *self.groups, *self.controls.values()]
        systems = self.system.input(self._choose_system, self.system, self.recipe, show_progress="hidden")
        # two systems have recipes of one name, so it is not the name's change that counts
        for event in (systems.then, self.recipe.input, blocks.load):
            first = event(self._show, [self.system, self.recipe], shown, show_progress="hidden")
            first.then(
                self._show_rest,
                [self.system, self.recipe, self.base],
                shown,
                show_progress="hidden",
                concurrency_limit=2,
            )
        self.check_button.click(self._check, self.inputs, [self.answer, self.config], show_progress="hidden")
        self.try_button.click(self._try_step, self.inputs, [self.answer, self.config], show_progress="hidden")
        self.start_button.click(
            self._start, self.inputs, [self.answer, watch.run, tabs], show_progress="hidden"
        ).success(watch.refresh, watch.inputs, watch.outputs, show_progress="hidden")

    def _choose_system(self, system: str) -> Any:
        names = list(one_line(lambda: self.places.recipes(system)))
        return gr.update(choices=names, value=_smoke(names))

    def _show(self, system: str, recipe: str, request: gr.Request) -> list[Any]:
        """Show what the recipe's file says, at once."""
        file = one_line(lambda: self.places.recipe(system, recipe))
        self._shown[request.session_hash] = file
        config = self._complete.get(_marks([file])) or safe_load(file.read_text(encoding="utf-8")) or {}
        return [config, said("calm", first_comment(file)), *self._updates(Form(config), None)]

    def _show_rest(self, system: str, recipe: str, base: Mapping[str, Any], request: gr.Request) -> list[Any]:
        """Read the complete config, which takes seconds, and show the controls that the file does not name."""
        file = one_line(lambda: self.places.recipe(system, recipe))
        problem = ""
        try:
            config = self._read([file])
        except ValueError as error:
            problem = str(error)
        unchanged = [gr.skip()] * (2 + len(self.groups) + len(self.controls))
        if self._shown.get(request.session_hash) != file:  # another recipe was chosen in the meantime
            return unchanged
        if problem:
            return [gr.skip(), said("bad", problem), *unchanged[2:]]
        return unchanged if config == base else [config, gr.skip(), *self._updates(Form(config), Form(base))]

    def _read(self, configs: list[Path]) -> dict[str, Any]:
        """The complete config of the server's own files, kept while they stay as they are.

        Raises:
            ValueError: what the parser says against them.
        """
        marks = _marks(configs)
        with self._reading[marks]:  # a second page waits for what the first one reads
            if marks not in self._complete:
                # whatever they hold is the server's own
                self._complete[marks] = safe_load(self.trainings.parse(configs, {})) or {}
        return self._complete[marks]

    def _updates(self, form: Form, before: Form | None) -> list[Any]:
        updates = []
        seen: set[str] = set()
        for control in CONTROLS:
            visible, value = form.key_of(control) is not None, form.value_of(control)
            seen |= {control.group} if visible else set()
            same = before is not None and (before.key_of(control) is not None, before.value_of(control)) == (
                visible,
                value,
            )
            updates.append(gr.skip() if same else gr.update(visible=visible, value=value))
        return [*(gr.update(visible=group in seen) for group in GROUPS), *updates]

    def _wanted(self, *inputs: Any) -> tuple[list[Path], dict[str, Any], list[str]]:
        """Config files and changes that the choices mean, and the strings in these that the server chose."""
        system, recipe, fragment, weights, data, base, lines, *values = inputs
        configs = [self.places.recipe(system, recipe)]
        if fragment != AS_RECIPE:
            configs.append(self.places.fragment(fragment))
        given = dict(zip(self.controls, values, strict=True))
        changes = Form(base).changes(given, lines or "", self.places.rules())
        chosen = list(strings([entry for _, entry in OPTIONAL.values()]))
        if weights:
            chosen.append(str(choose(self.places.weights(), weights, "weights")))
            changes["init_from"] = chosen[-1]
        if data != AS_RECIPE:
            chosen.append(str(choose(self.places.data_folders(), data, "data folder")))
            changes.setdefault("data", {}).setdefault("init_args", {})["root"] = chosen[-1]
        return configs, changes, chosen

    def _checked(self, *inputs: Any) -> tuple[list[Path], dict[str, Any], str]:
        """Config files, changes, and the complete config of them after every key and value has passed."""
        configs, changes, chosen = self._wanted(*inputs)

        def known() -> list[str]:
            return [*chosen, *strings(self._read(configs))]

        return configs, changes, self.trainings.check(configs, changes, self.places.rules(), known)

    def _check(self, *inputs: Any) -> Iterator[list[Any]]:
        one_line(lambda: self._wanted(*inputs))
        yield [said("busy", "Reading the config ..."), gr.skip()]
        try:
            *_, text = self._checked(*inputs)
        except ValueError as error:
            yield [said("bad", str(error)), gr.skip()]
        else:
            yield [said("good", "Every key and value is understood."), text]

    def _try_step(self, *inputs: Any) -> Iterator[list[Any]]:
        for shown in self._check(*inputs):
            yield shown
        if not isinstance(shown[1], str):
            return
        yield [said("busy", "Building it; training, saving, loading and predicting once ..."), gr.skip()]
        with tempfile.TemporaryDirectory(dir=self.places.temp) as folder:
            config = Path(folder) / "recipe.yaml"
            config.write_text(shown[1], encoding="utf-8")
            code, text = self.trainings.call("doctor", "--config", str(config))
        rows = [" ".join(line.split()) for line in text.splitlines() if "recipe:" in line or "error:" in line]
        yield [said("good" if code == 0 else "bad", " · ".join(rows) or last_error(text)), gr.skip()]

    def _start(self, *inputs: Any) -> Iterator[list[Any]]:
        one_line(lambda: self._wanted(*inputs))
        yield [said("busy", "Reading the config ..."), gr.skip(), gr.skip()]

        def begin() -> str:
            configs, changes, _ = self._checked(*inputs)
            run = self.places.new_run(*inputs[:2])
            self.trainings.start(configs, changes, run, "page")
            return run

        run = one_line(begin)
        runs = self.places.list_runs()
        yield [said("good", f"Started {run}"), gr.update(choices=runs, value=run), gr.update(selected="watch")]


def _component(control: Control) -> Any:
    label = f"{control.label} ({control.info})" if control.info else control.label
    common: dict[str, Any] = {"label": label, "visible": False, "min_width": 120}
    if control.kind == "switch":
        return gr.Checkbox(**common)
    if control.kind == "choice":
        return gr.Dropdown(list(control.choices), allow_custom_value=True, **common)
    if control.kind == "many":
        return gr.CheckboxGroup(list(control.choices), **common)
    if control.kind == "text":
        return gr.Textbox(**common)
    return gr.Number(precision=0 if control.kind == "int" else None, **common)


def _smoke(names: list[str]) -> str:
    return next((name for name in names if name.startswith("smoke")), names[0])


def _marks(files: list[Path]) -> Marks:
    return tuple((file, file.stat().st_mtime_ns) for file in files)
