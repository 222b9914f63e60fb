"""Wrong command lines and configs: one line that names the key and the nearest one; recipes laid over one another."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from tests.harness import REPOSITORY
from zoo.cli.main import main
from zoo.cli.recipes import compose_config, find_recipe, nearest_names, replace_recipe_names, split_arguments
from zoo.cli.tools import find_tools, split_options
from zoo.common.configs import load_recipe, load_run_config, merge
from zoo.runs.load import load


def say(*args):
    """Exit code and what a command said, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
        code = main([str(arg) for arg in args])
    return code, out.getvalue().strip()


EARLY = [
    (["fit", "flow/smoek"], "no recipe 'flow/smoek': did you mean flow/smoke"),
    (["fit", "flow"], "no recipe 'flow': did you mean flow/"),
    (["fit", "--config", "flow/smoek"], "did you mean flow/smoke"),
    (["fit", "flow/smoke", "data.batch_size=8"], "an option begins with two dashes: --data.batch_size=8"),
    (["fit", "--config=configs/flow/smok.yaml"], "smok.yaml: no such file: did you mean configs/flow/smoke"),
    (["fit", "flow/smoke", "--chekpoints.monitor=x"], "did you mean --checkpoints.monitor"),
    (["fit", "flow/smoke", "--loger", "wandb"], "unknown option --loger: did you mean --loggers?"),
    (["fit", "flow/smoke", "--output=x"], "unknown option --output"),
    (["fti"], "no command 'fti': did you mean fit?"),
    (["evaluate", "flw"], "no command 'evaluate flw': did you mean evaluate flow"),
]
WRONG = [
    *EARLY,
    (["fit", "flow/smoke", "--data.batch_sise=3"], "key data.init_args.batch_sise: did you mean batch_size? (keys"),
    (["fit", "flow/smoke", "--data.init_args.batch_sise", "3"], "mean batch_size? (keys of zoo.flow.ImageData: "),
    (["fit", "flow/smoke", "--trainer.max_step", "3"], "unknown key trainer.max_step: did you mean max_steps"),
    (["fit", "flow/smoke", "--model.net.chanels=3"], "key model.init_args.net.init_args.chanels: did you mean ch"),
    (["fit", "flow/smoke", "--model.net", "zoo.flow.UNett"], "net.class_path: zoo.flow registers no part"),
    (["fit", "flow/smoke", "--model", "zoo.flow.FlowTsk"], "model.class_path: zoo.flow registers no part"),
    (["fit", "flow/smoke", "--trainer.precision", "bf16-mixd"], "error: trainer.precision: expected"),
    (["fit", "flow/smoke", "--data.batch_size", "eight"], "error: data.init_args.batch_size: expected int, got eight"),
    (
        ["fit", "flow/smoke", "--model.net.channels", "abc"],
        "error: model.init_args.net.init_args.channels: expected int",
    ),
    (
        ["fit", "flow/smoke", "--trainer.callbacks=[{class_path: zoo.training.EMA, init_args: {decay: x}}]"],
        "error: trainer.callbacks.0.init_args.decay: expected float, got x",
    ),
    (["fit", "--trainer.max_steps", "3"], "fit needs a recipe"),
    (["find-lr", "flow/smoke", "--stepps", "5"], "has no option --stepps (options: --min_lr"),
    (["find-lr", "--fit", "flow/smoke"], "find-lr has no option --fit"),
    (["inspect", "x", "--pth", "y"], "inspect has no option --pth: did you mean --path?"),
]


@pytest.mark.parametrize(
    ("args", "message"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_the_nearest_name(args, message, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    code, said = say(*args)
    assert code == 2
    assert message in said
    assert len(said.splitlines()) == 1


def test_neither_torch_nor_lightning_is_imported_for_a_wrong_name():
    mistakes = [args for args, _ in EARLY]
    script = f"import sys; from zoo.cli.main import main\nfor args in {mistakes!r}: assert main(args) == 2\n"
    script += "assert not {'torch', 'lightning', 'jsonargparse', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=REPOSITORY, capture_output=True, timeout=120)


def write(path: Path, **content):
    path.write_text(yaml.safe_dump(content))
    return path


MODEL = {"class_path": "zoo.flow.FlowTask", "init_args": {"net": {"class_path": "zoo.flow.UNet", "init_args": {}}}}


def test_a_file_that_changes_arguments_of_another_files_class(tmp_path):
    first = write(tmp_path / "a.yaml", model=MODEL)
    nested = {"net": {"init_args": {"channls": 3}}}
    second = write(tmp_path / "b.yaml", model={"init_args": nested})
    code, said = say("fit", first, second)
    assert code == 2
    assert f"{second}: unknown key model.init_args.net.init_args.channls: did you mean channels" in said
    code, said = say("fit", "--config", first, "--model", write(tmp_path / "c.yaml", init_args=nested))
    assert code == 2
    assert "c.yaml: unknown key model.init_args.net.init_args.channls" in said


@pytest.mark.parametrize(
    "content",
    [
        {"unknown": 1},
        {"trainer": {"max_stepps": 1}},
        {"trainer": {"callbacks": [{"class_path": "zoo.training.EMAA"}]}},
        {"data": {"class_path": "zoo.flow.PointData", "init_args": {"kind": "moon"}}},
        {"model": {"class_path": "zoo.flow.FlowTask", "init_args": {"guard": {"class_path": "zoo.training.EMAA"}}}},
        {"samples": {"item": 3}},
        {"wandb": {"mode": "onlin"}},
    ],
)
def test_wrong_configs(tmp_path, content):
    code, said = say("fit", write(tmp_path / "x.yaml", **content))
    assert (code, len(said.splitlines())) == (2, 1), said
    assert "x.yaml: " in said


UNREADABLE = [
    ("", "expected a mapping of keys, found nothing"),
    ("# a comment alone", "expected a mapping of keys, found nothing"),
    ("- a\n- b", "expected a mapping of keys, found a list"),
    ("text", "expected a mapping of keys, found a text"),
    ("a: [", ", line 2: no YAML: did not find"),
    ("a: &x [*x]", "stands within what it means"),
    ("\0", "control characters are not allowed"),
    ("trainer:\n  max_steps: 1\ntrainer:\n  precision: 32", "trainer stands in line 1 and again in line 3"),
    ("trainer: {max_steps: 1, max_steps: 2}", "trainer.max_steps stands in line 1 and again in line 1"),
    ("trainer: {callbacks: [{class_path: a, class_path: b}]}", "trainer.callbacks.0.class_path stands in line 1"),
]


@pytest.mark.parametrize("option", ["--config", "--data"])
@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_unreadable_config_is_named(option, text, message, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    code, said = say("fit", "flow/smoke", option, path)
    assert (code, len(said.splitlines())) == (2, 1), said
    assert f"zoo: error: {path}" in said and message in said


@pytest.mark.parametrize("content", [{"modle": {}}, {"modle": None}, {"modle": {"a": 1}}, {"modle": []}])
def test_unknown_section_is_refused_also_when_empty(content, tmp_path):
    path = write(tmp_path / "config.yaml", **content)
    code, said = say("fit", "flow/smoke", path)
    assert code == 2 and f"{path}: unknown key modle: did you mean model?" in said


POSITIVE = [
    ("checkpoints.every_n_steps", "0"),
    ("trainer.accumulate_grad_batches", "0"),
    ("trainer.val_check_interval", "0"),
    ("trainer.val_check_interval", "0.0"),
    ("trainer.check_val_every_n_epoch", "0"),
    ("trainer.accumulate_grad_batches", "-1"),
    ("data.init_args.batch_size", "0"),
    ("data.init_args.batch_size", "-2"),
]


@pytest.mark.parametrize(("key", "value"), POSITIVE)
def test_zero_is_refused_by_key(key, value, tmp_path):
    option = key.replace(".init_args", "")
    for given in ([f"--{option}={value}"], [f"--{option}", value], [f"--{key}", value]):
        code, said = say("fit", "flow/smoke", *given)
        assert (code, len(said.splitlines())) == (2, 1), said
        assert f"{key} is {value}; expected a number above 0" in said
    content: dict = {}
    place = content
    *above, last = key.split(".")
    for name in above:
        place = place.setdefault(name, {})
    place[last] = yaml.safe_load(value)
    path = write(tmp_path / "x.yaml", **content)
    code, said = say("fit", "flow/smoke", path)
    assert code == 2 and f"{key} is {value}; expected a number above 0" in said


def test_words_of_their_own_are_recipes():
    flow, gpu = find_recipe("flow/smoke"), find_recipe("trainer/gpu")
    given = ["--trainer.max_steps", "-1", "flow/smoke", "--config=trainer/gpu", "--help"]
    assert replace_recipe_names(given) == [
        "--trainer.max_steps",
        "-1",
        "--config",
        str(flow),
        f"--config={gpu}",
        "--help",
    ]
    assert list(split_arguments(["-c", "x", "--a=b=c", "--flag", "--b"])) == [
        ("-c", "x", False), ("--a", "b=c", True), ("--flag", None, False), ("--b", None, False)]  # fmt: skip


def test_folders_are_no_recipes(tmp_path):
    code, said = say("fit", tmp_path)
    assert code == 2
    assert "--ckpt_path takes runs" in said


@pytest.mark.parametrize("name", find_tools())
def test_a_tools_summary_is_its_docstrings_first_line(name):
    tool = find_tools()[name]
    assert tool.load().__doc__.partition("\n")[0] == tool.summary


def test_own_options_of_a_tool_and_those_of_fit():
    given = "flow/smoke --search a=int(1,2) --prune trainer/gpu --trainer.max_steps 5 --trials=3 --search b=int(1,2)"
    more = "--data.x=1 -c f.yaml --seed_everything 4 --trails 3"
    own, fit = split_options([*given.split(), *more.split()], get_type_hints(find_tools()["tune"].load()))
    assert own == ["--prune=true", "--trials=3", "--trails", "3", '--search=["a=int(1,2)", "b=int(1,2)"]']
    assert fit == "flow/smoke trainer/gpu --trainer.max_steps 5 --data.x=1 -c f.yaml --seed_everything 4".split()


@pytest.mark.parametrize("name", ["zoo.flow.ToyNet", "ToyNet", "zoo.flow.nets.mlp.ToyNet"])
def test_a_run_names_its_classes_publicly(name, tmp_path):
    limits = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0", f"--trainer.default_root_dir={tmp_path}"]
    assert main(["fit", "flow/demo_swissroll", "--model.net", name, *limits]) == 0
    assert "class_path: zoo.flow.ToyNet" in (tmp_path / "config.yaml").read_text()
    assert load(tmp_path).dry_run()


MERGED = [
    ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ({"a": {"x": 1, "y": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ({"a": {"x": 1}}, {"a": None}, {"a": None}),
    ({"a": [1]}, {"a": [2]}, {"a": [2]}),
    ({"a": [1]}, {"a+": [2]}, {"a": [1, 2]}),
    ({"a": [1]}, {"a+": {"x": 2}}, {"a": [1, {"x": 2}]}),
    ({}, {"a+": [2]}, {"a": [2]}),
    ({"a": {"class_path": "p.A", "init_args": {"x": 1}}}, {"a": {"init_args": {"y": 2}}},
     {"a": {"class_path": "p.A", "init_args": {"x": 1, "y": 2}}}),
    ({"a": {"class_path": "p.A", "init_args": {"x": 1}}}, {"a": {"class_path": "A", "init_args": {"y": 2}}},
     {"a": {"class_path": "A", "init_args": {"x": 1, "y": 2}}}),
    ({"a": {"class_path": "p.A", "init_args": {"x": 1}}}, {"a": {"class_path": "p.B"}}, {"a": {"class_path": "p.B"}}),
    ({"a": {"model_type": "llama", "x": 1}}, {"a": {"model_type": "gpt2"}}, {"a": {"model_type": "gpt2"}}),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "merged"), MERGED)
def test_configs_merge(before, after, merged):
    assert merge(before, after) == merged


def test_a_recipe_extends_others(tmp_path):
    write(tmp_path / "base.yaml", trainer={"max_steps": 1, "precision": "32-true"}, seed_everything=1)
    write(tmp_path / "middle.yaml", extends="base", trainer={"max_steps": 2})
    top = write(tmp_path / "top.yaml", extends=["middle", "trainer/ddp_2"], seed_everything=3)
    extended = load_run_config(find_recipe("trainer/ddp_2"))["trainer"]
    expected = {"trainer": {"max_steps": 2, "precision": "32-true", **extended}, "seed_everything": 3}
    assert load_recipe(top) == expected
    assert compose_config([f"--config={top}", "--seed_everything=4"]) == (expected, ["--seed_everything=4"])


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("top", "extends top, which extends it"),
        ("other", "extends top, which extends it"),
        ("nowhere", "there is no such recipe"),
        ("flow/nowhere", "there is no such recipe"),
        ("../top", "expected the name of a recipe"),
        ("/etc/passwd", "expected the name of a recipe"),
        ("base.yaml", "expected the name of a recipe"),
        ({"a": 1}, "expected the name of a recipe"),
        (None, "expected the name of a recipe"),
    ],
)
def test_a_recipe_extends_recipes_only(extends, message, tmp_path):
    top = write(tmp_path / "top.yaml", extends=extends)
    write(tmp_path / "other.yaml", extends="top")
    with pytest.raises(ValueError, match=message):
        load_recipe(top)


def test_files_win_over_files_before_them_and_options_over_all(tmp_path):
    first = write(tmp_path / "a.yaml", data={"class_path": "zoo.flow.PointData", "init_args": {"batch_size": 2}})
    second = write(tmp_path / "b.yaml", init_args={"batch_size": "${seed_everything}"})
    given = ["--data.init_args.batch_size=5", "--data", str(second), "-c", str(first), "--loggers", "[]"]
    config, options = compose_config(given)
    assert config["data"] == {"class_path": "zoo.flow.PointData", "init_args": {"batch_size": 2}}
    assert options == ["--data.init_args.batch_size=5", "--loggers", "[]"]
    assert compose_config([*given[3:5], *given[1:3]])[0]["data"]["init_args"] == {"batch_size": "${seed_everything}"}


def test_near():
    assert nearest_names("x", ["abc"]) == ""
    assert nearest_names("flow", ["flow/a", "flow/b", "flaw"]) == ": did you mean flow/a or flow/b?"


@pytest.mark.parametrize("recipe", ["ci_llm/base", "miipher/adapter_layer_6"])
def test_a_model_that_cannot_be_had_is_named(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    from tests.harness import forked

    done = forked("fit", recipe, "--trainer.accelerator", "cpu", cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode != 0
    assert "neither a local folder nor to be had from the hub" in done.stderr


def test_a_mistyped_monitor_is_named_before_the_first_step(tmp_path):
    from tests.harness import forked

    done = forked("fit", "flow/smoke", "--checkpoints.monitor", "val/los", cwd=tmp_path)
    assert done.returncode != 0
    assert "checkpoints.monitor: no validation gives val/los: did you mean val/loss?" in done.stderr
    assert not list(tmp_path.rglob("*.ckpt"))
