"""Imports never point upward, between packages or between the modules of a system; nets need no Lightning."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
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
    done: set[str] = set()

    def check_imports(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for target in sorted(graph[module]):
                check_imports(target, (*way, module))
            done.add(module)

    for module in sorted(files):
        check_imports(module, ())


def test_nets_import_without_lightning() -> None:
    nets = [f"zoo.{system}.nets" for system in SYSTEMS]
    nets += [
        f"zoo.{system}.nets.{path.stem}" for system in SYSTEMS for path in (PACKAGE / system / "nets").glob("[!_]*.py")
    ]
    code = "; ".join(f"import {net}" for net in nets)
    code = f"import sys; {code}; assert 'lightning' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_text_image_and_rl_systems_load_no_audio() -> None:
    """Not even through what they import."""
    modules = [
        "zoo.cli.main",
        "zoo.runs.load",
        "zoo.runs.inference.predict",
        "zoo.training.callbacks.media",
        "zoo.serve.app",
    ]
    modules += [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        for system in ("ci_llm", "compressed_ad", "flow")
        for path in sorted((PACKAGE / system).rglob("*.py"))
    ]
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; "
        "print(*(name for name in sys.modules if name == 'soundfile' or name.startswith('zoo.audio')))"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, env=environment(), capture_output=True, text=True)
    assert result.stdout.split() == []


def test_folders_and_files_stay_small() -> None:
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: number for name, number in lines.items() if number > 700} == {}
    folders: dict[str, int] = defaultdict(int)
    for name in lines:
        folders[str(Path(name).parent)] += 1
    assert {name: number for name, number in folders.items() if number > 15} == {}
