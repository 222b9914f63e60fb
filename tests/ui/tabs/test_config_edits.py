"""Edits of a config: what they change, what follows, and where an error belongs."""

from typing import Any

import pytest

from zoo.common.configs import merge
from zoo.ui.tabs.config_edits import (
    ConfigEdits,
    as_text,
    equal_values,
    expand_key,
    find_key_in_message,
    flatten_values,
    read_value,
)

EMA = {"class_path": "zoo.training.EMA", "init_args": {"decay": 0.99, "modules": ["net"]}}
CONFIG: dict[str, Any] = {
    "seed_everything": 1,
    "trainer": {"max_steps": 10, "callbacks": [EMA, {"class_path": "zoo.training.EMA", "init_args": {"decay": 0.5}}]},
    "checkpoints": {"monitor": "val/x", "mode": "max"},
    "model": {"class_path": "zoo.flow.FlowTask", "init_args": {"weights": {"g/mel": 45.0}, "sizes": [1, 2]}},
    "data": {"class_path": "zoo.flow.ImageData", "init_args": {"root": None, "batch_size": 8}},
}


def merged(edits: ConfigEdits) -> dict[str, Any]:
    """The values of the config that `zoo fit` makes of the recipe and the changes."""
    return flatten_values(merge(CONFIG, edits.to_changes()))


@pytest.mark.parametrize(
    ("key", "value", "changes"),
    [
        ("seed_everything", 2, {"seed_everything": 2}),
        ("data.init_args.root", "data", {"data": {"init_args": {"root": "data"}}}),
        ("model.init_args.weights.new", 1, {"model": {"init_args": {"weights": {"new": 1}}}}),
        ("wandb.project", "zoo", {"wandb": {"project": "zoo"}}),
    ],
)
def test_an_edit_becomes_a_nested_change(key: str, value: Any, changes: dict[str, Any]) -> None:
    edits = ConfigEdits(CONFIG)
    edits.edit(key, value)
    assert edits.to_changes() == changes and edits.values[key] == value
    assert merged(edits) == flatten_values(CONFIG) | {key: value}
    assert [row[0] for row in edits.differences()] == [key]
    edits.reset(key)
    assert edits.to_changes() == {} and edits.values == flatten_values(CONFIG)


def test_a_list_with_an_edited_object_is_replaced_as_a_whole() -> None:
    edits = ConfigEdits(CONFIG)
    edits.edit("trainer.callbacks.EMA-2.init_args.decay", 0.9)
    edits.edit("trainer.max_steps", 5)
    assert edits.to_changes()["trainer"] == {
        "callbacks": [EMA, {"class_path": "zoo.training.EMA", "init_args": {"decay": 0.9}}],
        "max_steps": 5,
    }
    assert CONFIG["trainer"]["callbacks"][1]["init_args"]["decay"] == 0.5  # the recipe stays
    for key in ("trainer.callbacks.Nothing.init_args.x", "trainer.callbacks.EMA"):
        with pytest.raises(ValueError, match=r"trainer\.callbacks"):
            edits.edit(key, 1)
    assert len(edits.edits) == 2


def test_the_value_of_the_recipe_is_no_edit_and_the_newest_edit_wins() -> None:
    edits = ConfigEdits(CONFIG)
    edits.edit("data.init_args.batch_size", 9)
    edits.edit("data.init_args.batch_size", 8.0)
    assert edits.edits == {}
    edits.edit("model.init_args.weights.g/mel", 1)
    edits.edit("model.init_args.weights", {"a": 1})
    assert edits.edits == {"model.init_args.weights.a": 1}
    assert edits.differences() == [("model.init_args.weights.a", "not set", "1")]  # g/mel stays
    edits.edit("wandb", {"a": {"b": 1}, "c": EMA})
    assert {"wandb.a.b", "wandb.c"} < edits.edits.keys()
    edits.reset("wandb")
    with pytest.raises(ValueError, match="empty mapping"):
        edits.edit("model.init_args.weights", {})
    edits.edit("data.init_args.batch_size", 8)  # what another edit has changed is set back
    assert edits.to_changes()["data"] == {"init_args": {"batch_size": 8}}
    again = ConfigEdits(CONFIG)
    again.edit_all({"data.init_args.batch_size": 8, **edits.edits})  # in whatever order
    assert again.edits == edits.edits


@pytest.mark.parametrize(
    "switch_off", [lambda edits: edits.edit("loss_guard", False), lambda edits: edits.reset("loss_guard")]
)
def test_switches_add_and_remove_callbacks(switch_off: Any) -> None:
    edits = ConfigEdits(CONFIG)
    assert edits.values["loss_guard"] is False is edits.values["early_stopping"]
    edits.edit("loss_guard", True)
    edits.edit("early_stopping", True)
    edits.edit("trainer.callbacks.LossGuard.init_args.factor", 3.0)
    values = merged(edits)
    assert values["trainer.callbacks.LossGuard.init_args.factor"] == 3.0 and values["loss_guard"]
    assert values["trainer.callbacks.EarlyStopping.init_args.monitor"] == "val/x"
    assert values["trainer.callbacks.EarlyStopping.init_args.mode"] == "max"
    edits.edit("checkpoints.monitor", "val/y")
    assert merged(edits)["trainer.callbacks.EarlyStopping.init_args.monitor"] == "val/y"
    edits.reset("checkpoints")
    assert values["trainer.callbacks.EMA.init_args.decay"] == 0.99
    switch_off(edits)
    assert edits.edits == {"early_stopping": True}
    edits.reset("early_stopping")
    assert edits.to_changes() == {}


def test_a_problem_stops_the_start_until_it_is_mended() -> None:
    edits = ConfigEdits(CONFIG)
    edits.edit("data.init_args.batch_size", 0)
    edits.problems["data.init_args.batch_size"] = "expected a number above 0"
    with pytest.raises(ValueError, match=r"data\.init_args\.batch_size: expected"):
        edits.to_changes()
    edits.edit("data.init_args.batch_size", 4)
    assert edits.to_changes()


def test_a_message_belongs_to_the_longest_key_that_it_names() -> None:
    keys = ["trainer.max_steps", "model.init_args.weights", "model.init_args.weights.g/mel"]
    assert find_key_in_message("recipe.yaml: trainer.max_steps: expected int", keys) == "trainer.max_steps"
    assert find_key_in_message("model.init_args.weights.g/mel: expected float", keys) == keys[2]
    assert find_key_in_message("trainer.max_steps_of_all is wrong", keys) is None


@pytest.mark.parametrize(
    "value", [1, 1.5, 1e-4, True, None, "null", "true", "010", "a b", "", " x", "a: b", [1, "x"], {"a": [1]}]
)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    text = as_text(value)
    assert "\n" not in text and read_value(text) == value and type(read_value(text)) is type(value)


def test_texts_that_users_write() -> None:
    assert [read_value(text) for text in ("1e-4", "010", "", "auto")] == [1e-4, "010", None, "auto"]
    for text in ("no: [1", "a: 1\na: 2", "!!python/object:os.system x"):
        with pytest.raises(ValueError):
            read_value(text)
    assert equal_values(1, 1.0) and not equal_values(1, True)


def test_a_short_key_is_expanded() -> None:
    values = flatten_values(CONFIG)
    assert expand_key("data.batch_size", values) == "data.init_args.batch_size"
    for key in ("seed_everything", "data.init_args.batch_size", "model.class_path"):
        assert expand_key(key, values) == key
    assert expand_key("trainer.callbacks.EMA-2.decay", values) == "trainer.callbacks.EMA-2.init_args.decay"
