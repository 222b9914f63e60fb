"""Crafted checkpoints, exports, run folders and configs: no entry executes, imports, reads or writes what they name.

An audit hook in the process of each entry stops every connection, import of a module that nobody allowed, and every
access to the folder that the files name; what they start would write there. The page has its own tests.
"""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.crafted import CHECKPOINT, DECOY, ENTRIES, VALID_RUN, VARIABLE, Case, Place, edited, meet, write_valid
from tests.harness import forked, good, in_fork
from zoo import load

Node = Callable[[Place], Any]
NET = {"class_path": "zoo.flow.ToyNet", "init_args": {"widths": [16, 16], "time_scale": 1.0}}
TOUCH = ["touch", "ELSEWHERE/marker"]
LIGHTNING = "lightning.pytorch"


def part(path: Any, /, **init_args: Any) -> Node:
    """Describe a component whose texts may name the folder ELSEWHERE."""
    return lambda place: {"class_path": path, "init_args": fill(init_args, place)}


def listed(node: Node) -> Node:
    return lambda place: [node(place)]


def fill(value: Any, place: Place) -> Any:
    if isinstance(value, dict):
        return {key: fill(item, place) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, place) for item in value]
    return value.replace("ELSEWHERE", str(place.elsewhere)) if isinstance(value, str) else value


# Descriptions of what is no component: none may be built, wherever it stands.
NODES: dict[str, Node] = {
    "subprocess.Popen": part("subprocess.Popen", args=TOUCH),
    "os.system": part("os.system", command="touch ELSEWHERE/marker"),
    "builtins.eval": part("builtins.eval", source="open('ELSEWHERE/marker', 'w')"),
    "module of nobody": part(f"{DECOY}.Thing"),
    "module of nobody, short": lambda place: f"{DECOY}.Thing",
    "LightningCLI": part(f"{LIGHTNING}.cli.LightningCLI", args=[f"--model={DECOY}.Thing"], run=False),
    "ZooCLI": part("zoo.cli.trainer.ZooCLI", command="fit", args=["--config", "ELSEWHERE/secret.yaml"]),
    "imported module's function": part("zoo.common.build.importlib.import_module", name=DECOY),
    "function that allows": part("zoo.common.registry.allow_packages", packages=[DECOY]),
    "torch.hub.load": part("torch.hub.load", repo_or_dir="ELSEWHERE", model="model", source="local"),
    "class path that is a list": part(["zoo", "flow"]),
    "name with a space": part(" subprocess.Popen", args=TOUCH),
    "nested in a component": lambda place: {**NET, "init_args": {"widths": [part("os.system")(place)]}},
    "argument named __class__": lambda place: {**NET, "init_args": {"__class__": "os.system"}},
    "backbone from elsewhere": part("zoo.ci_llm.Backbone", source="ELSEWHERE"),
}
HARMLESS = "module of nobody, short"  # in a checkpoint: a text that is not read
# key of the trainer -> what it may not be; in a run's config also what writes elsewhere
TRAINER: dict[str, tuple[str, Node]] = {
    "callback of nobody": ("callbacks", listed(NODES["module of nobody"])),
    "LambdaCallback": (
        "callbacks", listed(part(f"{LIGHTNING}.callbacks.LambdaCallback", on_fit_start="os.system"))
    ),
    "strategy by way": ("strategy", part(f"{LIGHTNING}.strategies.ddp.subprocess.Popen", args=TOUCH)),
    "plugin of nobody": ("plugins", listed(NODES["module of nobody"])),
    "profiler of nobody": ("profiler", NODES["module of nobody"]),
}  # fmt: skip
RUN_TRAINER: dict[str, tuple[str, Node]] = {
    "ModelCheckpoint elsewhere": (
        "callbacks", listed(part(f"{LIGHTNING}.callbacks.ModelCheckpoint", dirpath="ELSEWHERE/kept"))
    ),
    "CSVLogger above": ("logger", listed(part(f"{LIGHTNING}.loggers.CSVLogger", save_dir="../elsewhere/log"))),
    "SimpleProfiler": ("profiler", part(f"{LIGHTNING}.profilers.SimpleProfiler", dirpath="ELSEWHERE", filename="x")),
    "root elsewhere": ("default_root_dir", lambda place: str(place.elsewhere / "root")),
}  # fmt: skip
TEXTS: dict[str, str] = {
    "yaml tag apply": "extra: !!python/object/apply:os.system [touch ELSEWHERE/m]",
    "yaml tag of a module": f"extra: !!python/module:{DECOY}",
    "interpolation of a variable": f"wandb: {{name: '${{oc.env:{VARIABLE}}}'}}",
    "interpolation that decodes": "wandb: {name: '${oc.decode:\"[1]\"}'}",
    "unknown resolver": "wandb: {name: '${os.system:true}'}",
    "dotted key": "model.class_path: subprocess.Popen",
    "key that adds": f"trainer.callbacks+: {DECOY}.Thing",
    "model in another file": "model: ELSEWHERE/secret.yaml",
    "alias to itself": "extra: &a [*a]",
    "deep nesting": f"extra: {'[' * 5000}{']' * 5000}",
}


class Call:
    """An object whose unpickling calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def make_case(kind: str, name: str, *keys: str, value: Node, refused: bool = True) -> Case:
    """Make a case with a value at a key of its description."""

    def edit(content: dict[str, Any], place: Place) -> None:
        for key in keys[:-1]:
            content = content.setdefault(key, {})
        content[keys[-1]] = value(place)

    return Case(name, kind, edited(kind, edit), refused)


def descriptions(kind: str) -> list[Case]:
    """Make checkpoints or exports whose description names what is no component."""
    cases = [
        make_case(kind, name, "components", "net", value=NODES[name], refused=name not in HARMLESS) for name in NODES
    ]
    for name in ("subprocess.Popen", "module of nobody"):
        cases.append(make_case(kind, f"{name} as option", "options", "solver", value=NODES[name]))
        cases.append(make_case(kind, f"{name} as path", "components", "path", value=NODES[name]))
    for name in ("subprocess.Popen", f"{DECOY}.Thing", "zoo.flow.inference.sampler.Path", "", 3, None):
        cases.append(make_case(kind, f"inference {name}", "inference", value=lambda place, name=name: name))
    cases.append(make_case(kind, "a list", "components", value=lambda place: [NODES["os.system"](place)]))
    cases.append(
        make_case(kind, "permission in the file", "allow_import", value=lambda _: ["subprocess", DECOY], refused=False)
    )
    return cases


def recipes(kind: str) -> list[Case]:
    """Make runs or configs; what a user names may lie anywhere, what came with a run may not."""
    cases = [make_case(kind, name, "model", "init_args", "net", value=node) for name, node in NODES.items()]
    for name in ("subprocess.Popen", "LightningCLI", "module of nobody"):
        for keys in (("model",), ("data",), ("model", "init_args", "optimizer")):
            cases.append(make_case(kind, f"{name} as {keys[-1]}", *keys, value=NODES[name]))
    for name, (key, node) in {**TRAINER, **(RUN_TRAINER if kind == "run" else {})}.items():
        cases.append(make_case(kind, name, "trainer", key, value=node))

    def write(text: str) -> Callable[[Place, Path], None]:
        def craft(place: Place, valid: Path) -> None:
            write_valid(kind, place, valid)
            file = place.input / "config.yaml"
            sections = file.read_text().split("\nwandb:")[0] if text.startswith("wandb") else file.read_text()
            file.write_text(f"{sections}\n{fill(text, place)}\n")

        return craft

    return cases + [Case(name, kind, write(text)) for name, text in TEXTS.items()]


def pickles() -> list[Case]:
    """Make checkpoints that hold a call, of the zoo's form and of others."""

    def write(content: Callable[[Any], Any]) -> Callable[[Place, Path], None]:
        def craft(place: Place, valid: Path) -> None:
            torch.save(content(Call(os.system, f"touch {place.elsewhere}/marker")), place.input / CHECKPOINT)

        return craft

    full = {"state_dict": {}, "global_step": 3, "zoo": {}}
    return [
        Case("call in a checkpoint", "checkpoint", write(lambda call: {**full, "trap": call})),
        Case("call in an original", "checkpoint", write(lambda call: {"generator": call})),
        Case("call alone", "checkpoint", write(lambda call: call)),
        Case("plain pickle", "checkpoint", lambda place, valid: (place.input / CHECKPOINT).write_bytes(
            pickle.dumps(Call(os.system, f"touch {place.elsewhere}/marker"))) and None),
    ]  # fmt: skip


CASES = [*descriptions("checkpoint"), *descriptions("export"), *recipes("run"), *recipes("config"), *pickles()]
PAIRS = [(entry, kind) for entry, (kinds, _) in ENTRIES.items() for kind in kinds]
ALL = [("load", "checkpoint"), ("predict", "export"), ("fit", "run"), ("fit", "config")]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its export and an input."""
    folder = tmp_path_factory.mktemp("valid")
    good(forked("export", VALID_RUN, folder / "export", cwd=folder))
    shutil.copytree(VALID_RUN, folder / "run")
    load(VALID_RUN).write_example(folder / "input" / "one")
    return folder


@pytest.mark.parametrize(("entry", "kind"), PAIRS, ids=[f"{entry}-{kind}" for entry, kind in PAIRS])
def test_entry_refuses_crafted_files(entry: str, kind: str, valid: Path, tmp_path: Path) -> None:
    every = 1 if (entry, kind) in ALL else 5  # others meet every fifth, each other ones
    cases = [case for case in CASES if case.kind == kind][PAIRS.index((entry, kind)) % every :: every]
    results = in_fork(_meet, entry, kind, [case.name for case in cases], str(tmp_path), str(valid))
    assert {name: faults for name, faults in results if faults} == {}


def _meet(entry: str, kind: str, names: list[str], folder: str, valid: str) -> list[tuple[str, list[str]]]:
    cases = [case for case in CASES if case.kind == kind and case.name in names]
    return meet(entry, kind, cases, folder, valid)
