"""Imports never point upward, between packages or between the modules of a system; nets need no Lightning."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment

PACKAGE = REPOSITORY / "zoo"
SYSTEMS = ("audiosr", "ci_llm", "compressed_ad", "flow", "hifigan", "miipher")
# What each package imports besides itself and the version.
LAYERS = {
    "common": (),
    "blocks": ("common",),
    "runs": ("common",),
    "audio": ("common", "runs"),
    "convert": ("common", "runs"),
    "training": ("common", "runs"),
    **dict.fromkeys(SYSTEMS, ("common", "blocks", "audio", "runs", "convert", "training")),
    "miipher": ("common", "blocks", "audio", "runs", "convert", "training", "hifigan"),
    "audiosr": ("common", "blocks", "audio", "runs", "convert", "training", "hifigan"),
    "ci_llm": ("common", "blocks", "runs", "convert", "training"),
    "compressed_ad": ("common", "runs", "convert", "training"),
    "ui": ("common", "runs"),
    "serve": ("common", "runs"),
    "cli": ("common", "runs", "convert", "training", "ui"),
    "tuning": ("common", "runs", "training", "cli"),
    "__init__": ("cli", "common", "runs"),  # the functions of `zoo`, when they are used
    "__main__": ("cli",),
}
# The modules of a system by height. A module imports those below it and those of its height.
MODULES = {
    **dict.fromkeys("nets losses process diffusion samplers envs aggregation answers rendering rollout".split(), 0),
    "data": 1,
    "options": 1,
    **dict.fromkeys(
        """task task_autoencoder task_backbone task_distill task_vocoder pretrain_task
        validation_texts inference loss_monitor collecting""".split(),
        2,
    ),
    "evaluation": 3,
    "convert": 4,
    "commands": 5,
}
TRAINS = ("task", "task_autoencoder", "task_backbone", "task_distill", "task_vocoder", "pretrain_task")
NOT_TRAINED = ("inference", "evaluation", "convert", "commands")


def imports(path: Path, with_types: bool = True) -> Iterator[str]:
    """Dotted names of ours that a file imports, wherever in the file; without types, not those for type checkers."""
    tree = ast.parse(path.read_text())
    if not with_types:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] in ("zoo", "scripts", "tests"))


def upward(path: Path) -> list[str]:
    """What a file of the package imports from above."""
    mine = path.relative_to(PACKAGE).with_suffix("").parts
    results = []
    for name in imports(path):
        root, package, module, *_ = [*name.split("."), "", ""]
        if not package:
            continue  # zoo itself, its version and its folder
        bad = root != "zoo" or (package not in (mine[0], "__version__") and package not in LAYERS[mine[0]])
        if package == mine[0] in SYSTEMS and len(mine) > 1 and module in MODULES and mine[1] != "__init__":
            bad |= MODULES[module] > MODULES[mine[1]] or (mine[1] in TRAINS and module in NOT_TRAINED)
        if bad:
            results.append(name)
    return results


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_upward_import(path: Path) -> None:
    assert upward(path) == []


def test_every_module_has_its_place() -> None:
    modules = {
        path.stem for system in SYSTEMS for path in (PACKAGE / system).iterdir() if not path.name.startswith("_")
    }
    assert modules == set(MODULES)


def test_there_are_no_cycles() -> None:
    files = {".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    graph: dict[str, set[str]] = defaultdict(set)
    for module, path in files.items():
        for name in imports(path, with_types=False):
            targets = (name, name.rpartition(".")[0])
            graph[module] |= {target for target in targets if target in files and target != module}
    TopologicalSorter(graph).prepare()  # CycleError names one


def imported_by(modules: list[str], *names: str) -> list[str]:
    """Which modules whose names begin like these are imported by others, be it through what they import."""
    code = f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; "
    code += f"print(*(name for name in sys.modules if f'{{name}}.'.startswith({names})))"
    result = subprocess.run([sys.executable, "-c", code], check=True, env=environment(), capture_output=True, text=True)
    return result.stdout.split()


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def test_nets_import_without_lightning() -> None:
    nets = [dotted(path) for system in SYSTEMS for path in (PACKAGE / system / "nets").glob("*.py")]
    assert imported_by(nets, "lightning.") == []


def test_text_image_and_rl_systems_load_no_audio() -> None:
    modules = ["zoo.cli.main", "zoo.runs.load", "zoo.runs.inference.predict", "zoo.training.callbacks.media"]
    modules += ["zoo.serve.app"]
    for system in ("ci_llm", "compressed_ad", "flow"):
        modules += map(dotted, sorted((PACKAGE / system).rglob("*.py")))
    assert imported_by(modules, "soundfile.", "zoo.audio.", "zoo.audiosr.") == []


def test_folders_and_files_stay_small() -> None:
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: number for name, number in lines.items() if number > 700} == {}
    folders: dict[str, int] = defaultdict(int)
    for name in lines:
        folders[str(Path(name).parent)] += 1
    assert {name: number for name, number in folders.items() if number > 15} == {}
