"""Search spaces: what the grammar reads and refuses, and the options that come of them."""

import json

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FixedTrial

from zoo.tuning.search_space import grid_points, parse_search_space, recipe_values, suggest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform(0, 1)", FloatDistribution(0, 1)),
        ("uniform(0, 1, 0.25)", FloatDistribution(0, 1, step=0.25)),
        ("log(1e-5,1E-3)", FloatDistribution(1e-5, 1e-3, log=True)),
        ("int(8, 65, 8)", IntDistribution(8, 64, step=8)),
        ("choice(1e-3, 8, true, null, text, x=1)", [1e-3, 8, True, None, "text", "x=1"]),
        ("choice([1, 2], [1, 2, 4])", [[1, 2], [1, 2, 4]]),
    ],
)
def test_spaces_are_read(text, expected):
    if isinstance(expected, list):
        expected = CategoricalDistribution([json.dumps(value) for value in expected])
    assert parse_search_space([f"--a.b = {text}"]) == {"a.b": expected}


@pytest.mark.parametrize(
    "text",
    [
        "a", "a=logg(1, 2)", "a=__import__('os').system('x')", "a b=int(1, 2)", "a=log(0, 1)", "a=uniform(2, 1)",
        "a=uniform(1, x)", "a=uniform(.nan, 1)", "a=uniform(true, 2)", "a=int(1, 2.5)", "a=choice()", "a=choice(1, 1)",
        "a=choice([1)", "a=log(1, 2, 1)", "trainer.default_root_dir=choice(a, b)",
    ],
)  # fmt: skip
def test_wrong_spaces_are_refused(text):
    with pytest.raises(ValueError, match="--search"):
        parse_search_space([text])


def test_a_grid_has_every_combination_and_choices_keep_their_types():
    space = parse_search_space(["a=choice(true, 1, 1.0, '1', 'true', '1e-3')", "b=choice(x, null)"])
    points = grid_points(space)
    assert len(points) == 6 * 2
    trials = [FixedTrial(point) for point in points]
    flags = [suggest(trial, space) for trial in trials]
    assert [(type(value), value) for value in (recipe_values(trial)["a"] for trial in trials[::2])] == [
        (bool, True), (int, 1), (float, 1.0), (str, "1"), (str, "true"), (str, "1e-3"),
    ]  # fmt: skip
    assert flags[1] == ["--a=true", "--b=null"]
    with pytest.raises(ValueError, match="c is a range"):
        grid_points(parse_search_space(["c=int(1, 3)"]))
