"""C1: a wrong config ends in exit code 2 and one line that names the key, never in a traceback, an import or a hang."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.attempts import Attempt, parse_and_build
from tests.harness import REPOSITORY, TOY_RECIPE, in_fork

SMALL = [TOY_RECIPE, REPOSITORY / "configs" / "hifigan" / "smoke.yaml"]
FRAGMENTS = sorted((REPOSITORY / "configs" / "trainer").glob("*.yaml"))
# Mappings with free keys: what belongs there is checked when the task is built, or is a name.
FREE = ("loss_weights", "discriminators")
TAKE_TEXT = ("val_check_interval", "devices", "precision")  # Lightning's, beside numbers
UNTYPED = ("find_unused_parameters", "broadcast_buffers")  # handed on by Lightning's DDPStrategy
ENDLESS = ("scales",)  # so many nets are built one by one, until the memory ends
Path_ = tuple[Any, ...]


def read(path: Path) -> dict[str, Any]:
    if path.parent.name == "trainer":
        return {**yaml.safe_load(TOY_RECIPE.read_text()), **yaml.safe_load(path.read_text())}
    return yaml.safe_load(path.read_text())


def walk(node: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key), value
        yield from walk(value, (*path, key))


def changed(recipe: dict[str, Any], path: Path_, value: Any) -> str:
    copied = copy.deepcopy(recipe)
    node = copied
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return yaml.safe_dump(copied, sort_keys=False)


@pytest.fixture(scope="module")
def bait(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bait")
    (folder / "bait.py").write_text("class Thing:\n    pass\n")
    return str(folder)


def check(attempt: Attempt, name: str | None = None, codes: tuple[int, ...] = (2,)) -> None:
    assert attempt.code in codes, attempt
    assert "Traceback" not in attempt.output, attempt
    assert attempt.seconds < 20
    if attempt.code:
        assert len(attempt.errors) == 1, attempt
        assert name is None or name in attempt.errors[0], (name, attempt)


def run(texts: list[str], build: bool, bait: str) -> list[Attempt]:
    results = in_fork(parse_and_build, texts, build, bait)
    assert not any(selected for _, selected in results)
    return [attempt for attempt, _ in results]


def unknown_keys(recipe: dict[str, Any]) -> list[str]:
    mappings = [path for path, value in walk(recipe) if isinstance(value, dict) and path[-1] not in FREE]
    return [changed(recipe, (*path, "unknown_key"), 1) for path in [(), *mappings]]


def wrong_types(recipe: dict[str, Any]) -> list[tuple[Path_, str]]:
    numbers = [path for path, value in walk(recipe) if isinstance(value, int | float) and path[-1] not in UNTYPED]
    wrong = [(path, [[1]]) for path in numbers]
    wrong += [(path, value) for path in numbers if path[-1] not in TAKE_TEXT for value in ("nonsense", {"a": 1})]
    return [(path, changed(recipe, path, value)) for path, value in wrong]


def missing_classes(recipe: dict[str, Any]) -> list[tuple[str, str]]:
    classes = [path for path, _ in walk(recipe) if path[-1] == "class_path"]
    wrong = ("zoo.hifigan.nets.generator.Absent", "zoo.absent.Thing", "bait.Thing", "no_such_package.Thing")
    return [(name, changed(recipe, path, name)) for path in classes for name in wrong]


def named_for(path: Path_) -> str:
    """The key that an error at a place names: of a list or a mapping with free keys, its own."""
    return next(key for key in reversed(path if path[-2:][0] not in FREE else path[:-1]) if isinstance(key, str))


def test_valid_configs_parse(bait: str) -> None:  # tests/cli/test_meta_device.py builds every recipe
    for attempt in run([yaml.safe_dump(read(path)) for path in (*SMALL, *FRAGMENTS)], False, bait):
        check(attempt, codes=(0,))


@pytest.mark.parametrize("path", [SMALL[0], pytest.param(SMALL[1], marks=pytest.mark.slow)], ids=["toy", "hifigan"])
def test_wrong_keys_types_and_classes(path: Path, bait: str) -> None:
    recipe = read(path)
    cases = [("unknown_key", text) for text in unknown_keys(recipe)]
    cases += [(named_for(path), text) for path, text in wrong_types(recipe)]
    cases += missing_classes(recipe)
    assert len(cases) > 30
    for (name, _), attempt in zip(cases, run([text for _, text in cases], False, bait), strict=True):
        check(attempt, name)


@pytest.mark.parametrize("path", [SMALL[0], pytest.param(SMALL[1], marks=pytest.mark.slow)], ids=["toy", "hifigan"])
def test_absurd_values(path: Path, bait: str) -> None:
    recipe = read(path)
    places = [place for place, _ in walk(recipe) if place[-1] not in ENDLESS]
    values = (10**18, 10**30, -7, 0, None, float("inf"), [1, [2]])
    for attempt in run([changed(recipe, place, value) for place in places for value in values], True, bait):
        check(attempt, codes=(0, 2))


def mutate(text: str, rng: random.Random) -> str:
    """Make one to three accidents in a recipe: lines lost, doubled or indented, values and characters exchanged."""
    values = ["-1", "''", "null", "[]", "{}", "1e400", ".nan", "${a.b}", "${oc.env:HOME}", "!!python/name:os.system"]
    characters = ["\x00", "\udcff", "é", "&a ", "*a ", "'", '"', "{", "]", "%"]
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        line = rng.randrange(len(lines))
        position = rng.randint(0, len(lines[line]))
        key = lines[line].partition(":")[0]
        lines[line : line + 1] = rng.choice(
            [
                [],
                [lines[line], rng.choice(lines)],
                [" " * rng.randint(0, 5) + lines[line].lstrip()],
                [f"{key}: {rng.choice(values)}"],
                [lines[line].replace(":", rng.choice(["", "::", ": :", ":\t"]), 1)],
                [lines[line][:position] + rng.choice(characters) + lines[line][position:]],
            ]
        )
        text = "\n".join(lines)
    return text


def test_mutated_files(bait: str) -> None:
    rng = random.Random(0)
    texts = [mutate(rng.choice(SMALL).read_text(), rng) for _ in range(40)]
    for text, attempt in zip(texts, run(texts, True, bait), strict=True):
        try:
            check(attempt, codes=(0, 2))
        except AssertionError as error:
            raise AssertionError(f"{attempt}\n{text}") from error
