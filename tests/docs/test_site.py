"""The reference on the site leaves nothing out: every public name, each of its arguments, every key of every recipe."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from scripts.site import docstring, import_function
from zoo.cli.config_worker import argument_texts, describe_arguments, describe_config
from zoo.cli.tools import NO_OPTIONS, find_tools
from zoo.common import registry
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_paths
from zoo.ui.tabs.config_edits import describe_key, flatten

pytest.importorskip("mkdocs")
site = importlib.import_module("scripts.site")


VARIADIC = ("args", "kwargs")


def undescribed(place: str) -> list[str]:
    """Arguments of a function that its docstring does not describe."""
    function = import_function(place)
    texts = argument_texts(function.__doc__)
    return [
        name
        for name in inspect.signature(function).parameters
        if not texts.get(name) and name not in {*VARIADIC, *NO_OPTIONS}
    ]


@pytest.mark.parametrize("package", registry.PACKAGES)
def test_every_part_stands_in_the_reference_with_all_its_arguments(package: str) -> None:
    page = site._parts(package)
    unclear = []
    for name in registry.component_names(package):
        module, short = registry.defining_module(name) or "", name.rpartition(".")[2]
        assert f"::: {module}.{short}\n    options:\n      heading: {name}\n" in page
        cls = registry.get_class(name)
        assert cls.__doc__, f"{name} has no docstring"
        described = describe_arguments(cls)
        unclear += [f"{name}: {key}" for key, each in described.items() if not (each["help"] or key in VARIADIC)]
    assert unclear == [], "no line in Args says what these are"


def test_every_public_name_of_the_package_is_a_part_or_in_the_reference() -> None:
    import zoo

    assert [name for name in zoo.__all__ if f"zoo.{name}" not in {*site.CALLED, "zoo.__version__"}] == []
    page = site._called()
    for name, place in site.CALLED.items():
        assert f"## {name}\n" in page and docstring(place).strip()
        assert undescribed(place) == []


def test_every_command_and_each_of_its_arguments_is_reported() -> None:
    page = site._commands()
    for name, tool in find_tools().items():
        assert f"## zoo {name}\n" in page and docstring(tool.path).strip(), f"zoo {name} has no docstring"
        assert undescribed(tool.path) == [], f"zoo {name}"


@pytest.mark.parametrize(("name", "path"), recipe_paths().items(), ids=lambda value: str(value))
def test_every_key_of_a_recipe_has_a_meaning(name: str, path: Path) -> None:
    config = load_recipe(path)
    values, arguments = flatten(config), describe_config(config)
    assert [key for key in values if not describe_key(arguments, values, key).get("help")] == [], f"{name}: no meaning"
    rows = [line for line in site._recipe(name, path) if line.startswith("| <code")]
    assert len(rows) == len(values)
    assert all(re.fullmatch(r"\| <code class=\"key\">.+</code> \| `.*` \| .+ \|", row) for row in rows)
