"""Search spaces: what the grammar reads and refuses, and the options and fragments that come of them."""

import json
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FixedTrial

from zoo.tuning.report import short_names
from zoo.tuning.search_space import complete_key, grid_points, parse_search_space, suggest, to_flag, to_fragment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform(0, 1)", FloatDistribution(0, 1)),
        ("uniform(0, 1, 0.25)", FloatDistribution(0, 1, step=0.25)),
        ("log(1e-5,1E-3)", FloatDistribution(1e-5, 1e-3, log=True)),
        ("int(8, 65, step=8)", IntDistribution(8, 64, step=8)),
        ("choice(1e-3, 8, true, null, text, x=1)", [1e-3, 8, True, None, "text", "x=1"]),
        ("choice([1, 2], [1, 2, 4])", [[1, 2], [1, 2, 4]]),
        ("choice('007', \"1e-3\", '1', 1, true, 1.0)", ["007", "1e-3", "1", 1, True, 1.0]),
    ],
)
def test_spaces_are_read(text, expected):
    if isinstance(expected, list):
        expected = CategoricalDistribution([json.dumps(value) for value in expected])
    assert parse_search_space([f"--a.b = {text}"]) == {"a.b": expected}


def test_choices_keep_their_types():
    space = parse_search_space(["a=choice(true, 1, 1.0, '1', 'true', '1e-3')"])
    values = [suggest(FixedTrial(point), space)["a"] for point in grid_points(space)]
    assert [(type(value), value) for value in values] == [
        (bool, True), (int, 1), (float, 1.0), (str, "1"), (str, "true"), (str, "1e-3"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "a", "a=logg(1, 2)", "a=__import__('os').system('x')", "a b=int(1, 2)", "a=log(0, 1)", "a=uniform(2, 1)",
        "a=uniform(1, x)", "a=uniform(.nan, 1)", "a=uniform(true, 2)", "a=int(1, 2.5)", "a=choice()", "a=choice(1, 1)",
        "a=choice([1)", "a=log(1, 2, 1)", "trainer.default_root_dir=choice(a, b)", "nowhere.yaml",
    ],
)  # fmt: skip
def test_wrong_spaces_are_refused(text):
    with pytest.raises((ValueError, FileNotFoundError)):
        parse_search_space([text])


def test_files_are_read(tmp_path: Path):
    file = tmp_path / "space.yaml"
    file.write_text("model: {init_args: {lr: 'log(1e-5, 1)'}}\ndata.batch_size: [8, 16]\n")
    assert list(parse_search_space([str(file), "x=int(1, 2)"])) == ["model.init_args.lr", "data.batch_size", "x"]
    with pytest.raises(ValueError, match=r"data\.batch_size"):
        parse_search_space(["data.batch_size=int(1, 2)", str(file)])


def test_a_grid_has_every_combination():
    points = grid_points(parse_search_space(["a=uniform(0.1, 0.7, 0.2)", "b=int(1, 3)", "c=choice(x, null)"]))
    assert len(points) == 4 * 3 * 2
    assert points[0] == {"a": 0.1, "b": 1, "c": '"x"'} and {point["a"] for point in points} == {0.1, 0.3, 0.5, 0.7}
    for text in ("a=log(0.1, 1.0)", "a=int(1, 1000000000)", "a=uniform(0, 1, 1e-9)"):
        with pytest.raises(ValueError, match="grid"):
            grid_points(parse_search_space([text]))


def test_options_and_fragments():
    flags = [to_flag("a", value) for value in (1e-5, None, [1, 2], "x y", True)]
    assert flags == ["--a=1e-05", "--a=null", "--a=[1, 2]", "--a=x y", "--a=true"]
    config = {"model": {"class_path": "M", "init_args": {"optimizer": {"class_path": "O", "init_args": {"lr": 1}}}}}
    full = "model.init_args.optimizer.init_args.lr"
    assert complete_key(config, "model.optimizer.lr") == complete_key(config, full) == full
    assert complete_key(config, "model.optimizer.class_path") == "model.init_args.optimizer.class_path"
    assert to_fragment({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


def test_short_names():
    keys = ["model.init_args.optimizer_g.init_args.lr", "model.init_args.optimizer_d.init_args.lr", "data.init_args.x"]
    assert list(short_names(keys).values()) == ["optimizer_g.lr", "optimizer_d.lr", "x"]
