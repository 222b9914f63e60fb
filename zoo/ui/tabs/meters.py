"""Meters of the processor, its memory and the GPUs."""

from __future__ import annotations

from nicegui import ui

from zoo.ui.machine import MachineLoad
from zoo.ui.state import LOAD_SECONDS, PageState

GIB = 2**30


class Meters:
    """Bars in the current slot, of a tab or, where they are small, of the header."""

    def __init__(self, page: PageState, tab: str = "") -> None:
        self.page = page
        self._box = ui.element().classes("zoo-machine" if tab else "zoo-load")
        self._names: list[str] = []
        self._meters: list[tuple[ui.label, ui.linear_progress]] = []
        page.refresh_every(LOAD_SECONDS, tab, self.refresh)

    async def refresh(self) -> None:
        """Show the load that was read last."""
        loads = self.page.app.loads
        if [load.name for load in loads] != self._names:
            self._names = [load.name for load in loads]
            self._box.clear()
            with self._box:
                self._meters = [_add_meter(name) for load in loads for name in (load.name, f"memory of {load.name}")]
        values = [value for load in loads for value in _meter_values(load)]
        for (label, bar), (share, text) in zip(self._meters, values, strict=True):
            label.set_text(text)
            bar.set_value(round(share, 2))


def _meter_values(load: MachineLoad) -> tuple[tuple[float, str], tuple[float, str]]:
    memory = f"{load.used_bytes / GIB:.1f} of {load.total_bytes / GIB:.1f} GiB"
    return (load.percent / 100, f"{load.percent:.0f} %"), (load.used_bytes / max(load.total_bytes, 1), memory)


def _add_meter(name: str) -> tuple[ui.label, ui.linear_progress]:
    with ui.element().classes("zoo-meter"):
        ui.label(name.partition(" of ")[0])
        text = ui.label().classes("zoo-meter-value")
        bar = ui.linear_progress(0.0, show_value=False, size="6px").props("rounded instant-feedback")
        bar.props["aria-label"] = name
    return text, bar
