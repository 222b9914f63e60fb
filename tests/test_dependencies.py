"""What the sources import is what pyproject.toml installs, and an extra holds what it says."""

import ast
import importlib.metadata
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.harness import REPOSITORY
from zoo.training.errors import EXTRAS

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# lm_eval brings 25 packages, and what is built for it is tested without it; slow tests use the files of `evidence`
OUTSIDE_DEV = {"lm_eval", "evidence"}
OWN_PACKAGES = {"zoo", "scripts", "tests", "toy_system", "colours"}
OF_EXTRAS = ("ui/", "serve/", "tuning/study.py", "tuning/search_space.py")  # imported where a command needs its extra
# Distribution that is imported and not declared -> the declared one whose interface it belongs to.
PART_OF = {
    "antlr4-python3-runtime": "omegaconf",
    "fonttools": "matplotlib",
    "httpx": "nicegui",
    "ipython": "ipykernel",
    "lightning-utilities": "lightning",
    "mkdocs": "mkdocs-material",
    "pydantic": "fastapi",
    "python-socketio": "nicegui",
    "starlette": "fastapi",
    "torchmetrics": "lightning",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def by_name(requirement: str) -> str:
    """The distribution of a requirement."""
    return normal(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


DIRECT = {by_name(each) for each in PROJECT["dependencies"]}
OPTIONAL = {name: {by_name(each) for each in lines} for name, lines in PROJECT["optional-dependencies"].items()}
OF_USERS = DIRECT | set().union(*(names for extra, names in OPTIONAL.items() if extra != "dev"))
WITHOUT_DEPENDENCIES = {
    by_name(each)
    for line in (REPOSITORY / "scripts" / "prepare_evidence.sh").read_text(encoding="utf-8").splitlines()
    for each in line.partition(" --no-deps ")[2].split()
}
DECLARED = (OF_USERS | OPTIONAL["dev"] | WITHOUT_DEPENDENCIES) - {"zoo"}


@cache
def distributions() -> dict[str, set[str]]:
    """Module -> the installed distributions that have it."""
    return {
        name: {normal(each) for each in results}
        for name, results in importlib.metadata.packages_distributions().items()
    }


def sources(path: Path) -> Iterator[str]:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    else:
        yield path.read_text(encoding="utf-8")


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and first name of whatever is imported at or below a node, by a statement or by name."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from ((each.lineno, alias.name.partition(".")[0]) for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.lineno, each.module.partition(".")[0]
        elif isinstance(each, ast.Call) and each.args and isinstance(each.args[0], ast.Constant):
            called = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
            if called in ("import_module", "find_spec", "importorskip"):
                yield each.lineno, str(each.args[0].value).partition(".")[0]


@cache
def imported(folder: str) -> dict[str, str]:
    """Foreign modules that the files of a folder import -> the place of one import."""
    results: dict[str, str] = {}
    for path in sorted((REPOSITORY / folder).rglob("*")):
        for source in sources(path) if path.suffix in (".py", ".ipynb") else ():
            for line, module in imports(ast.parse(source)):
                if module not in OWN_PACKAGES and module not in sys.stdlib_module_names:
                    results.setdefault(module, f"{path.relative_to(REPOSITORY)}:{line}")
    return results


@pytest.mark.parametrize("folder", ["zoo", "scripts", "tests", "notebooks"])
def test_what_is_imported_is_installed(folder: str) -> None:
    declared = OF_USERS if folder == "zoo" else DECLARED
    for module, place in imported(folder).items():
        loaded = distributions().get(module, {normal(module)})
        assert loaded & declared or {PART_OF.get(each) for each in loaded} & declared, (
            f"{place} imports {module}, which pyproject.toml does not install"
        )


def test_the_base_needs_no_extra() -> None:
    """What runs at import, but for the page, the server and studies, comes with the base installation."""
    for path in sorted((REPOSITORY / "zoo").rglob("*.py")):
        if path.relative_to(REPOSITORY / "zoo").as_posix().startswith(OF_EXTRAS) and path.name != "commands.py":
            continue
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node in (each for each in body if isinstance(each, ast.Import | ast.ImportFrom)):
            for line, module in imports(node):
                results = distributions().get(module, {normal(module)})
                available = module in OWN_PACKAGES or module in sys.stdlib_module_names or results & DIRECT
                assert available, f"{path}:{line} imports {module} at its top"


def test_extras_and_their_modules_are_those_of_the_table() -> None:
    users = set(OPTIONAL) - {"dev"} - OUTSIDE_DEV
    assert users == set(EXTRAS)
    for extra, modules in EXTRAS.items():
        loaded = set().union(*(distributions()[module] for module in modules))
        assert OPTIONAL[extra] <= loaded, f"{extra}: EXTRAS names no module of {OPTIONAL[extra] - loaded}"
        for module in modules:
            assert distributions()[module] & OPTIONAL[extra], f"{extra}: {module}"
