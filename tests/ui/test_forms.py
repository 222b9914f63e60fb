from pathlib import Path

import pytest
import yaml

from zoo.common.systems import systems
from zoo.ui import charts, readings
from zoo.ui.checks import Rules
from zoo.ui.forms.controls import CONTROLS
from zoo.ui.forms.form import Form, flatten, parse_lines

RECIPE = {
    "trainer": {
        "max_steps": 20,
        "callbacks": [{"class_path": "zoo.training.EMA", "init_args": {"decay": 0.9, "modules": ["net"]}}],
    },
    "checkpoints": {"monitor": "val/mel"},
    "model": {"init_args": {"trains": "full", "compile": False, "optimizer": {"init_args": {"lr": 0.001}}}},
    "data": {"init_args": {"batch_size": 4}},
}


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    (tmp_path / "data").mkdir()
    return Rules(tmp_path, (tmp_path / "data",))


def shown(form: Form) -> dict[str, object]:
    return {control.label: form.value_of(control) for control in CONTROLS if form.key_of(control)}


@pytest.mark.parametrize("recipe", [file for system in systems() for file in system.recipes], ids=lambda p: p.stem)
def test_what_a_recipe_shows_changes_nothing(recipe: Path, rules: Rules) -> None:
    form = Form(yaml.safe_load(recipe.read_text()))
    assert form.changes(shown(form), "", rules) == {}
    assert {"Steps", "Log interval", "Loss guard"} <= set(shown(form))


def test_controls_change_their_keys(rules: Rules) -> None:
    form = Form(RECIPE)
    given = shown(form) | {"Steps": 7.0, "Learning rate": 2e-4, "Compile": True, "Precision": "bf16-mixed"}
    assert form.changes(given | {"Training mode": "custom", "Layers (custom)": ["out"]}, "", rules) == {
        "trainer": {"max_steps": 7, "precision": "bf16-mixed"},
        "model": {"init_args": {"compile": True, "optimizer": {"init_args": {"lr": 0.0002}}, "trains": ["out"]}},
    }
    assert "Gradient checkpointing" not in given


def test_callbacks_are_added_edited_and_taken_away(rules: Rules) -> None:
    form = Form(RECIPE)
    given = shown(form) | {"Loss guard": True, "Explosion threshold": 5, "Early stopping": True, "Patience": 3}
    ema, guard, early = form.changes(given, "trainer.callbacks.EMA.init_args.decay=0.5", rules)["trainer"]["callbacks"]
    assert (ema["init_args"], guard["init_args"]["factor"]) == ({"decay": 0.5, "modules": ["net"]}, 5)
    assert early["init_args"] == {"monitor": "val/mel", "patience": 3}
    assert RECIPE["trainer"]["callbacks"][0]["init_args"]["decay"] == 0.9
    guarded = Form({"trainer": {"callbacks": [guard]}})
    assert shown(guarded)["Explosion threshold"] == 5
    assert guarded.changes(shown(guarded) | {"Loss guard": False}, "", rules) == {"trainer": {"callbacks": None}}
    assert form.changes(shown(form) | {"Explosion threshold": 5}, "", rules) == {}  # of a guard that is off


@pytest.mark.parametrize("name", ["guard_robust.RobustGuard", "loss_monitor.LossMonitor"])
def test_other_guards_are_shown_and_taken_away(name: str, rules: Rules) -> None:
    guard = {"class_path": f"zoo.training.{name}", "init_args": {"threshold": 6.0}}
    form = Form({"trainer": {"callbacks": [guard]}})
    given = shown(form)
    assert (given["Loss guard"], given["Explosion threshold"]) == (True, 6.0)
    (edited,) = form.changes(given | {"Explosion threshold": 8}, "", rules)["trainer"]["callbacks"]
    assert edited == {**guard, "init_args": {"threshold": 8}}
    assert form.changes(given | {"Loss guard": False}, "", rules) == {"trainer": {"callbacks": None}}


def test_loss_scale_and_full_graph(rules: Rules) -> None:
    form = Form({"model": {"init_args": {"compile_fullgraph": False}}})
    given = shown(form) | {"Own loss scale": True, "Initial loss scale": 1024, "Compile the full graph": True}
    scale = {"class_path": "zoo.training.LossScale", "init_args": {"init_scale": 1024}}
    changes = {"model": {"init_args": {"compile_fullgraph": True}}, "trainer": {"callbacks": [scale]}}
    assert form.changes(given, "", rules) == changes


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
    with pytest.raises(ValueError, match=message):
        Form({}).changes({}, lines, rules)


def test_lines_are_yaml_values() -> None:
    text = "# a comment\n\ndata.init_args.root=ljspeech\nmodel.init_args.loss_weights.g/mel=4.5\na=[1, x]\nb=null"
    read = parse_lines(text)
    assert list(read.values()) == ["ljspeech", 4.5, [1, "x"], None]
    assert flatten({"a": {"b": [1]}, "c": {}}) == {"a.b": [1], "c": {}}


def test_metrics_survive_a_torn_row_and_foreign_text(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/<b>\n0,2.0,\n1,nan,3\n2,1.0,\n3,0.")
    series = readings.Metrics().read(tmp_path)
    drawn = charts.curves(series, log_scale=True)
    assert "val/&lt;b&gt;" in drawn and "<b>3" in drawn and 'data-last-step="2"' in drawn
    assert "No values yet" in charts.curves(readings.Metrics().read(tmp_path / "none"))
    assert readings.thinned([(float(i), 0.0) for i in range(1000)], 10)[-1] == (999, 0)


def test_media(tmp_path: Path) -> None:
    for name in ("step_00000010/a.wav", "step_00000020/b.png", "step_00000020/c.html", "step_00000030/d.txt"):
        (tmp_path / "media" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "media" / name).touch()
    assert readings.last_media(tmp_path) == ("step_00000020", ["b.png"])
    assert 'src="/x/b.png"' in charts.media("/x/", "step_00000020", ["b.png"])


def test_gpus(tmp_path: Path) -> None:
    told = readings.parse_nvidia("NVIDIA H100 80GB HBM3, 37, 1024, 81559\nOld, [N/A], 1, 2\n")
    assert [(load.name, load.percent, load.used_bytes) for load in told] == [("NVIDIA H100 80GB HBM3", 37, 2**30)]
    device = tmp_path / "card0" / "device"
    device.mkdir(parents=True)
    for name, text in (("gpu_busy_percent", "8\n"), ("mem_info_vram_used", "5\n"), ("mem_info_vram_total", "9\n")):
        (device / name).write_text(text)
    assert readings.amd_load(tmp_path) == [readings.Load("AMD card0", 8, 5, 9)]
    assert "memory" in charts.load_bar(readings.machine_load())
