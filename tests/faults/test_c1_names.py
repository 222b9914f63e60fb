"""C1, names: every class, function and module that a dotted path reaches is refused as a part, or registered."""

import inspect
import io
import pkgutil
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from tests.harness import TOY_RECIPE, in_fork
from zoo.common import registry

ROOTS = ("zoo", "lightning", "torch.nn", "torchmetrics")
QUIET = ("open", "import", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect")
SAMPLE = 60  # of the paths that go through whole files and the command line


THROUGH = 3  # modules through which the content of a module that they import is reached, of hundreds


def reachable() -> list[str]:
    """Dotted paths below the roots and through what their modules import, one module further."""
    import lightning.pytorch
    import torchmetrics

    import zoo

    for package in (zoo, lightning.pytorch, torchmetrics):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                try:
                    __import__(found.name)
                except Exception:  # an extra that is not installed, or a module that serves another platform
                    continue
    paths: set[str] = set()
    reached: Counter[str] = Counter()
    for name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and any(name == root or name.startswith(f"{root}.") for root in ROOTS):
            paths |= {f"{name}.{attribute}" for attribute in vars(module)}
            for attribute, value in vars(module).items():
                if isinstance(value, ModuleType):
                    reached[value.__name__] += 1
                    if reached[value.__name__] <= THROUGH:
                        paths |= {f"{name}.{attribute}.{inner}" for inner in vars(value)}
                elif inspect.isclass(value):
                    paths |= {f"{name}.{attribute}.{inner}" for inner in vars(value)}
    return sorted(paths)


def watched(events: list[str]) -> None:
    """Note what Python does with files, processes, imports and sockets from now on."""

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event not in QUIET or not watching[0]:
            return
        if event == "open" and isinstance(args[1], str) and not set(args[1]) & set("wax+"):
            return
        if event == "import" and args[0].partition(".")[0] in installed:
            return
        events.append(f"{event} {args[:2]!r}")

    installed = {*packages_distributions(), *sys.stdlib_module_names, *sys.modules}
    sys.dont_write_bytecode = True  # an import is no act
    watching[0] = True
    sys.addaudithook(note)


watching = [False]


def outcome(path: str, slot: Any = object) -> str:
    try:
        found = registry.get_class(path, slot)
    except ValueError as error:
        assert "\n" not in str(error), path
        return "refused"
    name = registry.public_name(found)
    known = {each for package in registry.PACKAGES for each in registry.component_names(package)}
    foreign = {f"{package}.{each}" for package, listed in registry.EXTERNAL_CLASSES.items() for each in listed.split()}
    foreign |= {f"torch.nn.{each}" for each in registry._external_names("torch.nn")}
    assert name in known | foreign or path in foreign, path
    return "registered"


class Walk(NamedTuple):
    """What `registry.find` did with every reachable name."""

    refused: list[str]
    registered: int
    events: list[str]


def walk() -> Walk:
    paths = reachable()
    for package in registry.PACKAGES:
        for name in registry.component_names(package):
            registry.get_class(name)
    registry.allowed_import_paths()
    events: list[str] = []
    watched(events)
    refused = [path for path in paths if outcome(path) == "refused"]
    watching[0] = False
    return Walk(refused, len(paths) - len(refused), events)


@pytest.fixture(scope="module")
def walked() -> Walk:
    return in_fork(walk)


def test_every_reachable_name_is_refused_or_registered(walked: Walk) -> None:
    assert walked.events == []
    assert len(walked.refused) > 20_000 and 150 < walked.registered < 1500


def files(folder: Path, path: str) -> Iterator[tuple[Path, str]]:
    """Checkpoints with a path as part, as option, as inference; configs with it as model and callback."""
    node = {"class_path": path, "init_args": {}}
    task = "zoo.flow.FlowTask"
    specs = {
        "format": 2,
        "version": "0",
        "task": task,
        "inference": "zoo.flow.Sampler",
        "components": {},
        "options": {},
    }
    for place in ("part", "option", "inference"):
        changed = {
            "part": {**specs, "components": {"net": node, "path": node}},
            "option": {**specs, "options": {"solver": node}},
            "inference": {**specs, "inference": path},
        }[place]
        checkpoint = folder / f"{place}.ckpt"
        torch.save({"state_dict": {}, "global_step": 1, "zoo": changed}, checkpoint)
        yield checkpoint, "load"
    recipe = yaml.safe_load(TOY_RECIPE.read_text())
    for place in ("model", "callback"):
        changed = {**recipe, "model": node} if place == "model" else recipe
        trainer = {**recipe["trainer"], "callbacks": [node]} if place == "callback" else recipe["trainer"]
        config = folder / f"{place}.yaml"
        config.write_text(yaml.safe_dump({**changed, "trainer": trainer}))
        yield config, "fit"


def through_files(arguments: tuple[Path, list[str]]) -> list[tuple[str, str, str]]:
    """(path, file, what went wrong) of every file that was not refused in one line, without an act."""
    import toy_wing.task  # its package is admitted below

    assert toy_wing.task
    from zoo.cli.main import main
    from zoo.runs.load import load

    folder, paths = arguments
    wrong: list[tuple[str, str, str]] = []
    events: list[str] = []
    watched(events)
    for path in paths:
        watching[0] = False
        for file, entry in list(files(folder, path)):
            events.clear()
            said = io.StringIO()
            watching[0] = True
            try:
                if entry == "load":
                    load(file)
                    wrong.append((path, file.name, "loaded"))
                else:
                    with redirect_stderr(said), redirect_stdout(said):
                        code = main(["fit", "--config", str(file), "--allow-import", "toy_wing"])
                    if code != 2 or len(said.getvalue().strip().splitlines()) > 2:
                        wrong.append((path, file.name, f"exit {code}: {said.getvalue()[-300:]}"))
            except ValueError as error:
                if "\n" in str(error):
                    wrong.append((path, file.name, f"more than a line: {error}"))
            finally:
                watching[0] = False
            acts = [event for event in events if str(folder) not in event]
            if acts:
                wrong.append((path, file.name, f"did {acts[:3]}"))
    return wrong


def test_names_in_files_do_nothing(walked: Walk, tmp_path: Path) -> None:
    paths = random.Random(0).sample(walked.refused, SAMPLE)
    assert in_fork(through_files, (tmp_path, paths)) == []
