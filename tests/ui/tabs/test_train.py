"""The tab Train without a browser: which keys the controls edit."""

import pytest

pytest.importorskip("nicegui", reason="needs the extra `ui`")

from zoo.cli.config_worker import parse
from zoo.common.systems import recipe_paths
from zoo.ui.tabs.config_edits import flatten_values
from zoo.ui.tabs.config_form import CONTROLS

RECIPES = [f"{system}/smoke" for system in ("audiosr", "ci_llm", "compressed_ad", "flow", "hifigan")]
RECIPES.append("miipher/smoke_adapter")


def test_controls_find_their_keys_in_a_recipe_of_each_system() -> None:
    labels: set[str] = set()
    for name in RECIPES:
        values = flatten_values(parse([str(recipe_paths()[name])], {})["config"])
        keys = {control.label: control.find_key(values) for control in CONTROLS}
        assert {"Steps", "Batch size", "Learning rate", "Seed"} <= {label for label, key in keys.items() if key}, name
        labels |= {label for label, key in keys.items() if key}
    rare = {"Cache of the data", "Parallel", "Patience", "Compile the full graph", "Compile mode", "Guard's action"}
    rare |= {"Explosion threshold", "Reduction of the learning rate", "Guard's patience"}
    assert {control.label for control in CONTROLS} - labels <= rare
