"""The page itself: a header with the load of the machine, and four tabs."""

from __future__ import annotations

from pathlib import Path

from nicegui import ui

from zoo.ui.run_index import ACTIVE_STATES
from zoo.ui.state import REFRESH_SECONDS, AppState, PageState
from zoo.ui.tabs.predict import PredictTab
from zoo.ui.tabs.runs import RunsTab
from zoo.ui.tabs.train import TrainTab
from zoo.ui.tabs.watch import WatchTab

STATIC = Path(__file__).parent / "static"
TABS = {"train": TrainTab, "watch": WatchTab, "runs": RunsTab, "predict": PredictTab}


def build_page(app: AppState, tab: str, run: str) -> None:
    """Build the page for one client: by default on Watch while something trains, else on Train."""
    rows = app.index.rows
    active = next((name for name, row in rows.items() if row.state in ACTIVE_STATES), "")
    page = PageState(app, run or active or next(iter(rows), ""))
    for style in sorted(STATIC.glob("*.css")):
        ui.add_css(style.read_text(encoding="utf-8"))
    ui.colors(primary="#0f766e", negative="#b42318", positive="#0f766e")
    with ui.header().classes("zoo-head"):
        ui.html("<h1>zoo</h1>", sanitize=False)
        load = ui.label().classes("zoo-small zoo-load")
    first = tab if tab in TABS else "watch" if active or run else "train"
    with ui.tabs().props('inline-label no-caps align=left aria-label="Sections"') as page.tabs:
        for name in TABS:
            ui.tab(name, name.capitalize())
    page.tabs.set_value(first)
    with ui.element().classes("zoo-main"), ui.tab_panels(page.tabs, value=first, animated=False):
        for name, build in TABS.items():
            with ui.tab_panel(name):
                build(page)

    async def show_load() -> None:
        load.set_text(" · ".join(map(str, app.loads)))

    page.refresh_every(REFRESH_SECONDS, "", show_load)
    ui.context.client.on_delete(lambda: app.folders.delete_uploads(page.uploads))
