"""Texts of recipes, wrong in every way: exit code 2 and one line that names the key; no traceback, import or hang.

No text becomes an import, an unpickling strategy, a request or a path outside, by a library's syntax.
"""

import contextlib
import copy
import io
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import yaml

from tests.harness import SMOKE, TOY_RECIPE, in_fork
from zoo.cli.main import main
from zoo.common import registry

MEMORY = 8 * 2**30  # more than any recipe's nets take


class Attempt(NamedTuple):
    """One call of `zoo`."""

    code: int
    output: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("zoo") and "error: " in line]


def parse_and_build(configs: Sequence[str], build: bool, bait: str = "") -> list[tuple[Attempt, bool]]:
    """Give each text to `zoo fit` as a config, up to the first batch; also tell whether the bait was taken.

    Args:
        configs: YAML texts.
        build: build model, data and trainer; otherwise parse only.
        bait: folder with a module `bait` that no config may import.
    """
    sys.path.insert(0, bait)
    attempts = []
    stop = contextlib.ExitStack()
    stop.enter_context(mock.patch("zoo.cli.trainer.fit"))
    if not build:
        stop.enter_context(mock.patch("zoo.cli.trainer.ZooCLI.instantiate_classes"))
    with limited_memory(), tempfile.TemporaryDirectory() as folder, stop:
        os.chdir(folder)
        for text in configs:
            Path("config.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
            attempts.append(
                (attempt(["fit", "--config", "config.yaml", "--allow-import", "toy_system"]), "bait" in sys.modules)
            )
    return attempts


def attempt(args: list[str]) -> Attempt:
    output = io.StringIO()
    started = time.monotonic()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(args)
    return Attempt(code, output.getvalue(), time.monotonic() - started)


@contextlib.contextmanager
def limited_memory():
    """Let a net of absurd size fail instead of taking the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


SMALL = [TOY_RECIPE, SMOKE]
# Mappings with free keys: what belongs there is checked when the task is built, or is a name.
FREE = ("loss_weights", "discriminators")
TAKE_TEXT = ("val_check_interval", "devices", "precision")  # Lightning's, beside numbers
UNTYPED = ("find_unused_parameters", "broadcast_buffers")  # handed on by Lightning's DDPStrategy
ENDLESS = ("scales",)  # so many nets are built one by one, until the memory ends
Path_ = tuple[Any, ...]


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


@pytest.mark.parametrize("path", [SMALL[0], pytest.param(SMALL[1], marks=pytest.mark.slow)], ids=["toy", "hifigan"])
def test_wrong_keys_types_and_classes(path: Path, bait: str) -> None:
    content = yaml.safe_load(path.read_text())
    cases = [("unknown_key", text) for text in unknown_keys(content)]
    cases += [(named_for(path), text) for path, text in wrong_types(content)]
    cases += missing_classes(content)
    assert len(cases) > 30
    for (name, _), attempt in zip(cases, run([text for _, text in cases], False, bait), strict=True):
        check(attempt, name)


@pytest.mark.parametrize("path", [SMALL[0], pytest.param(SMALL[1], marks=pytest.mark.slow)], ids=["toy", "hifigan"])
def test_absurd_values(path: Path, bait: str) -> None:
    content = yaml.safe_load(path.read_text())
    places = [place for place, _ in walk(content) if place[-1] not in ENDLESS]
    values = (10**18, 10**30, -7, 0, None, float("inf"), [1, [2]])
    for attempt in run([changed(content, place, value) for place in places for value in values], True, bait):
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


LIGHTNING = "lightning.pytorch"
SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
MODULES = {"FSDPStrategy": "fsdp", "DeepSpeedStrategy": "deepspeed", "ModelParallelStrategy": "model_parallel"}
SHORTHANDS = (
    "fsdp", "FSDP", "fsdp_cpu_offload", "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2",
    "deepspeed_stage_2_offload", "deepspeed_stage_3", "deepspeed_stage_3_offload", "deepspeed_stage_3_offload_nvme",
    "xla", "xla_debug", "single_xla", "single_tpu", "model_parallel", "bait:Thing", "bait.Thing",
)  # fmt: skip


def part(path: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": path, "init_args": arguments}


SPELLINGS = [
    *SHORTHANDS,
    *(f"{LIGHTNING}.strategies.{name}" for name in SHARDED),
    *(part(name) for name in SHARDED),
    *(part(f"{LIGHTNING}.strategies.{MODULES[name]}.{name}") for name in SHARDED),
    *(part(f"lightning.fabric.strategies.{name}") for name in SHARDED),
]
DDP = f"{LIGHTNING}.strategies.DDPStrategy"
CALLBACKS = f"{LIGHTNING}.callbacks"
# What jsonargparse and Lightning would import, call or unpickle.
TRAINER: dict[str, dict[str, Any]] = {
    "function as hook": {"strategy": part(DDP, ddp_comm_hook="os.system")},
    "class as hook": {"strategy": part(DDP, ddp_comm_hook="bait.Thing")},
    "files of Lightning": {"strategy": part(DDP, checkpoint_io=part(f"{LIGHTNING}.plugins.TorchCheckpointIO"))},
    "cluster of nobody": {"strategy": part(DDP, cluster_environment=part("bait.Thing"))},
    "plugin for files": {"plugins": [part(f"{LIGHTNING}.plugins.AsyncCheckpointIO")]},
    "plugin of FSDP": {"plugins": [part(f"{LIGHTNING}.plugins.FSDPPrecision", precision="32-true")]},
    "plugin by a text": {"plugins": "bait.Thing"},
    "accelerator by a text": {"accelerator": "bait.Thing"},
    "profiler by a text": {"profiler": "bait.Thing"},
    "function that prunes": {"callbacks": [part(f"{CALLBACKS}.ModelPruning", pruning_fn="os.system", amount=0.1)]},
    "class that averages": {
        "callbacks": [part(f"{CALLBACKS}.StochasticWeightAveraging", swa_lrs=0.1, avg_fn="bait.Thing")]
    },
    "schedule of a profiler": {"profiler": part(f"{LIGHTNING}.profilers.PyTorchProfiler", schedule="os.system")},
    "run of W&B": {"logger": [part(f"{LIGHTNING}.loggers.WandbLogger", experiment=part("bait.Thing"))]},
}
SECTIONS: dict[str, dict[str, Any]] = {
    "default_config_files": {"default_config_files": ["/etc/passwd"]},
    "cfg": {"cfg": "/etc/passwd"},
    "__path__": {"__path__": "/etc/passwd"},
    "allow_import": {"allow_import": ["bait"]},
}


def recipe(**changes: Any) -> str:
    content = yaml.safe_load(TOY_RECIPE.read_text())
    return yaml.safe_dump({**content, **changes, "trainer": {**content["trainer"], **changes.get("trainer", {})}})


REFUSED = {
    **{f"strategy {value}": recipe(trainer={"strategy": value}) for value in SPELLINGS},
    **{name: recipe(trainer=values) for name, values in TRAINER.items()},
    **{name: recipe(**values) for name, values in SECTIONS.items()},
}


def test_syntax_of_the_libraries_imports_nothing(bait: str) -> None:
    for name, attempt in zip(REFUSED, run(list(REFUSED.values()), True, bait), strict=True):
        check(attempt, "strategy" if name.startswith("strategy") else None)


def test_registry_has_no_class_that_reads_pickles() -> None:
    for name in SHARDED:
        with pytest.raises(ValueError):
            registry.get_class(f"{LIGHTNING}.strategies.{name}")
    listed = [name for names in registry.EXTERNAL_CLASSES.values() for name in names.split()]
    assert not [
        name for name in listed if name.startswith(("FSDP", "DeepSpeed", "ModelParallel")) or "CheckpointIO" in name
    ]
