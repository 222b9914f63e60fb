"""Search spaces: what the grammar reads, what it refuses, and the options and fragments that come of them."""

from pathlib import Path
from typing import get_type_hints

import pytest

from zoo.cli.tools import split_options
from zoo.tuning.report import short_names
from zoo.tuning.search import Space, nested, option, parse_spaces
from zoo.tuning.study import main as tune


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("a.b=uniform(0, 1)", Space("a.b", "uniform", 0.0, 1.0)),
        ("--a.b = uniform(0, 1, 0.25)", Space("a.b", "uniform", 0.0, 1.0, 0.25)),
        ("a=log(1e-5,1E-3)", Space("a", "log", 1e-5, 1e-3)),
        ("a=int(8, 65, step=8)", Space("a", "int", 8, 64, 8)),
        ("a=int(-2, 2)", Space("a", "int", -2, 2)),
        ("a=choice(1e-3, 8, true, null, text, .5)", Space("a", "choice", choices=(1e-3, 8, True, None, "text", 0.5))),
        ("a=choice([1, 2], [1, 2, 4])", Space("a", "choice", choices=([1, 2], [1, 2, 4]))),
        ("a=choice('007', \"1e-3\", '1')", Space("a", "choice", choices=("007", "1e-3", "1"))),
        ("a=choice(x=1)", Space("a", "choice", choices=("x=1",))),
    ],
)
def test_reads(text: str, space: Space) -> None:
    assert parse_spaces([text]) == [space]
    assert parse_spaces([f"{space.key}={space}"]) == [space]  # as study.yaml holds it


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "expected KEY=KIND"),
        ("a=logg(1, 2)", "did you mean log"),
        ("a=__import__('os').system('x')", "no search space"),
        ("a b=int(1, 2)", "no key"),
        ("a=log(0, 1)", "above 0"),
        ("a=log(1, 2, 3)", "expected log"),
        ("a=uniform(2, 1)", "low < high"),
        ("a=uniform(1, x)", "with numbers"),
        ("a=uniform(.nan, 1)", "low < high"),
        ("a=uniform(true, 2)", "with numbers"),
        ("a=int(1, 2.5)", "whole numbers"),
        ("a=int(1, 3, 5)", "a step that fits"),
        ("a=choice()", "needs values"),
        ("a=choice(1, 1)", "each once"),
        ("a=choice([1)", "cannot read"),
        ("trainer.default_root_dir=choice(a, b)", "set by the study"),
        ("nowhere.yaml", "no such"),
    ],
)
def test_refuses(text: str, said: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        parse_spaces([text])


@pytest.mark.parametrize("choices", [(True, 1), (1, 1.0, "1"), (0, False, None), (True, "true", 1)])
def test_choices_keep_their_types(choices):
    space = Space("a", "choice", choices=choices)
    assert [(type(each), each) for each in map(space.value, space.points())] == [(type(each), each) for each in choices]


def test_reads_files(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("model: {init_args: {lr: 'log(1e-5, 1)'}}\ndata.batch_size: [8, 16]\n")
    lr, size = Space("model.init_args.lr", "log", 1e-5, 1.0), Space("data.batch_size", "choice", choices=(8, 16))
    assert parse_spaces([str(file), "x=int(1, 2)"]) == [lr, size, Space("x", "int", 1, 2)]
    with pytest.raises(ValueError, match=r"data\.batch_size is searched twice"):
        parse_spaces(["data.batch_size=int(1, 2)", str(file)])
    with pytest.raises(ValueError, match="what to search"):
        parse_spaces([])


def test_values_of_a_grid() -> None:
    assert Space("a", "uniform", 0.1, 0.7, 0.2).points() == [0.1, 0.3, 0.5, 0.7]
    assert Space("a", "int", 1, 3).points() == [1, 2, 3]
    assert Space("a", "choice", choices=(None, [1])).points() == [None, "[1]"]
    with pytest.raises(ValueError, match="no steps"):
        Space("a", "log", 0.1, 1.0).points()


def test_options_and_fragments() -> None:
    assert [option("a", value) for value in (1e-5, None, [1, 2], "x y", True)] == [
        "--a=1e-05", "--a=null", "--a=[1, 2]", "--a=x y", "--a=true",
    ]  # fmt: skip
    config = {"model": {"class_path": "M", "init_args": {"optimizer": {"class_path": "O", "init_args": {"lr": 1}}}}}
    lr = {"model": {"init_args": {"optimizer": {"init_args": {"lr": 2}}}}, "trainer": {"max_steps": 3}}
    for key in ("model.init_args.optimizer.init_args.lr", "model.optimizer.lr"):
        assert nested(config, {key: 2, "trainer.max_steps": 3}) == lr
    assert nested(config, {"model.optimizer.class_path": "P"}) == {
        "model": {"init_args": {"optimizer": {"class_path": "P"}}}
    }


def test_short_names() -> None:
    keys = ["model.init_args.optimizer_g.init_args.lr", "model.init_args.optimizer_d.init_args.lr", "data.init_args.x"]
    assert list(short_names(keys).values()) == ["optimizer_g.lr", "optimizer_d.lr", "x"]


def test_own_options_and_those_of_fit() -> None:
    given = "flow/smoke --search a=int(1,2) --prune trainer/gpu --trainer.max_steps 5 --trials=3 --search b=int(1,2)"
    more = "--data.x=1 -c f.yaml --seed_everything 4 --trails 3"
    own, fit = split_options([*given.split(), *more.split()], get_type_hints(tune))
    assert own == ["--prune=true", "--trials=3", "--trails", "3", '--search=["a=int(1,2)", "b=int(1,2)"]']
    assert fit == "flow/smoke trainer/gpu --trainer.max_steps 5 --data.x=1 -c f.yaml --seed_everything 4".split()
