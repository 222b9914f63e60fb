"""Every tab of an empty page, and the tab Train: edited, started, stopped; what is shown at the press is trained."""

import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import PATIENCE, check_layout, open_page, pick
from tests.ui.serving import Server
from zoo.common.configs import load_yaml
from zoo.common.systems import first_comment, list_systems, recipe_root
from zoo.ui.processes.training_queue import read_record
from zoo.ui.tabs.config_edits import equal_values, flatten_values, read_value
from zoo.ui.tabs.config_form import CONTROLS

pytestmark = pytest.mark.browser
# the largest that every smoke recipe takes; the first stage of compressed_ad's has three steps
NUMBERS = {"Steps": 1, "Batch size": 4, "Log interval": 50, "Seed": 99, "Checkpoint interval": 99, "Warm-up steps": 2}
READY = ".train-buttons:not([inert]) button:not([disabled])"
# What the page shows, read in the moment of the press.
PRESS = """() => {
    const shown = {};
    for (const e of document.querySelectorAll('.train input[aria-label]'))
        if (!e.closest('.hidden')) shown[e.getAttribute('aria-label')] = e.value;
    const start = [...document.querySelectorAll('.train-buttons button')].find(e => e.textContent.includes('Start'));
    const ready = start !== undefined && !start.disabled && !start.closest('[inert]');
    if (ready) start.click();
    return {ready, shown};
}"""
# Types into a field in the moment it appears.
TYPE_AT_ONCE = """([label, text]) => new MutationObserver((changes, observer) => {
    const field = document.querySelector(`input[aria-label="${label}"]`);
    if (!field) return;
    observer.disconnect();
    field.value = text;
    field.dispatchEvent(new Event('input'));
}).observe(document.body, {subtree: true, childList: true})"""


def wait_for_form(page: Any, recipe: str) -> None:
    page.locator(".train-about").get_by_text(first_comment(recipe_root() / f"{recipe}.yaml")[:40]).wait_for()
    page.locator(READY).first.wait_for()


def write(page: Any, label: str, text: str) -> None:
    """Write into a field until it holds the text: a menu that closes may take the focus."""
    field = page.get_by_label(label, exact=True)
    while field.input_value() != text:
        field.fill(text)


def run_names(server: Server) -> set[str]:
    runs = server.folder / "runs"
    return {str(path.parent.relative_to(runs)) for path in runs.glob("*/*/*/process.json")}


def wait_for_run(page: Any, server: Server, before: set[str]) -> str:
    end = time.monotonic() + PATIENCE / 1000
    while not (new := run_names(server) - before):
        assert time.monotonic() < end, page.locator(".train").inner_text()
        page.wait_for_timeout(100)
    (run,) = new
    return run


def test_an_empty_page_states_what_to_do(server: Server, browser: Any) -> None:
    problems: list[str] = []
    page = open_page(browser, server, problems)
    assert page.evaluate("document.documentElement.lang") == "en-US"
    page.get_by_role("tab", name="Train").focus()
    for tab in ("Train", "Watch", "Runs", "Predict"):  # by the keyboard
        if tab != "Train":
            page.keyboard.press("ArrowRight")
            page.keyboard.press("Enter")
        page.locator(".q-tab-panel").get_by_role("heading", name=tab, exact=True).wait_for()
        check_layout(page, f"empty_{tab.lower()}")
        page.get_by_role("tab", name=tab).focus()
    assert problems == []


def test_a_recipe_is_edited_started_and_stopped(server: Server, browser: Any) -> None:
    """In a folder that holds folders named like keys of the config."""
    problems: list[str] = []
    (server.folder / "data" / "speech").mkdir()
    page = open_page(browser, server, problems)
    wait_for_form(page, "hifigan/smoke")
    page.get_by_text("put their folder into data").wait_for()
    write(page, "Batch size", "0")
    page.get_by_role("alert").get_by_text("expected a number above 0").wait_for()
    write(page, "Batch size", "2")
    page.get_by_text("Every key and value is valid.").wait_for()
    write(page, "Steps", "100000")
    page.get_by_role("button", name="Every key").click()
    keys = page.get_by_label("Search keys")
    keys.fill("wandb.proj")
    page.evaluate(TYPE_AT_ONCE, ["wandb.project (YAML)", "trainer"])  # the name of a folder, and no path
    page.get_by_role("option", name="wandb.project", exact=True).click()
    page.locator(".train-differences").get_by_text("trainer", exact=True).wait_for()
    keys.fill("model.loss_weights.g/mel=30")
    page.keyboard.press("Enter")
    page.locator(".train-differences").get_by_text("g/mel").wait_for()
    page.get_by_role("listbox").wait_for(state="hidden", timeout=5000)
    page.get_by_text("Every key and value is valid.").wait_for()
    check_layout(page, "train")
    page.get_by_role("button", name="Start training").click()
    run = wait_for_run(page, server, set())
    folder = server.folder / "runs" / run
    page.get_by_role("button", name="Stop", exact=True).wait_for()
    page.get_by_text("of 100000").wait_for()
    while not list(folder.glob("metrics.csv")):
        page.wait_for_timeout(200)
    config = load_yaml((folder / "config.yaml").read_text())
    assert config["wandb"]["project"] == "trainer" and config["model"]["init_args"]["loss_weights"]["g/mel"] == 30
    assert config["data"]["init_args"]["batch_size"] == 2
    page.get_by_role("tab", name="Train").click()
    page.get_by_role("button", name="Start training").click()
    page.get_by_text("place 1 in the queue").wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_text("does not exist any more").wait_for()
    page.goto(f"{server.home}/?tab=watch&run={run}")
    page.get_by_role("button", name="Stop", exact=True).dblclick()
    page.get_by_role("dialog", name="Kill it?").get_by_role("button", name="Keep").click()
    page.locator(".zoo-status").get_by_text("stopped").wait_for()

    page.get_by_role("tab", name="Train").click()  # the page opens on what was used last
    pick(page, "System", "flow")
    wait_for_form(page, "flow/smoke")
    page.goto(server.home)
    page.get_by_role("tab", name="Train").click()
    wait_for_form(page, "flow/smoke")
    assert problems == []


@pytest.mark.slow
def test_a_form_takes_no_press_once_another_is_chosen(server: Server, browser: Any) -> None:
    problems: list[str] = []
    page = open_page(browser, server, problems)
    wait_for_form(page, "hifigan/smoke")
    process = psutil.Process(server.process.pid)
    for label, option in (("System", "flow"), ("Machine", "cpu")):
        process.suspend()
        pick(page, label, option)
        early = page.evaluate(PRESS)
        process.resume()
        assert not early["ready"]
        wait_for_form(page, "flow/smoke")
    assert run_names(server) == set() and problems == []


def check_run(server: Server, run: str, displayed: dict[str, str]) -> None:
    """A run's config is what the form has shown."""
    system, recipe, _ = run.split("/")
    assert (displayed["System"].partition(" ")[0], displayed["Recipe"]) == (system, recipe)
    file, end = server.folder / "runs" / run / "config.yaml", time.monotonic() + PATIENCE / 1000
    while not file.is_file():
        assert time.monotonic() < end, (file.parent / "console.log").read_text()
        time.sleep(0.2)
    text = file.read_text()
    assert f"# recipe: {system}/{recipe}\n" in text
    values = flatten_values(load_yaml(text))
    controls = {control.label: control.find_key(values) for control in CONTROLS}
    compared = {label: key for label, key in controls.items() if key is not None and label in displayed}
    assert len(compared) > 10
    for label, key in compared.items():
        if isinstance(values[key], bool):
            continue
        expected = None if displayed[label] == "not set" else read_value(displayed[label])
        assert equal_values(values[key], expected), (run, label, values[key], displayed[label])


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_twenty_starts_of_random_recipes_with_random_edits(server: Server, browser: Any) -> None:
    problems: list[str] = []
    page = open_page(browser, server, problems)
    print(f"seed {(seed := int(time.time()))}")
    rng = random.Random(seed)
    recipes = [path for system in list_systems() for path in system.recipes if path.stem.startswith("smoke")]
    runs: dict[str, dict[str, str]] = {}
    for _ in range(20):
        recipe: Path = rng.choice(recipes)
        page.get_by_role("tab", name="Train").click()
        page.locator(READY).first.wait_for()
        pick(page, "System", recipe.parent.name)
        page.locator(READY).first.wait_for()
        pick(page, "Recipe", recipe.stem)
        wait_for_form(page, f"{recipe.parent.name}/{recipe.stem}")
        for label in ["Steps", *rng.sample(list(NUMBERS)[1:], 2)]:
            if page.get_by_label(label, exact=True).count():
                if not page.get_by_label(label, exact=True).is_visible():
                    page.get_by_role("button", name="Intervals").click()
                write(page, label, str(rng.randint(1, NUMBERS[label])))
        page.wait_for_timeout(rng.choice([0, 1500]))  # before and after the parser has answered
        pressed = page.evaluate(PRESS)
        assert pressed["ready"], pressed
        page.locator('[role=tab][aria-selected=true]:has-text("Watch")').wait_for()
        field = page.get_by_role("combobox", name="Run", exact=True)
        while (run := field.input_value().partition(" ")[0]) in ("", *runs):
            page.wait_for_timeout(50)
        runs[run] = pressed["shown"]
    for run, displayed in runs.items():
        check_run(server, run, displayed)
    end = time.monotonic() + 600
    for run in runs:
        while (record := read_record(server.folder / "runs" / run)) is None or record.exit_code is None:
            assert time.monotonic() < end
            time.sleep(1)
        assert record.exit_code == 0, (run, (server.folder / "runs" / run / "console.log").read_text())
    assert problems == []
