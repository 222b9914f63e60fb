"""Audio, pictures and tables of a run's validations, by step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

from nicegui import events, ui

from zoo.runs.run_folder import MEDIA_NAME
from zoo.ui.run_files import Table, is_audio, sample_files, sample_steps
from zoo.ui.state import PageState
from zoo.ui.tabs.widgets import Heading, text_table


class Samples:
    """The samples of the page's run, made in the current slot; the newest until one plays or the slider moves."""

    def __init__(self, page: PageState) -> None:
        self.page = page
        Heading("Samples", 3)
        self.label = ui.label().classes("zoo-small").props("role=status")
        self.slider = ui.slider(min=0, max=0, step=1, value=0, on_change=self._move).props("markers snap")
        self.slider.props["aria-label"] = "Samples at step"
        self.box = ui.element().classes("zoo-samples")
        self._clear()
        page.refresh_every(1.0, "watch", self.refresh)

    def _clear(self) -> None:
        """Show nothing: the page shows another run."""
        self._run = self.page.run
        self._steps: list[str] = []
        self._step = ""
        self._is_following = True  # until a sound plays or the slider moves
        self._content: tuple[str, list[str], dict[str, Table]] = ("", [], {})
        self.box.clear()
        self.slider.set_visibility(False)
        self.label.set_text("No samples yet: they come with a validation.")

    async def refresh(self) -> None:
        """Look for new samples; what plays stays."""
        run = self.page.run
        if run != self._run:
            self._clear()
        row = self.page.app.index.rows.get(run)
        steps = [] if row is None else await asyncio.to_thread(sample_steps, row.info.folder)
        if run != self._run or not steps:
            return
        self._steps = steps
        if self._is_following or self._step not in steps:
            self._step = steps[-1]
        self.slider.props["max"] = len(steps) - 1
        await self._show()

    async def _move(self, event: events.ValueChangeEventArguments) -> None:
        index = int(event.value or 0)
        if index < len(self._steps) and self._steps[index] != self._step:  # else `_show` has moved it
            self._step, self._is_following = self._steps[index], index == len(self._steps) - 1
            await self._show()

    async def _show(self) -> None:
        run, step = self._run, self._step
        position = self._steps.index(step)
        newer = len(self._steps) - 1 - position
        self.slider.set_value(position)
        self.slider.set_visibility(len(self._steps) > 1)
        self.label.set_text(f"at step {int(step.removeprefix('step_')):,}{f' ({newer} newer)' if newer else ''}")
        names, tables = await asyncio.to_thread(sample_files, self.page.app.folders.runs / run, step)
        content = (step, names, tables)
        if content == self._content or (run, step) != (self.page.run, self._step):
            return
        self._content = content
        self.box.clear()
        with self.box:
            for name in names:
                self._add_card(f"/_zoo/media/{quote(run)}/{MEDIA_NAME}/{quote(step)}/{quote(name)}", name)
            for name, (columns, rows) in tables.items():
                with ui.element("figure").classes("zoo-sample wide"):
                    text_table(columns or ["empty"], [row for row in rows if row], name)
                    _add_caption(name)

    def _hold(self) -> None:
        self._is_following = False

    def _add_card(self, address: str, name: str) -> None:
        with ui.element("figure").classes("zoo-sample"):
            if is_audio(name):
                audio = ui.element("audio").props("controls preload=none")
                audio.props["src"], audio.props["aria-label"] = address, Path(name).stem
                audio.on("play", self._hold, args=[])
            else:
                with ui.element("a").props("target=_blank") as link:
                    link.props["href"] = address
                    picture = ui.element("img").props("loading=lazy")
                    picture.props["src"], picture.props["alt"] = address, Path(name).stem
            _add_caption(Path(name).stem)


def _add_caption(text: str) -> None:
    with ui.element("figcaption"):
        ui.label(text.replace("_", " "))
