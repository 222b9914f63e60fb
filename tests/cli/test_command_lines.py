"""Wrong command lines and configs: one line that names the key and the nearest one; recipes that are merged."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from tests.harness import REPOSITORY, error_line
from zoo.cli.main import main
from zoo.cli.recipes import compose_arguments, find_recipe, read_files, split_arguments
from zoo.cli.tools import find_tools, split_options
from zoo.cli.trainer import recipe_name
from zoo.common.configs import load_recipe, load_run_config, merge
from zoo.runs.load import load


def call(*args):
    """Return the exit code of a command and what it printed, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
        code = main([str(arg) for arg in args])
    return code, out.getvalue().strip()


def write(path: Path, **content):
    path.write_text(yaml.safe_dump(content))
    return path


# answered without torch
EARLY = [
    ("fit flow/smoek", "did you mean flow/smoke"),
    ("fit flow", "did you mean flow/"),
    ("fit flow/smoke --optim.lr=1", "did you mean --model.optimizer.lr?"),
    ("fit flow/smoke --seed 3", "did you mean --seed_everything?"),
    ("train flow/smoke", "did you mean zoo fit RECIPE?"),
    ("fit --config=configs/flow/smok.yaml", "did you mean configs/flow/smoke"),
    ("fit configs/flow", "--ckpt_path takes runs"),
    ("fit flow/smoke --chekpoints.monitor=x", "did you mean --checkpoints.monitor?"),
    ("fit flow/smoke --output=x", "--output"),
    ("fti", "did you mean fit?"),
    ("evaluate flw", "did you mean evaluate flow"),
]
NET = "model.init_args.net.init_args"
WRONG = [
    *EARLY,
    ("fit hifigan/smoke --data.split.val_items=3", "data.split.val_items: did you mean items or val_list?"),
    ("fit flow/smoke --data.batch_sise=3", "data.batch_sise: did you mean batch_size? (keys of zoo.flow.ImageData: "),
    (f"fit flow/smoke --{NET}.chanels=3", f"{NET}.chanels: did you mean channels"),
    ("fit flow/smoke --model.net zoo.flow.UNt", "model.net: zoo.flow registers no class 'zoo.flow.UNt'; nearest: UNet"),
    ("fit flow/smoke --model.optimizer=torch.optim.SGD --model.optimizer.betas=3", "keys of torch.optim.SGD"),
    ("fit flow/smoke --trainer.precision bf16-mixd", "error: trainer.precision: expected"),
    ("fit flow/smoke --trainer.overfit_batches 2", "overfit_batches would train on other batches in each epoch"),
    ("fit flow/smoke --seed_everything -1", "seed_everything is -1"),
    ("fit flow/smoke --model.optimizer.lr .nan", "model.init_args.optimizer.init_args.lr is nan; expected a finite"),
    ("fit flow/smoke --data.batch_size eight", "error: data.batch_size: expected int, got eight"),
    (
        "fit flow/smoke --trainer.callbacks=[{class_path:\xa0zoo.training.EMA,init_args:\xa0{decay:\xa0x}}]",
        "error: trainer.callbacks.0.init_args.decay: expected float, got x",
    ),
    ("fit --trainer.max_steps 3", "fit needs a recipe"),
    ("fit flow/smoke --allow-import", "--allow-import needs a value"),
    ("list flw", "did you mean flow?"),
    ("predict", "predict needs --ckpt_path, --input, --output"),
    ("find-lr flow/smoke --stepps 5", "find-lr has no option --stepps (options: --min_lr"),
    ("runs --lsat 5", "runs has no option --lsat: did you mean --last?"),
    ("evaluate compressed_ad --run x --output y --episodes many", "expected int, got many"),
    ("fit flow/smoke --checkpoints.every_n_steps=0", "checkpoints.every_n_steps is 0"),
    ("fit flow/smoke --trainer.val_check_interval=0.0", "trainer.val_check_interval is 0.0"),
    ("fit flow/smoke --data.batch_size=-2", "data.init_args.batch_size is -2"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_name_is_answered_with_the_nearest(line, message, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    code, text = call(*(word.replace("\xa0", " ") for word in line.split(" ")))
    assert code == 2
    assert message in text
    assert len(text.splitlines()) == 1


def test_wrong_name_imports_no_torch():
    script = f"import sys; from zoo.cli.main import main\nfor line in {[line for line, _ in EARLY]!r}: "
    script += "assert main(line.split()) == 2\n"
    script += "assert not {'torch', 'lightning', 'jsonargparse', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=REPOSITORY, capture_output=True, timeout=120)


MODEL = {"class_path": "zoo.flow.FlowTask", "init_args": {"net": {"class_path": "zoo.flow.UNet", "init_args": {}}}}
GUARDED = {"class_path": "zoo.flow.FlowTask", "init_args": {"guard": {"class_path": "zoo.training.EMAA"}}}


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"modle": {}}, "modle: did you mean model?"),
        ({"trainer": {"callbacks": [{"class_path": "zoo.training.EMAA"}]}}, "trainer.callbacks.0.class_path"),
        ({"trainer": {"callbacks": [{"class_path": "zoo.training.EMA", "decay": 1}]}}, "trainer.callbacks.0.decay"),
        ({"data": {"class_path": "zoo.flow.PointData", "init_args": {"kind": "moon"}}}, "data.init_args.kind"),
        ({"model": GUARDED}, "model.init_args.guard"),
        ({"model": {"init_args": {"net": {"init_args": {"channls": 3}}}}}, f"{NET}.channls: did you mean channels"),
        ({"samples": "few"}, '"samples"'),
    ],
    ids=str,
)
def test_wrong_config_names_file_and_key(tmp_path, content, key):
    code, text = call("fit", "flow/smoke", write(tmp_path / "x.yaml", **content))
    assert (code, len(text.splitlines())) == (2, 1), text
    assert "x.yaml: " in text and key in text


def test_wrong_key_of_a_section_file_is_named(tmp_path):
    first = write(tmp_path / "a.yaml", model=MODEL)
    second = write(tmp_path / "c.yaml", init_args={"net": {"init_args": {"channls": 3}}})
    code, text = call("fit", "--config", first, "--model", second)
    assert code == 2 and f"c.yaml: unknown key {NET}.channls: did you mean channels" in text


@pytest.mark.parametrize(
    ("option", "text"),
    [*(("--config", text) for text in ("", "text", "a: [")), ("--data", "trainer: {max_steps: 1, max_steps: 2}")],
)
def test_unreadable_config_is_named(option, text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    code, text = call("fit", "flow/smoke", option, path)
    assert (code, len(text.splitlines())) == (2, 1), text
    assert f"zoo: error: {path}" in text


def test_words_are_recipes():
    args = ["--trainer.max_steps", "-1", "flow/smoke", "--config=trainer/gpu", "--print_config"]
    files, options = read_files(args)
    assert [path for path, _ in files] == [find_recipe(name) for name in ("flow/smoke", "trainer/gpu")]
    assert options == ["--trainer.max_steps=-1", "--print_config"]
    assert list(split_arguments(["-c", "x", "--a=b=c", "-q", "flow/smoke", "--flag", "--b"])) == [
        ("-c", "x"), ("--a", "b=c"), ("-q", None), ("", "flow/smoke"), ("--flag", None), ("--b", None)]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "comment", "name"),
    [
        ("run", "# zoo==0.1.0\n# recipe: flow/my recipe\n", "flow/my recipe"),
        ("run", "# recipe: ../../../x\n", "run/config"),
        ("run", "# recipe: /x\n", "run/config"),
        ("mine/configs", "", "mine/config"),
    ],
)
def test_a_run_is_named_below_the_folder_of_runs(place, comment, name, tmp_path):
    path = tmp_path / place / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"{comment}seed_everything: 1\n")
    assert recipe_name([str(path)]) == name
    assert recipe_name(["/config.yaml"]) == "unnamed/config"


def test_summary_of_a_tool_is_its_docstrings_first_line():
    for name, tool in find_tools().items():
        assert tool.load().__doc__.partition("\n")[0] == tool.summary, name


def test_options_of_fit_are_passed_on_by_a_tool():
    args = "flow/smoke --search a=int(1,2) --prune trainer/gpu --trainer.max_steps 5 --trials=3 --search b=int(1,2)"
    more = "--data.x=1 -c f.yaml --seed_everything 4 --trails 3"
    words, options = split_options([*args.split(), *more.split()], get_type_hints(find_tools()["tune"].load()), True)
    assert options == ["--search+=a=int(1,2)", "--prune=true", "--trials=3", "--search+=b=int(1,2)", "--trails=3"]
    assert words == "flow/smoke trainer/gpu --trainer.max_steps=5 --data.x=1 -c=f.yaml --seed_everything=4".split()


def test_run_names_its_classes_publicly(tmp_path):
    limits = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0", f"--trainer.default_root_dir={tmp_path}"]
    assert main(["fit", "flow/demo_swissroll", "--model.net", "zoo.flow.nets.mlp.ToyNet", *limits]) == 0
    assert "class_path: zoo.flow.ToyNet" in (tmp_path / "config.yaml").read_text()
    assert load(tmp_path).dry_run()


MERGED = [
    ({"a": {"x": 1, "y": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ({"a": 1.5, "b": 3.0}, {"b": 2.0, "a": 1.0}, {"b": 2.0, "a": 1.0}),  # all keys give their order
    ({"a": {"x": 1}}, {"a": None}, {"a": None}),
    ({"a": [1]}, {"a": [2]}, {"a": [2]}),
    ({"a": [1]}, {"a+": {"x": 2}}, {"a": [1, {"x": 2}]}),
    ({"a": [1]}, {"a+": None}, {"a": [1]}),
    ({}, {"a+": 2}, {"a+": [2]}),
    ({"a+": [1]}, {"a+": [2]}, {"a+": [1, 2]}),
    ({"a": "one"}, {"a+": "two"}, {"a": ["one", "two"]}),
    ({"a": {"class_path": "p.A", "init_args": {"x": 1}}}, {"a": {"init_args": {"y": 2}}},
     {"a": {"class_path": "p.A", "init_args": {"x": 1, "y": 2}}}),
    ({"a": {"class_path": "p.A", "init_args": {"x": 1}}}, {"a": {"class_path": "A", "init_args": {"y": 2}}},
     {"a": {"class_path": "A", "init_args": {"x": 1, "y": 2}}}),
    ({"a": {"class_path": "p.A", "init_args": {"x": 1}}}, {"a": {"class_path": "p.B"}}, {"a": {"class_path": "p.B"}}),
    ({"a": {"model_type": "llama", "x": 1}}, {"a": {"model_type": "gpt2"}}, {"a": {"model_type": "gpt2"}})
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "merged"), MERGED)
def test_configs_merge(before, after, merged):
    assert str(merge(before, after)) == str(merged)  # in this order


def test_recipe_extends_others(tmp_path):
    write(tmp_path / "base.yaml", trainer={"max_steps": 1, "precision": "32-true"}, seed_everything=1)
    write(tmp_path / "middle.yaml", extends="base", trainer={"max_steps": 2})
    top = write(tmp_path / "top.yaml", extends=["middle", "trainer/ddp"], seed_everything=3)
    extended = load_run_config(find_recipe("trainer/ddp"))["trainer"]
    expected = {"trainer": {"max_steps": 2, "precision": "32-true", **extended}, "seed_everything": 3}
    assert load_recipe(top) == expected
    config, *options = compose_arguments([f"--config={top}", "--seed_everything=4"])
    assert yaml.safe_load(config.removeprefix("--config=")) == expected and options == ["--seed_everything=4"]


def test_lists_are_added_to_across_files(tmp_path):
    write(tmp_path / "base.yaml", trainer={"callbacks": ["a"]})
    plus = write(tmp_path / "plus.yaml", **{"trainer": {"callbacks+": "b"}, "loggers+": ["wandb"]})
    both = write(tmp_path / "both.yaml", extends=["base", "plus"])
    more = write(tmp_path / "more.yaml", trainer={"callbacks+": ["c"]})
    expected = {"trainer": {"callbacks": ["a", "b", "c"]}, "loggers": ["wandb"]}
    for files in ([tmp_path / "base.yaml", plus, more], [both, more]):
        (config,) = compose_arguments([f"--config={path}" for path in files])
        assert yaml.safe_load(config.removeprefix("--config=")) == expected
    assert load_recipe(plus) == {"trainer": {"callbacks": ["b"]}, "loggers": ["wandb"]}


@pytest.mark.parametrize(
    "extends", ["top", "other", "nowhere", "flow/nowhere", "../top", "/etc/passwd", "base.yaml", {"a": 1}, None]
)
def test_recipe_extends_recipes_only(extends, tmp_path):
    top = write(tmp_path / "top.yaml", extends=extends)
    write(tmp_path / "other.yaml", extends="top")
    with pytest.raises(ValueError, match="extends"):
        load_recipe(top)


def test_option_before_the_recipe_wins(tmp_path):
    data = write(tmp_path / "data.yaml", init_args={"batch_size": 64})
    flags = [
        "--seed_everything",
        "77",
        "--trainer.max_steps",
        "1",
        "--data.init_args.batch_size=8",
        "--model.net=ToyNet",
    ]
    code, text = call("fit", *flags, "--config", "flow/demo_swissroll", "--data", data, "--print_config")
    config = yaml.safe_load(text)
    assert (code, config["seed_everything"], config["trainer"]["max_steps"]) == (0, 77, 1)
    assert (config["data"]["init_args"]["seed"], config["data"]["init_args"]["batch_size"]) == (77, 8)
    assert config["model"]["init_args"]["net"]["class_path"] == "zoo.flow.ToyNet"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit --ckpt_path last", "no run with a checkpoint"),
        ("fit --ckpt_path https://example.org/x.ckpt", "local paths only"),
        ("fit flow/smoke --init_from ", "init_from is ''"),
        ("fit hifigan/smoke --trainer.accumulate_grad_batches 2", "step.accumulate"),
        ("fit hifigan/smoke --data.split.items 0 --data.corpus.cache cache", "data.split.items is 0 for 12 clips"),
        ("fit miipher/adapter_layer_6 --trainer.accelerator cpu", "neither a local folder"),
    ],
)
def test_a_start_that_fails_is_one_line_and_leaves_nothing(line, message, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, text = call(*line.split(" "))
    assert code in (1, 2) and message in error_line(text)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_mistyped_monitor_is_named_before_the_first_step(tmp_path, working_folder):
    code, text = call("fit", "flow/smoke", "--checkpoints.monitor", "val/los")
    assert code != 0 and "checkpoints.monitor: no validation gives val/los: did you mean val/loss?" in text
    assert not list(tmp_path.rglob("*.ckpt"))
