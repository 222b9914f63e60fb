"""The page itself: a header and four tabs."""

from __future__ import annotations

from pathlib import Path

from nicegui import ui

from zoo.ui.tabs.machine import Machine
from zoo.ui.tabs.predict import PredictTab
from zoo.ui.tabs.runs import RunsTab
from zoo.ui.tabs.train import TrainTab
from zoo.ui.tabs.watch import WatchTab
from zoo.ui.visit import Shared, Visit

STATIC = Path(__file__).parent / "static"
TABS = {"train": "Train", "watch": "Watch", "runs": "Runs", "predict": "Predict"}
ACTIVE = ("running", "stopping", "active", "queued")


def show_page(shared: Shared, session: str, tab: str, run: str) -> None:
    """Build the page for one client.

    Args:
        tab: to open first; "" for Watch while something trains, else Train.
        run: to look at; "" for the one that trains, else the newest.
    """
    rows = shared.board.rows
    running = next((name for name, row in rows.items() if row.state in ACTIVE), "")
    chosen = run if run in rows else running or next(iter(rows), "")
    visit = Visit(shared, session, chosen)
    for style in sorted(STATIC.glob("*.css")):
        ui.add_css(style.read_text(encoding="utf-8"))
    ui.colors(primary="#0f766e", negative="#b42318", positive="#0f766e")
    with ui.header().classes("zoo-head"):
        ui.html("<h1>zoo</h1>", sanitize=False)
        Machine(visit)
    first = tab if tab in TABS else "watch" if running or run else "train"
    with ui.tabs().props('inline-label no-caps align=left aria-label="Sections"') as visit.tabs:
        for name, label in TABS.items():
            ui.tab(name, label)
    visit.tabs.set_value(first)
    makers = {"train": TrainTab, "watch": WatchTab, "runs": RunsTab, "predict": PredictTab}
    with ui.element().classes("zoo-main"), ui.tab_panels(visit.tabs, value=first, animated=False):
        for name, maker in makers.items():
            with ui.tab_panel(name):
                maker(visit)
