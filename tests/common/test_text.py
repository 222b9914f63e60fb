import pytest
import yaml

from tests.harness import REPOSITORY
from zoo.common.configs import YAMLBombError, load_json, load_yaml


def test_reads_every_recipe_as_yaml_does():
    for path in sorted((REPOSITORY / "configs").glob("*/*.yaml")):
        content = path.read_text(encoding="utf-8")
        assert load_yaml(content) == yaml.safe_load(content)


def test_aliases_are_kept():
    found = load_yaml("a: &a [1, {b: 2}]\nc: *a\nd: {<<: {e: 1}}")
    assert found == {"a": [1, {"b": 2}], "c": [1, {"b": 2}], "d": {"e": 1}}
    assert found["a"] is found["c"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[" * 101 + "]" * 101, "deeper"),
        ("\n".join(" " * i + "a:" for i in range(102)), "deeper"),
        ("a: &a [*a]", "within what it means"),
        ("1" + ":10" * 5000, "without quotes"),
        ("!!int '1" + ":10" * 5000 + "'", "without quotes"),
        ("x" * (2**20 + 1), "characters"),
        ("[" + "1," * 60_000 + "]", "more than 50000"),
    ],
)
def test_bombs_are_refused(content, reason):
    with pytest.raises(YAMLBombError, match=reason) as caught:
        load_yaml(content)
    assert isinstance(caught.value, yaml.YAMLError)


def test_a_long_quoted_text_is_read():
    assert load_yaml(f"a: '{'x' * 20_000}'") == {"a": "x" * 20_000}


def test_no_yaml():
    for content in ("a: [", "*missing", "!!python/name:os.system"):
        with pytest.raises(yaml.YAMLError):
            load_yaml(content)


def test_json(monkeypatch):
    assert load_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert load_json(b"[]") == []
    with pytest.raises(ValueError, match="deeply"):
        load_json("[" * 200_000)
    with pytest.raises(ValueError, match="Expecting"):
        load_json("{")
    monkeypatch.setattr("zoo.common.configs.MAX_JSON", 5)
    with pytest.raises(ValueError, match="at most 5"):
        load_json("[1, 2]")
