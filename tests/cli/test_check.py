from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.harness import REPOSITORY
from zoo.cli.check import check_tool, check_trainer_command
from zoo.cli.main import find_tools, main
from zoo.cli.names import find_recipe, near, pairs, recipes, recipes_named
from zoo.cli.parsing import check_config
from zoo.common import registry
from zoo.common.reading.signatures import arguments

PARTS = [name for package in registry.PACKAGES for name in registry.names(package)]


def say(*args):
    """Exit code and what a command said, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
        code = main([str(arg) for arg in args])
    return code, out.getvalue().strip()


@pytest.mark.parametrize("name", PARTS)
def test_sources_say_what_the_classes_take(name):
    import inspect

    found = arguments(registry.module_of(name), name.rpartition(".")[2])
    cls = registry.find(name)
    if found is None:
        assert any(each.kind is each.VAR_KEYWORD for each in inspect.signature(cls).parameters.values())
        return
    taken = {each: hint for each, hint in registry.slots(cls).items() if each not in ("args", "kwargs")}
    assert set(found) >= set(taken)
    assert set(found) - set(taken) <= set(inspect.signature(cls.__init__).parameters)
    for key, argument in found.items():
        if argument.choices is not None:
            assert set(_literals(taken[key])) == set(argument.choices)


def _literals(hint):
    import typing

    for each in typing.get_args(hint):
        yield from _literals(each) if typing.get_args(each) else [None if each is type(None) else each]


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_recipes_are_right(recipe):
    assert find_recipe(recipe.name) == recipe.path
    check_trainer_command(["--config", str(recipe.path)])


WRONG = [
    (["fit", "flow/smoek"], "no recipe 'flow/smoek': did you mean flow/smoke"),
    (["fit", "flow"], "no recipe 'flow': did you mean flow/"),
    (["fit", "--config", "flow/smoek"], "did you mean flow/smoke"),
    (["fit", "--config=configs/flow/smok.yaml"], "smok.yaml: no such file: did you mean configs/flow/smoke"),
    (["fit", "flow/smoke", "--data.batch_sise=3"], "key data.init_args.batch_sise: did you mean batch_size? (keys"),
    (["fit", "flow/smoke", "--data.init_args.batch_sise", "3"], "mean batch_size? (keys of zoo.flow.ImageData: "),
    (["fit", "flow/smoke", "--trainer.max_step", "3"], "unknown key trainer.max_step: did you mean max_steps"),
    (["fit", "flow/smoke", "--model.net.chanels=3"], "key model.init_args.net.init_args.chanels: did you mean ch"),
    (["fit", "flow/smoke", "--model.net", "zoo.flow.UNett"], "zoo.flow has no part UNett: did you mean zoo.flow.UNet"),
    (["fit", "flow/smoke", "--model", "zoo.flow.FlowTsk"], "model.class_path: zoo.flow has no part FlowTsk: did you"),
    (["fit", "flow/smoke", "--trainer.precision", "bf16-mixd"], "is 'bf16-mixd': did you mean bf16-mixed"),
    (["fit", "flow/smoke", "--chekpoints.monitor=x"], "did you mean --checkpoints.monitor"),
    (["fit", "flow/smoke", "--loger", "wandb"], "unknown option --loger: did you mean --loggers?"),
    (["fit", "flow/smoke", "--output=x"], "unknown option --output"),
    (["fti"], "no command 'fti': did you mean fit?"),
    (["evaluate", "flw"], "no command 'evaluate flw': did you mean evaluate flow"),
    (["inspect", "x", "--pth", "y"], "inspect has no option --pth: did you mean --path?"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_the_nearest_name(args, message, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    code, said = say(*args)
    assert code == 2
    assert message in said
    assert len(said.splitlines()) == 1


def test_neither_torch_nor_lightning_is_imported_for_a_mistake():
    mistakes = [args for args, _ in WRONG]
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


@pytest.mark.parametrize(
    "content",
    [
        {"data": {"class_path": "my.package.Data", "init_args": {"anything": 1}}},
        {"model": {"class_path": "FlowTask", "init_args": {"net": "UNet"}}},
        {"wandb": {"mode": "${oc.env:ZOO_MODE,offline}"}},
        {"trainer": {"precision": 32, "logger": False, "callbacks": None}},
        {"model": "text", "data": [1], "trainer": "x"},
        {"trainer": {"accumulate_grad_batches": "${data.init_args.batch_size}", "val_check_interval": "00:10:00"}},
        {"checkpoints": {"every_n_batches": None}, "trainer": {"val_check_interval": 0.5}},
    ],
)
def test_what_the_sources_do_not_show_is_left_to_the_parser(tmp_path, content):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(content))
    check_trainer_command(["--config", str(path)])


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


@pytest.mark.parametrize("option", ["--config", "--data", "--ckpt_path"])
@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_unreadable_config_is_named(option, text, message, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    given = tmp_path if option == "--ckpt_path" else path
    (tmp_path / "step_1.ckpt").touch()
    if option == "--ckpt_path":
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            check_config(path)
        assert str(error.value).startswith(str(path)) and error.value.exit_code == 2
        check_trainer_command([option, str(given)])
        return
    code, said = say("fit", "flow/smoke", option, given)
    assert (code, len(said.splitlines())) == (2, 1), said
    assert f"zoo: error: {path}" in said and message in said


@pytest.mark.parametrize("content", [{"modle": {}}, {"modle": None}, {"modle": {"a": 1}}, {"modle": []}])
def test_unknown_section_is_refused_also_when_empty(content, tmp_path):
    path = write(tmp_path / "config.yaml", **content)
    code, said = say("fit", "flow/smoke", path)
    assert code == 2 and f"{path}: unknown key modle: did you mean model?" in said
    with pytest.raises(ValueError, match="unknown key modle: did you mean model"):  # where a run brings it
        check_config(path)


POSITIVE = [
    ("checkpoints.every_n_batches", "0"),
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
    assert code == 2 and f"{path}: {key} is {value}; expected a number above 0" in said
    for args in (["--config", str(path), f"--{key}=3"], [f"--{key}=3", "--config", str(path)]):  # an option wins
        check_trainer_command(["--config", str(find_recipe("flow/smoke")), *args])


def test_words_of_their_own_are_recipes():
    flow, gpu = find_recipe("flow/smoke"), find_recipe("trainer/gpu")
    given = ["--trainer.max_steps", "-1", "flow/smoke", "--config=trainer/gpu", "--help"]
    assert recipes_named(given) == ["--trainer.max_steps", "-1", "--config", str(flow), f"--config={gpu}", "--help"]
    assert list(pairs(["-c", "x", "--a=b=c", "--flag", "--b"])) == [
        ("-c", "x", False), ("--a", "b=c", True), ("--flag", None, False), ("--b", None, False)]  # fmt: skip


def test_folders_are_no_recipes(tmp_path):
    code, said = say("fit", tmp_path)
    assert code == 2
    assert "--ckpt_path takes runs" in said


@pytest.mark.parametrize("tool", find_tools().items(), ids=lambda tool: tool[0])
def test_every_option_of_every_tool_is_known(tool):
    import importlib
    import inspect

    module, _, name = tool[1].partition(":")
    options = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    check_tool(*tool, (), [f"--{each.name}" for each in options if each.kind is not each.VAR_POSITIONAL])


def test_a_class_may_have_its_bases_name(tmp_path, monkeypatch):
    (tmp_path / "named").mkdir()
    (tmp_path / "named/__init__.py").write_text("")
    (tmp_path / "named/first.py").write_text("class Net:\n    def __init__(self, size: int): ...\n")
    bases = ("from named import first", "first.Net"), ("import named.first", "named.first.Net")
    for number, (line, base) in enumerate((*bases, ("import named.first as other", "other.Net"))):
        source = f"{line}\nclass Net({base}):\n    def __init__(self, depth: int, **kwargs): ...\n"
        (tmp_path / f"named/second_{number}.py").write_text(source)
    (tmp_path / "named/unknown.py").write_text("class Net(elsewhere.Net): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert all(list(arguments(f"named.second_{number}", "Net")) == ["size", "depth"] for number in range(3))
    assert arguments("named.unknown", "Net") is None


def test_near():
    assert near("x", ["abc"]) == ""
    assert near("flow", ["flow/a", "flow/b", "flaw"]) == ": did you mean flow/a or flow/b?"


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
