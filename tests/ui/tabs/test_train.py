"""The tab Train without a browser: where it runs, how long it takes, which keys its controls edit."""

from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from tests.ui.conftest import make_run
from zoo.cli.config_worker import parse
from zoo.common.systems import recipe_paths
from zoo.runs.run_info import list_runs
from zoo.ui.folders import Folders
from zoo.ui.tabs.config_edits import ConfigEdits, flatten_values
from zoo.ui.tabs.config_form import CONTROLS, build_tree
from zoo.ui.tabs.train import PreviousRun, describe_device, describe_time, find_previous_run

SMOKE = {name: path for name, path in recipe_paths().items() if name.partition("/")[2].startswith("smoke")}


def age(folder: Path, seconds: int) -> None:
    """Let a run have taken so many seconds."""
    (folder / "train.log").write_text(
        f"2026-01-01 00:00:00,000 INFO fit: begins\n2026-01-01 00:00:{seconds:02d},000 INFO fit finished at step 10\n"
    )


def test_the_time_is_that_of_a_run_with_the_same_data(folders: Folders) -> None:
    """Not that of a run on other data, which may be a hundred times as large."""
    data = "{class_path: zoo.flow.ImageData, init_args: {root: a}}"
    for name, root in (("1", data), ("2", data.replace("root: a", "root: b"))):
        age(make_run(folders, f"flow/smoke/{name}", rows=10, data=root), 20)
    runs = list_runs(folders.runs)
    config = {"data": {"class_path": "zoo.flow.ImageData", "init_args": {"root": "a"}}}
    previous = find_previous_run(runs, "flow/smoke", config)
    assert previous is not None and previous.name == "flow/smoke/1"
    assert find_previous_run(runs, "flow/smoke", {"data": None}) is None
    assert find_previous_run(runs, "flow/base", config) is None
    assert (
        describe_time(PreviousRun("flow/smoke/1", 2.0), 40)
        == "On this machine about 1 min for 40 batches: 2 s a batch in 1."
    )
    assert "2 s a batch" in describe_time(PreviousRun("flow/smoke/1", 2.0), -1) and "How long" in describe_time(
        None, 40
    )


@pytest.mark.parametrize(
    ("accelerator", "gpus", "text"),
    [
        ("cpu", ["H100"], "Runs on the CPU"),
        ("auto", ["H100"], "Runs on the GPU (H100)"),
        ("auto", [], "a GPU would be used"),
        ("gpu", [], "Cannot run here"),
    ],
)
def test_the_device_is_described(accelerator: str, gpus: list[str], text: str) -> None:
    assert text in describe_device(accelerator, gpus)


def test_controls_find_their_keys_in_every_smoke_recipe() -> None:
    labels: set[str] = set()
    for name, path in SMOKE.items():
        values = flatten_values(parse([str(path)], {})["config"])
        keys = {control.label: control.find_key(values) for control in CONTROLS}
        assert {"Steps", "Batch size", "Learning rate", "Seed"} <= {label for label, key in keys.items() if key}, name
        labels |= {label for label, key in keys.items() if key}
    rare = {"Cache of the data", "Parallel", "Patience", "Compile the full graph", "Compile mode", "Guard's action"}
    rare |= {"Explosion threshold", "Reduction of the learning rate", "Guard's patience", "Frozen modules"}
    assert {control.label for control in CONTROLS} - labels <= rare


def test_the_tree_has_every_key_once_below_its_class() -> None:
    config = parse([str(recipe_paths()["flow/smoke"])], {})["config"]
    edits = ConfigEdits(config)
    keys = list(flatten_values(config))
    leaves, pending = [], build_tree(keys, edits)
    net = next(node for node in pending if node["label"] == "model")
    assert {"class_path", "net"} <= {node["label"] for node in net["children"]}
    while pending:
        node = pending.pop()
        pending += node.get("children", [])
        leaves += [node["id"].removeprefix("=")] if "value" in node else []
    assert sorted(leaves) == sorted(keys)
