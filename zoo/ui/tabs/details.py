"""One run: what it is and did, its notes, checkpoints and exports, and what can be done with it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from nicegui import ui

from zoo.runs.checkpoints import find_checkpoints, is_valid_checkpoint
from zoo.runs.run_folder import CONFIG_NAME
from zoo.runs.run_info import (
    SUMMARY_KEYS,
    flatten_config,
    format_age,
    format_duration,
    path_size,
    read_settings,
    select_loss_metrics,
    trained_seconds,
)
from zoo.ui.board import Row
from zoo.ui.exports import offers_onnx
from zoo.ui.jobs.commands import last_error
from zoo.ui.jobs.runs import rename, tag
from zoo.ui.tabs.pieces import Answer, heading
from zoo.ui.tabs.tables import Chip, Text, best, facts, in_units, progress, table, text_block, title, whose
from zoo.ui.visit import Visit, aside, one_line

WHOLE = "the newest sound one"
_LONGEST = 256 * 1024  # characters of a config on the page
_CHECKED_BYTES = 512 * 2**20  # a larger checkpoint is not read only to show a word
_WORKING = ("running", "stopping", "active", "queued", "waiting")


class Details:
    """The view of one run.

    Args:
        back: shows the list.
        delete: asks and deletes; tells whether the runs are gone.
    """

    def __init__(
        self, visit: Visit, back: Callable[[], None], delete: Callable[[Sequence[str]], Awaitable[bool]]
    ) -> None:
        self.visit = visit
        self.run = ""
        self._back = back
        self._delete = delete
        self._shown: Any = None
        self._sound: dict[tuple[str, int, int], bool] = {}
        self._told: str | None = None  # how the last export ended
        with ui.element().classes("zoo-run") as self.place:
            self._build()

    def _build(self) -> None:
        ui.button("All runs", icon="arrow_back", on_click=self._back).props("flat dense no-caps")
        with ui.row().classes("zoo-run-head"):
            self.name = Text("h2", "", "zoo-title").props("tabindex=-1")
            self.state = Chip()
        self.full_name = ui.label().classes("zoo-small")
        self.answer = Answer()
        with ui.row().classes("zoo-buttons"):
            self._button("Watch", lambda: self.visit.choose(self.run, "watch"))
            self.predict = self._button("Predict", lambda: self.visit.choose(self.run, "predict"))
            self.resume = self._button("Resume", self._resume)
            self.stop = self._button("Stop", self._stop)
            self.cancel = self._button("Cancel", self._cancel)
            self._button("Delete …", self._ask_to_delete).props("color=negative")
        with ui.element().classes("zoo-halves"):
            with ui.element():
                heading("Notes", 3)
                with ui.row().classes("zoo-notes"):
                    self.label = ui.input("Label").props("outlined dense maxlength=64").on("keydown.enter", self._note)
                    self.tags = ui.input("Tags, separated by commas").props("outlined dense maxlength=600")
                    self.tags.on("keydown.enter", self._note)
                    ui.button("Save notes", on_click=self._note).props("outline no-caps")
                heading("Facts", 3)
                self.facts = ui.element()
            with ui.element():
                heading("Checkpoints", 3)
                self.checkpoints = ui.element()
                with ui.row().classes("zoo-notes"):
                    self.checkpoint = ui.select({"": WHOLE}, value="", label="Checkpoint").props("outlined dense")
                    self.inspect = ui.button("Inspect", on_click=self._inspect).props("outline no-caps")
                self.report = ui.element()
                heading("Export", 3)
                with ui.row().classes("zoo-notes"):
                    self.ema = ui.checkbox("Averaged weights (EMA), where there are any", value=True)
                    self.onnx = ui.checkbox("ONNX as well")
                    self.export = ui.button("Export", on_click=self._export).props("outline no-caps")
                    self.end_export = ui.button("Cancel export", on_click=self._end_export)
                    self.end_export.props("outline no-caps color=negative")
                self.exporting = Answer()
                self.downloads = ui.element("ul").classes("zoo-exports")
        with ui.expansion("Config", on_value_change=self._show_config).classes("zoo-config") as self.config:
            self.config_text = ui.element()

    def _button(self, text: str, handler: Callable[[], Any]) -> ui.button:
        return ui.button(text, on_click=handler).props("outline no-caps")

    def show(self, run: str) -> None:
        """Show another run; its files are read by the next refresh."""
        self.run, self._shown, self._told = run, None, None
        self.config.set_value(False)
        for place in (self.facts, self.checkpoints, self.report, self.downloads, self.config_text):
            place.clear()
        self.answer.say("calm", "")
        self.exporting.say("calm", "")
        row = self.visit.shared.board.rows.get(run)
        if row is not None:
            self._show_row(row)
            self.label.set_value(row.label or "")
            self.tags.set_value(", ".join(row.tags))
        self.name.run_method("focus")

    def exports_now(self) -> bool:
        """Whether an export goes on, or has ended and that is not shown yet."""
        last = self.visit.shared.exports.last(self.run)
        return self.place.visible and last is not None and last.said != self._told

    async def refresh(self) -> None:
        """Show what has changed."""
        row = self.visit.shared.board.rows.get(self.run)
        if row is None:
            self._back()
            if self.run:
                ui.notify(f"{self.run} was deleted", type="warning")
            return
        self._show_row(row)
        await self._show_export()
        if self._shown is row:
            return
        former, self._shown = self._shown, row
        if former is not None and (former.label, former.tags) != (row.label, row.tags):  # by another page, too
            self.label.set_value(row.label or "")
            self.tags.set_value(", ".join(row.tags))
        found = await one_line(aside(self._read, row))
        if found is None or self.run != row.name:
            return
        values, files, onnx = found
        self.onnx.set_visibility(onnx)
        if not onnx:
            self.onnx.set_value(False)
        self.facts.clear()
        with self.facts:
            facts({**values, "Size": in_units(row.size), "Owner": whose(row, self.visit.session)})
        await self._show_checkpoints(files)

    def _show_row(self, row: Row) -> None:
        self.name.text = title(row)
        self.full_name.set_text(row.name)
        self.state.show(row.word)
        busy = row.state in _WORKING
        self.resume.set_visibility(not busy and row.word not in ("finished", "empty"))
        self.stop.set_visibility(row.state == "running")
        self.cancel.set_visibility(row.state in ("queued", "waiting"))
        self.predict.set_visibility(row.run.step > 0)

    def _read(self, row: Row) -> tuple[dict[str, Any], list[tuple[Path, int, int]], bool]:
        """Facts of a run, its checkpoints with time and bytes, and whether its system writes ONNX."""
        flat = flatten_config(read_settings(row.run.folder))
        curves = self.visit.shared.board.metrics.read(row.run.folder)
        seconds = trained_seconds(row.run.folder)
        values: dict[str, Any] = {
            "Recipe": row.run.recipe,
            "Step": progress(row),
            "Time": "unknown" if seconds is None else format_duration(seconds),
            "Best": best(row) + (f" at step {row.run.best_step}" if row.run.best_step else ""),
            "Last sign of life": f"{format_age(row.run.changed)} ago" if row.run.changed else "none",
            **{name.capitalize(): flat[key] for name, key in SUMMARY_KEYS.items() if flat.get(key, "null") != "null"},
            **{f"Last {key}": f"{curves[key][-1][1]:.6g}" for key in select_loss_metrics(list(curves)) if curves[key]},
        }
        files = []
        for path in find_checkpoints(row.run.folder):
            files.append((path, path.stat().st_mtime_ns, path_size(path)))
        return values, files, offers_onnx(str(flat.get("model.class_path", "")))

    async def _show_checkpoints(self, files: list[tuple[Path, int, int]]) -> None:
        names = {"": WHOLE, **{path.name: path.name for path, _, _ in files}}
        if self.checkpoint.options != names:
            self.checkpoint.set_options(names, value=self.checkpoint.value if self.checkpoint.value in names else "")
        for control in (self.checkpoint, self.inspect, self.export):
            control.set_enabled(bool(files))
        self._list_checkpoints(files)
        run = self.run
        for path, changed, size in files:
            key = (str(path), changed, size)
            if size <= _CHECKED_BYTES and key not in self._sound:
                self._sound[key] = await aside(_soundness, path)
                if self.run != run:
                    return
                self._list_checkpoints(files)

    def _list_checkpoints(self, files: list[tuple[Path, int, int]]) -> None:
        self.checkpoints.clear()
        with self.checkpoints:
            if not files:
                ui.label("None yet: a run writes them as it trains.").classes("zoo-small")
                return
            rows = []
            for path, changed, size in files:
                known = self._sound.get((str(path), changed, size))
                word = {True: "valid", False: "CORRUPT", None: "checking …"}[known]
                if known is None and size > _CHECKED_BYTES:
                    word = "not checked; Inspect reads it"
                rows.append((path.name, in_units(size), word, f"{format_age(changed / 1e9)} ago"))
            table(("Checkpoint", "Size", "State", "Age"), rows, "Checkpoints")

    async def _note(self) -> None:
        places, run = self.visit.shared.places, self.run
        label = (self.label.value or "").strip() or None
        tags = [each.strip() for each in (self.tags.value or "").split(",") if each.strip()]

        def note() -> bool:
            rename(places, run, label)
            tag(places, run, tags)
            self.visit.shared.board.scan()
            return True

        if await one_line(aside(note)):
            self.answer.say("good", "Notes saved")
            await self.refresh()

    async def _resume(self) -> None:
        await self._do(
            self.visit.shared.trainings.resume, self.run, self.visit.session, said="It goes on, or is queued"
        )

    async def _stop(self) -> None:
        await self._do(self.visit.shared.trainings.stop, self.run, said="It saves and stops")

    async def _cancel(self) -> None:
        await self._do(self.visit.shared.trainings.cancel, self.run, said="It is out of the queue")

    async def _do(self, work: Callable[..., Any], *arguments: Any, said: str) -> None:
        def done() -> bool:
            work(*arguments)
            self.visit.shared.board.scan()
            return True

        if await one_line(aside(done)):
            self.answer.say("good", said)
            await self.refresh()

    async def _ask_to_delete(self) -> None:
        run = self.run
        if await self._delete([run]) and self.run == run:
            self._back()

    async def _inspect(self) -> None:
        places, run, name = self.visit.shared.places, self.run, self.checkpoint.value

        def inspected() -> tuple[int, str]:
            path = places.checkpoint(run, name) if name else places.run(run)
            code, text = self.visit.shared.trainings.call("inspect", str(path))
            return code, text.replace(f"{places.runs}/", "")

        self._report("Reading …")
        self.inspect.set_enabled(False)
        try:
            found = await one_line(aside(inspected))
        finally:
            self.inspect.set_enabled(True)
        if self.run != run:
            return
        if found is None:
            self.report.clear()
            return
        code, text = found
        self._report(text if code == 0 or "CORRUPT" in text or "valid" in text else last_error(text))

    def _report(self, text: str) -> None:
        self.report.clear()
        with self.report:
            text_block(text, "Report of inspect").props('aria-live="polite"')

    async def _export(self) -> None:
        exports, run = self.visit.shared.exports, self.run

        def begin() -> bool:
            name, ema, onnx = self.checkpoint.value or "", bool(self.ema.value), bool(self.onnx.value)
            exports.start(run, name, ema, onnx, self.visit.session)
            return True

        if await one_line(aside(begin)):
            await self._show_export()

    async def _end_export(self) -> None:
        self.visit.shared.exports.cancel(self.run)

    async def _show_export(self) -> None:
        exports, run = self.visit.shared.exports, self.run
        last, under_way = exports.last(run), exports.under_way(run)
        self.end_export.set_visibility(under_way)
        self.export.set_visibility(not under_way)
        if last is not None:
            self._told = last.said or None
            seconds = f"{time.time() - last.began:.0f} s"
            said = last.said or (f"cancelling {last.name}" if last.cancelled else f"writing {last.name}, {seconds}")
            kind = "busy" if under_way else "good" if last.sound else "calm" if last.cancelled else "bad"
            if self.exporting.text != said:
                self.exporting.say(kind, said)
        found = await one_line(aside(exports.finished, run))
        if found is None or self.run != run:
            return
        wanted = [(name, f"/_zoo/exports/{run}/{name}.zip", in_units(size)) for name, size in found.items()]
        if [getattr(item, "told", None) for item in self.downloads.default_slot.children] == wanted:
            return
        self.downloads.clear()
        with self.downloads:
            for told in wanted:
                with ui.element("li") as item:
                    ui.link(f"Download {told[0]}.zip", told[1]).props("download")
                    ui.label(told[2]).classes("zoo-small")
                item.told = told  # type: ignore[attr-defined]

    async def _show_config(self) -> None:
        self.config_text.clear()
        if not self.config.value:
            return
        places, run = self.visit.shared.places, self.run

        def read() -> str:
            file = places.run(run) / CONFIG_NAME
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else "no config yet"
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n…"

        text = await one_line(aside(read))
        if text is not None and self.run == run:
            with self.config_text:
                text_block(text, CONFIG_NAME)


def _soundness(path: Path) -> bool:
    try:
        return is_valid_checkpoint(path)
    except OSError:  # pruned meanwhile
        return False
