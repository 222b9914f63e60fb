"""The tab Train without a browser: which keys the controls edit."""

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from zoo.cli.config_worker import parse
from zoo.common.systems import recipe_paths
from zoo.ui.tabs.config_edits import flatten_values
from zoo.ui.tabs.config_form import CONTROLS

SMOKE = {name: path for name, path in recipe_paths().items() if name.partition("/")[2].startswith("smoke")}


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
