"""The tab Train in a browser on a busy machine: what is shown at the press is trained, whatever was switched."""

import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.browser import NARROW, PATIENCE, WIDE, barriers, busy, enter, keep, kill_trainings, too_wide
from tests.ui.serving import Server, started
from zoo.common.configs import load_recipe, load_yaml
from zoo.common.systems import first_comment, list_systems, recipe_root
from zoo.ui.forms.controls import CONTROLS
from zoo.ui.forms.draft import Draft, key_of
from zoo.ui.forms.values import flatten, read_value, same

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")

pytestmark = pytest.mark.browser

# `zoo ui` whose parser lays files over each other at once, and whose trainings write their config and end.
SERVER = """
import sys, types, yaml
from pathlib import Path
from zoo.common.configs import load_recipe
from zoo.ui.forms.values import merged
from zoo.ui.jobs.commands import Commands
from zoo.ui.jobs import trainings
import time

def parse(self, configs, changes):
    config = {"samples": {"items": 4, "seed": 0}, "trainer": {"devices": "auto"}}
    for file in configs:
        config = merged(config, load_recipe(file))
    time.sleep(0.3 if changes else 0.8)
    return yaml.safe_dump(merged(config, changes))

Commands.parse = parse
first = trainings.Trainings.__init__
def init(self, places, secrets=(), program=None, **more):
    first(self, places, secrets, (sys.executable, str(Path("stand_in.py").resolve())), **more)
trainings.Trainings.__init__ = init
from zoo.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
STAND_IN = """
import sys
from pathlib import Path
from zoo.common.configs import load_recipe
from zoo.ui.forms.values import merged
import yaml
args, config = sys.argv[1:], {}
for flag, file in zip(args, args[1:]):
    if flag == "--config":
        config = merged(config, load_recipe(Path(file)))
folder = next(Path(a.partition("=")[2]) for a in args if a.startswith("--trainer.default_root_dir="))
(folder / "config.yaml").write_text("# recipe: " + "/".join(folder.parts[-3:-1]) + "\\n" + yaml.safe_dump(config))
"""
NUMBERS = {
    "Steps": 9,
    "Batch size": 8,
    "Log interval": 50,
    "Seed": 99,
    "Checkpoint interval": 99,
    "Gradient clipping": 9,
}
# What the page shows, read in the moment of the press.
PRESS = """() => {
    const shown = {};
    for (const e of document.querySelectorAll('.train input[aria-label]'))
        if (!e.closest('.hidden')) shown[e.getAttribute('aria-label')] = e.value;
    for (const e of document.querySelectorAll('.train [role=switch]'))
        if (!e.closest('.hidden')) shown[e.getAttribute('aria-label')] = e.getAttribute('aria-checked') === 'true';
    const start = [...document.querySelectorAll('.train-buttons button')].find(e => e.textContent.includes('Start'));
    const ready = start !== undefined && !start.disabled && !start.closest('[inert]');
    if (ready) start.click();
    return {ready, shown};
}"""
SETTLED = ".train-buttons:not([inert])"
STATED = {control.label: control for control in CONTROLS}


@pytest.fixture
def quick_server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "serve.py").write_text(SERVER)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    program = (sys.executable, str(tmp_path / "serve.py"))
    yield from started(tmp_path, "--trainings_at_once", "4", "--max_trainings", "50", program=program)
    kill_trainings(tmp_path)


@pytest.fixture
def real_server(tmp_path: Path) -> Iterator[Server]:
    yield from started(tmp_path, "--max_trainings", "50")
    kill_trainings(tmp_path)


def pick(page: Any, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label, exact=True).click()
    page.get_by_role("option", name=re.compile(rf"^{re.escape(option)}( |$)")).first.click()


def write(page: Any, label: str, text: str) -> None:
    """Write into a field until it is seen there: a menu that closes may take the focus from who types at once."""
    field = page.get_by_label(label, exact=True)
    field.fill(text)
    while field.input_value() != text:
        field.fill(text)


def ready(page: Any, recipe: Path) -> None:
    """Wait as a patient user does: until the form of the recipe is there and its buttons are."""
    page.locator(".train-about").get_by_text(first_comment(recipe)[:40]).wait_for()
    page.locator(f"{SETTLED} button:not([disabled])").first.wait_for()


def read_run(folder: Path) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE / 1000
    while not (folder / "config.yaml").is_file():
        assert time.monotonic() < end, list(folder.iterdir())
        time.sleep(0.1)
    time.sleep(0.1)
    text = (folder / "config.yaml").read_text()
    assert f"# recipe: {folder.parts[-3]}/{folder.parts[-2]}" in text
    return load_yaml(text)


def compare(run: str, folder: Path, shown: dict[str, Any], base: dict[str, Any] | None) -> None:
    """A run is what was shown: recipe, every field, and nothing else.

    Args:
        base: the recipe's complete config; None to compare the fields alone.
    """
    system, recipe, _ = run.split("/")
    assert (shown["System"].partition(" ")[0], shown["Recipe"]) == (system, recipe)
    config = flatten(read_run(folder))
    keys = {}
    draft = Draft(system, recipe, (), load_yaml((folder / "config.yaml").read_text()))
    for label, text in shown.items():
        key = key_of(STATED[label], draft.values) if label in STATED else None
        if key is None or isinstance(text, bool) or not draft.has(key):
            continue
        keys[key] = None if text in ("", "not set") else read_value(text)
        assert same(draft.value(key), keys[key]), (run, label, text, draft.value(key))
    if base is not None:
        rest = {key for key in {*config, *flatten(base)} if key not in keys}
        differing = {key for key in rest if not same(config.get(key), flatten(base).get(key))}
        assert differing == set(), (run, shown)


def walk(page: Any, server: Server, turns: int, starts: int, real: bool) -> None:
    """Go from recipe to recipe, edit, and press Start with and without patience, until there were enough starts."""
    seed = int(time.time())
    print(f"seed {seed}")
    luck = random.Random(seed)
    recipes = {system.name: [r for r in system.recipes if r.stem.startswith("smoke")] for system in list_systems()}
    runs = server.folder / "runs"
    seen: set[str] = set()
    recipe = Path()
    for turn in range(turns):
        system = luck.choice([name for name in recipes if recipes[name] and name != recipe.parent.name])
        recipe = recipes[system][0]
        patient = turn % 3 == 0
        if patient or real:  # a list takes no other choice while the server still owes an answer to the former one
            page.locator(SETTLED).first.wait_for()
        pick(page, "System", system)
        if patient or real:
            ready(page, recipe)
        for label in luck.sample(list(NUMBERS), 2):
            field = page.get_by_label(label, exact=True)
            with suppress(sync_api.Error):  # the form may be replaced at this moment, or have no such field
                value = 1 if real and label == "Steps" else luck.randint(1, NUMBERS[label])
                field.fill(str(value), timeout=2000 if patient else 300)
        if not patient and luck.random() < 0.5 and not real:
            continue  # on to the next, with a parser at work
        pressed = page.evaluate(PRESS)
        assert pressed["ready"] or not (patient or real)
        if not pressed["ready"]:
            continue
        end = time.monotonic() + PATIENCE / 1000
        while not (new := names(runs) - seen):
            assert time.monotonic() < end, page.locator(".train").inner_text()
            page.wait_for_timeout(100)
        (run,) = new
        seen |= new
        page.locator('[role=tab][aria-selected=true]:has-text("Watch")').wait_for()
        written = load_recipe(recipe_root() / run.split("/")[0] / f"{run.split('/')[1]}.yaml")
        compare(run, runs / run, pressed["shown"], None if real else written)
        page.get_by_role("tab", name="Train").click()
        page.get_by_role("combobox", name="System", exact=True).wait_for()
    assert len(seen) >= starts, seen


def names(runs: Path) -> set[str]:
    return {str(path.parent.relative_to(runs)) for path in runs.glob("*/*/*/process.json")}


def test_what_is_shown_is_what_is_trained(quick_server: Server, browser: Any) -> None:
    problems: list[str] = []
    page = enter(browser, quick_server, problems)
    page.get_by_role("tab", name="Train").click()
    with busy():
        walk(page, quick_server, turns=20, starts=7, real=False)
    assert problems == []


def test_a_form_takes_no_press_once_another_is_chosen(quick_server: Server, browser: Any) -> None:
    problems: list[str] = []
    page = enter(browser, quick_server, problems)
    page.get_by_role("tab", name="Train").click()
    pick(page, "System", "hifigan")
    ready(page, recipe_root() / "hifigan" / "smoke.yaml")
    server = psutil.Process(quick_server.process.pid)
    for label, option in (("System", "flow"), ("Machine", "cpu")):
        server.suspend()
        pick(page, label, option)
        early = page.evaluate(PRESS)
        server.resume()
        assert not early["ready"]
        ready(page, recipe_root() / "flow" / "smoke.yaml")
    assert page.evaluate(PRESS)["ready"]
    page.locator('[role=tab][aria-selected=true]:has-text("Watch")').wait_for()
    assert {run.rpartition("/")[0] for run in names(quick_server.folder / "runs")} == {"flow/smoke"}
    assert problems == []


@pytest.mark.slow
def test_twenty_real_trainings(real_server: Server, browser: Any) -> None:
    """Twenty starts on a busy machine; in the end the server is as it was."""
    problems: list[str] = []
    page = enter(browser, real_server, problems)
    page.get_by_role("tab", name="Train").click()
    process = psutil.Process(real_server.process.pid)
    before = process.memory_info().rss
    with busy():
        walk(page, real_server, turns=20, starts=20, real=True)
    end = time.monotonic() + 900
    while process.children():
        assert time.monotonic() < end
        page.wait_for_timeout(1000)
    print(f"the server's memory: {before / 2**20:.0f} MiB before, {process.memory_info().rss / 2**20:.0f} MiB after")
    assert problems == []


def test_the_form_is_for_everyone(quick_server: Server, browser: Any) -> None:
    """Errors at their field, differences, the tree of keys; no serious barrier, no scrolling sideways on a phone."""
    problems: list[str] = []
    page = enter(browser, quick_server, problems)
    page.get_by_role("tab", name="Train").click()
    pick(page, "System", "flow")
    ready(page, recipe_root() / "flow" / "smoke.yaml")
    begun = time.monotonic()
    pick(page, "System", "hifigan")
    page.get_by_text("HiFi-GAN, tiny nets").wait_for()
    print(f"switch of recipe {time.monotonic() - begun:.2f} s")
    pick(page, "System", "flow")
    ready(page, recipe_root() / "flow" / "smoke.yaml")
    write(page, "Batch size", "0")
    page.get_by_role("alert").get_by_text("expected 1 or more, not 0").wait_for()
    write(page, "Steps", "7")
    write(page, "Learning rate", "1e-4")
    page.get_by_role("button", name="Every key").click()
    page.get_by_label("Search keys").fill("decay")
    page.locator(".train-tree .q-tree__node-header", has_text="decay: 0.99").click()
    page.get_by_label("Value (YAML)").fill("0.5")
    page.locator(".train-differences td", has_text="decay").wait_for()
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        page.wait_for_timeout(500)
        keep(page, f"train_{size['width']}")
        assert (barriers(page), too_wide(page)) == ([], 0)
    write(page, "Batch size", "8")
    page.get_by_role("button", name="Check", exact=True).click()
    page.get_by_role("status").get_by_text("Every key and value is understood.").wait_for()
    edited = [row.split("\t")[0] for row in page.locator(".train-differences tr").all_inner_texts()[1:]]
    assert len(edited) == 4, edited
    assert problems == []
