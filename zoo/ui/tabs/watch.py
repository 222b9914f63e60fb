"""Following a training: how far it is, its curves, samples and log; stopping and resuming it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nicegui import ui

from zoo.runs.checkpoints import best_checkpoint
from zoo.runs.compare_runs import compare_runs, format_value
from zoo.runs.run_folder import LOG_NAME
from zoo.runs.run_info import RunInfo
from zoo.ui.board import Row
from zoo.ui.curves import Shown
from zoo.ui.jobs.trainings import BUSY
from zoo.ui.machine import Machine
from zoo.ui.readings import Speed, log_of, recent, speed_of, why_failed
from zoo.ui.tabs.charts import Charts, arrange
from zoo.ui.tabs.pieces import Answer, heading
from zoo.ui.tabs.samples import Samples
from zoo.ui.tabs.tables import Chip, progress, table, whose
from zoo.ui.visit import Visit, aside, one_line

REFRESH_SECONDS = 0.5
MAX_BESIDE = 5
_BROKEN = ("failed", "killed", "corrupt", "ended")
_DIFFERENCES = 200  # rows of a table


@dataclass(frozen=True)
class Reading:
    """What a run's folder says at this moment.

    Args:
        curves: by run, "" for the run itself and a short name for those beside it, as `Charts.draw` takes them.
    """

    curves: dict[str, tuple[dict[str, Shown], dict[str, Shown]]] = field(default_factory=dict)
    checkpoints: int = 0
    best: str = ""
    speed: Speed = field(default_factory=Speed)
    why: str = ""
    log: str = ""


class WatchTab:
    """The tab, made in the current slot."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        heading("Watch")
        self._offered: Any = None
        self._compared: Any = None
        self.run = (
            ui.select({}, label="Run", with_input=True, on_change=self._choose)
            .classes("zoo-wide")
            .props("dense outlined")
        )
        self.empty = ui.label().classes("zoo-said calm").props("role=status")
        with ui.element().classes("zoo-watch") as self.body:
            self._make_status()
            self._make_view()
            self.samples = Samples(visit)
            with ui.expansion("Log").classes("zoo-wide zoo-fold") as self.log_fold:
                with ui.element().classes("zoo-log").props('tabindex=0 role=region aria-label="Log"'):
                    self.log = ui.label()
        with ui.expansion("Machine", value=True).classes("zoo-wide zoo-fold"):
            Machine(visit, "watch")
        visit.on_choice(self._chosen)
        self._chosen()
        visit.every(REFRESH_SECONDS, "watch", self.refresh)

    def _make_status(self) -> None:
        with ui.row().classes("zoo-status"):
            self.state = Chip().props("role=status")
            self.whose = ui.label().classes("zoo-small")
            self.facts = ui.label().classes("zoo-small")
            with ui.row().classes("zoo-buttons"):
                trainings, session = self.visit.shared.trainings, self.visit.session
                self.stop = self._button("Stop", trainings.stop, "outline color=negative")
                self.resume = self._button("Resume", lambda run: trainings.resume(run, session), "outline")
                self.again = self._button("Queue again", lambda run: trainings.adopt(run, session), "outline")
                self.cancel = self._button("Cancel", trainings.cancel, "outline color=negative")
        self.bar = ui.linear_progress(0.0, show_value=False, size="10px").props('rounded aria-label="Progress"')
        with ui.row().classes("zoo-progress"):
            self.progress = ui.label()
            self.left = ui.label()
            self.best = ui.label()
        self.folder = ui.label().classes("zoo-small zoo-path")
        self.why = Answer()

    def _make_view(self) -> None:
        with ui.row().classes("zoo-view"):
            self.wanted = ui.input("Filter metrics", on_change=self._filter).props("dense outlined clearable")
            with ui.element().classes("zoo-smoothing"):
                said = ui.label("Smoothing").classes("zoo-small")
                self.smoothing = ui.slider(min=0, max=0.99, step=0.01, value=0).props("dense label")
                self.smoothing.props["aria-label"] = said.text
            self.log_scale = ui.switch("Log scale")
            self.beside = ui.select({}, label="Other runs", multiple=True, on_change=self._lay_over)
            self.beside.props("dense outlined use-chips").classes("zoo-beside")
        with ui.expansion("Differences of the configs").classes("zoo-wide zoo-fold") as self.differences:
            self.table = ui.element()
        self.nothing = ui.label("No values yet: the first ones come after some batches.").classes("zoo-small")
        self.charts = Charts()

    def _button(self, name: str, action: Callable[[str], None], props: str) -> ui.button:
        async def act() -> None:
            run = self.visit.run
            button.set_enabled(False)
            await one_line(aside(action, run))
            await self.refresh()

        button = ui.button(name, on_click=act).props(f"no-caps dense {props}")
        return button

    def _choose(self) -> None:
        if self.run.value and self.run.value != self.visit.run:
            self.visit.choose(self.run.value)

    def _chosen(self) -> None:
        """Another run is looked at: nothing of the former one stays on the page."""
        self._offered = None
        self._offer(self.visit.shared.board.rows)
        self.beside.set_value([name for name in self.visit.beside if name in self.beside.options])
        self.body.set_visibility(False)
        self.log.set_text("")
        self.charts.show({}, "")

    def _offer(self, rows: Mapping[str, Row]) -> None:
        """Lists of runs, the newest first; one that is open is left alone."""
        run = self.visit.run
        names = {name: f"{name}{f' · {row.label}' if row.label else ''} · {row.word}" for name, row in rows.items()}
        offered = (run, tuple(names.items()))
        if offered == self._offered or self.run.is_showing_popup or self.beside.is_showing_popup:
            return
        self._offered = offered
        self.run.set_options({run: run, **names} if run else names, value=run or None)
        system = run.partition("/")[0]
        others = {name: _short(name, run) for name in rows if name != run}
        alike = {name: short for name, short in others.items() if name.startswith(f"{system}/")}
        alike |= {name: others[name] for name in self.visit.beside if name in others}
        self.beside.set_options(alike, value=[name for name in self.beside.value if name in alike])

    def _lay_over(self) -> None:
        self.visit.beside = list(self.beside.value)[:MAX_BESIDE]
        if len(self.beside.value) > MAX_BESIDE:
            ui.notify(f"At most {MAX_BESIDE} other runs at a time")
            self.beside.set_value(self.visit.beside)

    def _filter(self) -> None:
        self.charts.filter(self.wanted.value or "")

    async def refresh(self) -> None:
        """Show the run as it is; what has not changed is left alone."""
        run, rows = self.visit.run, self.visit.shared.board.rows
        self._offer(rows)
        row = rows.get(run)
        self.body.set_visibility(row is not None)
        self.empty.set_visibility(row is None)
        if row is None:
            self.empty.set_text(_advice(run, bool(rows)))
            return
        smoothing = round(float(self.smoothing.value or 0), 2)
        reading = await one_line(aside(self._read, row, smoothing, self.log_fold.value))
        if reading is None or run != self.visit.run:
            return
        self._show_status(row, reading)
        self.log.set_text(reading.log)
        metrics = list(dict.fromkeys(metric for found, _ in reading.curves.values() for metric in found))
        self.nothing.set_visibility(not metrics)
        self.charts.show(arrange(metrics, row.run.monitor), f"/_zoo/curves/{run}")
        self._filter()
        self.charts.draw(reading.curves, bool(self.log_scale.value))
        await self._compare(run)

    def _read(self, row: Row, smoothing: float, with_log: bool) -> Reading:
        """Read what is shown; runs in a thread."""
        board, places = self.visit.shared.board, self.visit.shared.places
        try:
            folder = places.run(row.name)
        except ValueError:  # deleted since the board has listed it
            return Reading()
        curves = {}
        for name in [row.name, *self.visit.beside]:
            if name in board.rows:
                found = board.metrics.shown(board.rows[name].run.folder, smoothing)
                raw = board.metrics.shown(board.rows[name].run.folder) if smoothing else {}
                curves[_short(name, row.name) if self.visit.beside else ""] = (found, raw)
        best = best_checkpoint(folder, row.run.mode) if row.run.best is not None else None
        return Reading(
            curves,
            len(places.checkpoints(row.name)),
            best.name if best else "",
            speed_of(recent(folder / LOG_NAME)) if row.word in ("running", "active") else Speed(),
            why_failed(folder) if row.word in _BROKEN else "",
            log_of(folder, row.word in _BROKEN) if with_log else self.log.text,
        )

    def _show_status(self, row: Row, reading: Reading) -> None:
        state, run = row.state, row.run
        self.state.show(row.word)
        self.whose.set_text(f"started by {whose(row, self.visit.session)}")
        place = [f"place {row.position} in the queue"] if row.position else []
        self.facts.set_text(" · ".join([*place, f"{reading.checkpoints} checkpoints"]))
        self.stop.set_enabled(state == "running")
        self.resume.set_enabled(state not in (*BUSY, "waiting") and reading.checkpoints > 0)
        self.again.set_visibility(state == "waiting")
        self.cancel.set_visibility(state in ("queued", "waiting"))
        self.cancel.set_enabled(True)
        self.again.set_enabled(True)
        share = share_of(run)
        self.bar.set_visibility(share is not None)
        self.bar.set_value(round(share or 0.0, 3))
        percent = "" if share is None else f" · {int(100 * share)} %"
        self.progress.set_text(f"step {progress(row)}{percent}")
        parts = [reading.speed.rate, f"{reading.speed.left} left" if reading.speed.left else ""]
        self.left.set_text(" · ".join(part for part in parts if part))
        self.best.set_text(best_in_words(run, reading.best))
        work = self.visit.shared.places.work
        self.folder.set_text(str(run.folder.relative_to(work) if run.folder.is_relative_to(work) else run.folder))
        if self.why.text != reading.why:
            self.why.say("bad", reading.why)

    async def _compare(self, run: str) -> None:
        """The table of differences, made anew when other runs are laid over."""
        names = [run, *self.visit.beside]
        if names == self._compared:
            return
        self._compared = names
        self.differences.set_visibility(len(names) > 1)
        self.table.clear()
        rows = self.visit.shared.board.rows
        if len(names) > 1 and all(name in rows for name in names):
            folders = [rows[name].run.folder for name in names]
            found = await one_line(aside(compare_runs, folders, self.visit.shared.places.runs))
            if found is None or names != self._compared:
                return
            cells = [[key, *map(format_value, values)] for key, values in found.config.items()][:_DIFFERENCES]
            with self.table:
                if cells:
                    table(["key", *(_short(name, run) for name in names)], cells, "Differences of the configs")
                else:
                    ui.label("Their configs are the same.").classes("zoo-small")


def share_of(run: RunInfo) -> float | None:
    """How much of a run is done, 0 to 1; None when nothing limits it by steps or epochs."""
    if run.state == "finished":
        return 1.0
    if run.total:
        return min(run.step / run.total, 1.0)
    return min(max(run.epoch - 1, 0) / run.epochs, 1.0) if run.epochs else None


def best_in_words(run: RunInfo, checkpoint: str) -> str:
    """The best value of the monitored metric, when it was reached, and what was kept of it."""
    if run.best is None:
        return ""
    at = "" if run.best_step is None else f" at step {run.best_step:,}"
    return f"best {run.monitor} {run.best:.5g}{at}{f' ({checkpoint})' if checkpoint else ''}"


def _short(name: str, beside: str) -> str:
    """A run's name without the system, where both are of the same one."""
    system, _, rest = name.partition("/")
    return rest if beside.startswith(f"{system}/") else name


def _advice(run: str, any_run: bool) -> str:
    if run:
        return f"{run} is not there (any more), or begins just now."
    return "Choose a run above." if any_run else "No run yet: start one in the tab Train."
