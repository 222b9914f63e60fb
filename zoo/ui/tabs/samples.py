"""Sounds, pictures and tables of a run's validations, by step."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from nicegui import events, ui

from zoo.ui.readings import MEDIA_TYPES, Table, samples_of, steps_of
from zoo.ui.tabs.pieces import heading
from zoo.ui.tabs.tables import table
from zoo.ui.visit import Visit, aside

Content = tuple[str, list[str], dict[str, Table]]


class Samples:
    """The samples of the run that is looked at, made in the current slot; the newest unless a person looks back."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        heading("Samples", 3)
        self.empty = ui.label("No samples yet: they come with a validation.").classes("zoo-small")
        with ui.row(wrap=False).classes("zoo-samples-head") as self.head:
            self.slider = ui.slider(min=0, max=0, step=1, value=0, on_change=self._moved).props("markers snap")
            self.slider.props["aria-label"] = "Samples after batch"
            self.label = ui.label().props("role=status")
            self.newest = ui.button("Newest", on_click=self._follow).props("outline no-caps dense")
        self.box = ui.element().classes("zoo-samples")
        self.forget()
        visit.every(1.0, "watch", self.refresh)

    def forget(self) -> None:
        """Begin anew: another run is looked at."""
        self._run = self.visit.run
        self._steps: list[str] = []
        self._step = ""  # the one that is shown
        self._following = True
        self._playing: set[str] = set()
        self._shown: Content = ("", [], {})
        self.box.clear()
        for element in (self.head, self.box):
            element.set_visibility(False)
        self.empty.set_visibility(True)

    async def refresh(self) -> None:
        """Look for new samples; what a person listens to stays."""
        run = self.visit.run
        if run != self._run:
            self.forget()
        if not run:
            return
        steps = await aside(self._list, run)
        if run != self.visit.run or not steps:
            return
        if steps != self._steps:
            self._steps = steps
            self.slider.props["max"] = len(steps) - 1
        if (self._following and not self._playing) or self._step not in steps:
            self._step = steps[-1]
        await self._show()

    def _list(self, run: str) -> list[str]:
        try:
            return steps_of(self.visit.shared.places.run(run))
        except ValueError:  # deleted
            return []

    async def _moved(self, event: events.ValueChangeEventArguments) -> None:
        index = int(event.value or 0)
        if 0 <= index < len(self._steps) and self._steps[index] != self._step:  # else it was moved by `_show`
            self._step, self._following = self._steps[index], index == len(self._steps) - 1
            self._playing.clear()
            await self._show()

    async def _follow(self) -> None:
        self._following = True
        self._playing.clear()
        await self.refresh()

    async def _show(self) -> None:
        run, step = self.visit.run, self._step
        self.slider.set_value(self._steps.index(step))
        behind = len(self._steps) - 1 - self._steps.index(step)
        more = f" ({behind} newer)" if behind else ""
        self.label.set_text(f"after batch {int(step.removeprefix('step_')):,}{more}")
        self.newest.set_enabled(behind > 0)
        content = (step, *await aside(self._read, run, step))
        if content == self._shown or (run, step) != (self.visit.run, self._step) or self._playing:
            return
        self._shown = content
        self.empty.set_visibility(False)
        self.head.set_visibility(True)
        self.box.set_visibility(True)
        self.box.clear()
        with self.box:
            _, names, tables = content
            for name in sorted(names, key=lambda name: (not is_sound(name), name)):
                self._card(f"/_zoo/media/{quote(run)}/{quote(step)}/{quote(name)}", name)
            for name, (columns, rows) in tables.items():
                with ui.element("figure").classes("zoo-sample wide"):
                    table(columns or ["empty"], [row for row in rows if row], name)
                    _caption(name)

    def _read(self, run: str, step: str) -> tuple[list[str], dict[str, Table]]:
        try:
            return samples_of(self.visit.shared.places.run(run), step)
        except (ValueError, OSError):  # deleted
            return [], {}

    def _card(self, address: str, name: str) -> None:
        with ui.element("figure").classes("zoo-sample"):
            if is_sound(name):
                sound = ui.element("audio").props("controls preload=none")
                sound.props["src"], sound.props["aria-label"] = address, Path(name).stem
                sound.on("play", lambda: self._playing.add(name), args=[])
                for end in ("pause", "ended"):
                    sound.on(end, lambda: self._playing.discard(name), args=[])
            else:
                with ui.element("a").props("target=_blank") as link:
                    link.props["href"] = address
                    picture = ui.element("img").props("loading=lazy")
                    picture.props["src"], picture.props["alt"] = address, Path(name).stem
            _caption(Path(name).stem)


def _caption(text: str) -> None:
    with ui.element("figcaption"):
        ui.label(text.replace("_", " "))


def is_sound(name: str) -> bool:
    """Whether a file of `MEDIA_TYPES` is one that is heard."""
    return MEDIA_TYPES[Path(name).suffix.lower()].startswith("audio/")
