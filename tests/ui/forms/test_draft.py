import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zoo.common.configs import load_recipe, load_yaml
from zoo.common.systems import list_systems, recipe_root
from zoo.ui.checks import RESERVED, Rules
from zoo.ui.forms.controls import CONTROLS, OPTIONAL, Control
from zoo.ui.forms.draft import Difference, Draft, blamed, key_of, open_draft, read_field
from zoo.ui.forms.values import as_text, flatten, merged, overlap, parse_lines, read_value, same

RECIPE: dict[str, Any] = {
    "trainer": {
        "max_steps": 20,
        "callbacks": [{"class_path": "zoo.training.EMA", "init_args": {"decay": 0.9, "modules": ["net"]}}],
    },
    "checkpoints": {"monitor": "val/mel"},
    "model": {"init_args": {"trains": "full", "compile": False, "optimizer": {"init_args": {"lr": 0.001}}}},
    "data": {"init_args": {"batch_size": 4}},
}
RECIPES = {file: load_recipe(file) for system in list_systems() for file in system.recipes}
FRAGMENTS = {file: load_yaml(file.read_text()) for file in sorted((recipe_root() / "trainer").glob("*.yaml"))}


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    (tmp_path / "data").mkdir()
    return Rules(tmp_path, (tmp_path / "data",))


def draft_of(config: dict[str, Any], **edits: Any) -> Draft:
    draft = Draft("toy", "smoke", (), copy.deepcopy(config))
    draft.edits = {key.replace("__", "."): value for key, value in edits.items()}
    return draft


def control(label: str) -> Control:
    return next(each for each in CONTROLS if each.label == label)


def edit(draft: Draft, rules: Rules, **given: Any) -> dict[str, Any]:
    """Edit by labels of controls, as the fields do; `_` for spaces."""
    for label, value in given.items():
        key = key_of(control(label.replace("_", " ")), draft.values)
        assert key is not None
        draft.set(key, value, rules)
    return draft.changes()


@pytest.mark.parametrize("file", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_recipe_shows_changes_nothing(file: Path, rules: Rules) -> None:
    draft = draft_of(RECIPES[file])
    for key, value in dict(draft.values).items():
        if not any(overlap(key, name) for name in RESERVED):
            draft.set(key, value, rules)  # what the recipe says is no edit, whatever it is
            assert same(read_value(as_text(value)), value) or value == ""
    assert (draft.edits, draft.changes(), draft.differences()) == ({}, {}, [])
    shown = {each.label for each in CONTROLS if key_of(each, draft.values)}
    assert {"Steps", "Log interval", "Loss guard"} <= shown


def other_than(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.integers(0, 9999)
    if isinstance(value, float):
        return st.floats(1e-9, 1e6)
    if isinstance(value, list):
        return st.lists(st.integers(0, 9) | st.sampled_from(["net", "a b"]), max_size=3)
    return st.sampled_from([None, "text", "1e-3", "a: b", 7, True])


def may_be_edited(key: str) -> bool:
    return not key.endswith("class_path") and not any(overlap(key, name) for name in RESERVED)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_edit_belongs_to_its_draft_whatever_is_switched(data: st.DataObject, rules: Rules) -> None:
    """Over any switches and edits, changes over the recipe give what is shown, and nothing of another draft."""
    former: list[tuple[Draft, Draft]] = []
    draft = draft_of(RECIPE)
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["switch", "machine", "edit", "edit", "control", "late", "reset"]))
        if step in ("switch", "machine"):
            former.append((draft, copy.deepcopy(draft)))
            file = data.draw(st.sampled_from(list(RECIPES)))
            over = data.draw(st.sampled_from(list(FRAGMENTS))) if step == "machine" else None
            contents = [RECIPES[file], *([FRAGMENTS[over]] if over else [])]
            draft = open_draft(file.parent.name, file.stem, over.stem if over else "", (file,), contents)
        elif step == "late" and former:  # what is still typed into a former form
            old, kept = data.draw(st.sampled_from(former))
            key = data.draw(st.sampled_from(sorted(old.values)))
            before = copy.deepcopy(draft)
            if may_be_edited(key):
                old.set(key, data.draw(other_than(old.values[key])), rules)
            assert draft == before
            old.edits, old.problems = dict(kept.edits), dict(kept.problems)
        elif step == "reset" and draft.edits:
            draft.reset(data.draw(st.sampled_from(sorted(draft.edits))))
        else:
            keys = {key_of(each, draft.values) for each in CONTROLS} - {None} if step == "control" else draft.values
            key = data.draw(st.sampled_from(sorted(key for key in keys if key)))
            if may_be_edited(key):
                draft.set(key, data.draw(other_than(draft.values[key])), rules)
    assert all(old == kept for old, kept in former)
    changes = draft.changes()
    laid = draft_of(merged(draft.config, changes))
    shown = {key: draft.value(key) for key in draft.values if draft.has(key)}
    assert {key: laid.values[key] for key in shown} == shown
    own = {key for key in draft.values if draft.has(key)}
    assert all(any(overlap(key, mine) for mine in own) for key in flatten(changes) if changes)
    assert draft.check_result(laid.config) == []
    assert {row.key for row in draft.differences()} - {"machine"} == {key for key in draft.edits if draft.has(key)}


def test_edits_stay_when_the_rest_arrives(rules: Rules) -> None:
    draft = draft_of({"trainer": {"max_steps": 20}, "data": {"init_args": {"batch_size": 4}}})
    draft.set("trainer.max_steps", 7, rules)
    draft.set("data.init_args.batch_size", 8, rules)
    draft.arrive(RECIPE | {"data": {"init_args": {"batch_size": 8}}})
    assert draft.is_complete and draft.edits == {"trainer.max_steps": 7}


def test_controls_change_their_keys(rules: Rules) -> None:
    changes = edit(draft_of(RECIPE), rules, Steps=7, Learning_rate=2e-4, Compile=True, Precision="bf16-mixed")
    assert changes == {
        "trainer": {"max_steps": 7, "precision": "bf16-mixed"},
        "model": {"init_args": {"compile": True, "optimizer": {"init_args": {"lr": 0.0002}}}},
    }
    assert edit(draft_of(RECIPE), rules, Training_mode=["out"]) == {"model": {"init_args": {"trains": ["out"]}}}
    assert key_of(control("Gradient checkpointing"), draft_of(RECIPE).values) is None


def test_callbacks_are_added_edited_and_taken_away(rules: Rules) -> None:
    draft = draft_of(RECIPE)
    draft.set("trainer.callbacks.EMA.init_args.decay", 0.5, rules)
    changes = edit(draft, rules, Loss_guard=True, Explosion_threshold=5, Early_stopping=True, Patience=3)
    ema, guard, early = changes["trainer"]["callbacks"]
    assert (ema["init_args"], guard["init_args"]["factor"]) == ({"decay": 0.5, "modules": ["net"]}, 5)
    assert early["init_args"] == {"monitor": "val/mel", "patience": 3}
    assert RECIPE["trainer"]["callbacks"][0]["init_args"]["decay"] == 0.9
    guarded = draft_of({"trainer": {"callbacks": [guard]}})
    assert guarded.value("trainer.callbacks.LossGuard.init_args.factor") == 5
    assert edit(guarded, rules, Loss_guard=False) == {"trainer": {"callbacks": None}}
    off = draft_of(RECIPE)
    assert edit(off, rules, Explosion_threshold=5) == {} and off.differences() == []  # of a guard that is off


def test_other_guards_are_shown_and_taken_away(rules: Rules) -> None:
    guard = {"class_path": "zoo.audiosr.LossMonitor", "init_args": {"threshold": 6.0}}
    draft = draft_of({"trainer": {"callbacks": [guard]}})
    assert draft.value("guard.on") is True
    (edited,) = edit(draft, rules, Explosion_threshold=8)["trainer"]["callbacks"]
    assert edited == {**guard, "init_args": {"threshold": 8}}
    draft.reset(key_of(control("Explosion threshold"), draft.values) or "")
    assert edit(draft, rules, Loss_guard=False) == {"trainer": {"callbacks": None}}


def test_two_callbacks_of_a_class_are_two(rules: Rules) -> None:
    entry = RECIPE["trainer"]["callbacks"][0]
    draft = draft_of({"trainer": {"callbacks": [entry, copy.deepcopy(entry)]}})
    draft.set("trainer.callbacks.EMA-2.init_args.decay", 0.1, rules)
    first, second = draft.changes()["trainer"]["callbacks"]
    assert (first["init_args"]["decay"], second["init_args"]["decay"]) == (0.9, 0.1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("batch_size 3", "expected key=value"),
        ("--config=x", "decided by"),
        ("trainer.default_root_dir=x", "decided by"),
        ("ckpt_path=x", "decided by"),
        ("init_from=[a]", "decided by"),
        ("data.init_args.root=/etc", "no paths"),
        ("data.init_args.root=~/x", "no paths"),
        ("data.init_args.root=data/../../x", "no paths"),
        ("a.b={c: [{d: /etc/passwd}]}", "no paths"),
        ("a=https://x.org/y", "no paths"),
        ("a=${oc.env:SECRET}", "no paths"),
        ("a=[1", "no YAML"),
        ("a b=1", "expected key=value"),
    ],
)
def test_lines_that_are_refused(lines: str, message: str, rules: Rules) -> None:
    draft = draft_of({})
    with pytest.raises(ValueError, match=message):
        draft.set_lines(lines, rules)
    with pytest.raises(ValueError, match=message):
        draft.changes()  # nothing starts while they stand there


def test_a_line_and_a_field_say_one_thing_each(rules: Rules) -> None:
    draft = draft_of(RECIPE)
    draft.set_lines("trainer.max_steps=3\nmodel.init_args.new={a: 1}", rules)
    assert draft.changes() == {"trainer": {"max_steps": 3}, "model": {"init_args": {"new": {"a": 1}}}}
    assert draft.differences()[1] == Difference("model.init_args.new", "not named", "{a: 1}")
    draft.set("trainer.max_steps", 5, rules)
    with pytest.raises(ValueError, match="give it once"):
        draft.changes()


def test_lines_are_yaml_values() -> None:
    text = (
        "# a comment\n\ndata.init_args.root=ljspeech\nmodel.init_args.loss_weights.g/mel=4.5\na=[1, x]\nb=null\nc=1e-4"
    )
    read = parse_lines(text)
    assert list(read.values()) == ["ljspeech", 4.5, [1, "x"], None, 0.0001]
    assert flatten({"a": {"b": [1]}, "c": {}}) == {"a.b": [1], "c": {}}


@pytest.mark.parametrize("value", ["/etc/passwd", "~/x", {"class_path": "os.system"}, ["${oc.env:SECRET}"]])
def test_what_the_page_refuses_is_a_problem_until_it_is_mended(value: Any, rules: Rules) -> None:
    draft = draft_of(RECIPE)
    draft.set("trainer.max_steps", 5, rules)
    with pytest.raises(ValueError):
        draft.set("trainer.max_steps", value, rules)
    with pytest.raises(ValueError, match=r"trainer\.max_steps"):
        draft.changes()
    assert draft.value("trainer.max_steps") == 20
    draft.set("trainer.max_steps", 6, rules)
    assert draft.changes() == {"trainer": {"max_steps": 6}}


@pytest.mark.parametrize(
    ("label", "text", "takes_null", "expected"),
    [
        ("Steps", " 7 ", False, 7),
        ("Steps", "7.0", False, 7),
        ("Learning rate", "1e-4", False, 0.0001),
        ("Gradient clipping", "", True, None),
        ("Steps", "", False, "is needed"),
        ("Steps", "7.5", False, "whole number"),
        ("Steps", "-2", False, "-1 or more"),
        ("Steps", "1e-", False, "expected a number"),
        ("Steps", "true", False, "expected a number"),
        ("Learning rate", ".inf", False, "expected a number"),
        ("Learning rate", "/etc/passwd", False, "expected a number"),
        ("Reduction of the learning rate", "1.5", False, "0 to 1"),
        ("Frozen parts", "[encoder, mid]", False, ["encoder", "mid"]),
    ],
)
def test_what_is_typed_into_a_control(label: str, text: str, takes_null: bool, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            read_field(control(label), text, takes_null)
    else:
        assert read_field(control(label), text, takes_null) == expected


def test_a_result_that_is_not_what_was_edited_is_refused(rules: Rules) -> None:
    draft = draft_of(RECIPE)
    draft.set("data.init_args.batch_size", 8, rules)
    result = merged(RECIPE, draft.changes() | {"model": {"init_args": {"compile": True}}})
    assert draft.check_result(result) == [Difference("model.init_args.compile", "false", "true")]
    with pytest.raises(ValueError, match=r"data.init_args.batch_size: the config would hold 4, not 8"):
        draft.check_result(RECIPE)
    guarded = draft_of(RECIPE)
    guarded.set("guard.on", True, rules)
    with pytest.raises(ValueError, match=r"guard\.on"):
        guarded.check_result(RECIPE)
    assert guarded.check_result(merged(RECIPE, guarded.changes())) == []
    assert "guard.on" in OPTIONAL


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("zoo fit: error: Parser key \"trainer.max_steps\": Expected a <class 'int'>", "trainer.max_steps"),
        ("zoo: error: Parser key \"batch_size\": Expected a <class 'int'>. Got value: q", "data.init_args.batch_size"),
        ("zoo: error: Option 'lrr' is not accepted", "model.init_args.lrr"),
        ("data.init_args.root=/etc: the page takes no paths", "data.init_args.root"),
        ("zoo: error: unknown key model.init_args.nett: did you mean net?", "model.init_args.nett"),
        ("nothing of the kind", None),
        ("Parser key \"factor\": Expected a <class 'float'>", None),  # two hold one
    ],
)
def test_a_message_finds_its_field(message: str, key: str | None) -> None:
    edits = "trainer.max_steps data.init_args.batch_size model.init_args.lrr data.init_args.root model.init_args.nett"
    twice = ["trainer.callbacks.A.init_args.factor", "trainer.callbacks.B.init_args.factor"]
    assert blamed(message, [*edits.split(), *twice]) == key
