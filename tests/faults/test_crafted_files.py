"""Crafted checkpoints, exports, run folders and configs: no entry executes, imports, reads or writes what they name.

An audit hook in the process of each entry stops and notes every start of a process, connection, import of a module that
nobody admitted, and every change outside the folders that the command line names. The page has its own tests.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.crafted import (
    CHECKPOINT,
    DECOY,
    ENTRIES,
    SOUND,
    VARIABLE,
    Case,
    Place,
    edited,
    meet,
    sound_file,
    texts,
    write_checkpoint,
)
from tests.harness import forked, good, in_fork
from zoo import load

Node = Callable[[Place], Any]
NET = {"class_path": "zoo.flow.ToyNet", "init_args": {"widths": [16, 16], "time_scale": 1.0}}


def part(path: Any, /, **arguments: Any) -> Node:
    """A description whose texts may name `{place.elsewhere}`."""
    return lambda place: {"class_path": path, "init_args": _filled(arguments, place)}


def _filled(value: Any, place: Place) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, place) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, place) for item in value]
    return value.replace("ELSEWHERE", str(place.elsewhere)) if isinstance(value, str) else value


TOUCH = ["touch", "ELSEWHERE/marker"]
LOADS = {"path": "ELSEWHERE/second", "allow_import": ["subprocess", "os", DECOY]}
# Descriptions of what is no part: none may be built, wherever it stands.
NODES: dict[str, Node] = {
    "subprocess.Popen": part("subprocess.Popen", args=TOUCH),
    "os.system": part("os.system", command="touch ELSEWHERE/marker"),
    "builtins.eval": part("builtins.eval", source="open('ELSEWHERE/marker', 'w')"),
    "builtins.open": part("builtins.open", file="ELSEWHERE/marker", mode="w"),
    "pathlib.Path": part("pathlib.Path"),
    "module of nobody": part(f"{DECOY}.Thing"),
    "module of nobody, short": lambda place: f"{DECOY}.Thing",
    "Loaded": part("zoo.cli.trainer.Loaded", **LOADS),
    "Loaded without admission": part("zoo.cli.trainer.Loaded", path="ELSEWHERE/second"),
    "LightningCLI of the zoo": part(
        "zoo.cli.trainer.LightningCLI", args=[f"--model={DECOY}.Thing"], run=False, save_config_callback=None
    ),
    "LightningCLI": part("lightning.pytorch.cli.LightningCLI", args=[f"--model={DECOY}.Thing"], run=False),
    "ZooCLI": part("zoo.cli.trainer.ZooCLI", command="fit", args=["--config", "ELSEWHERE/second.yaml"]),
    "a sound file to write": part(
        "zoo.audio.io.files._Sequential", file="ELSEWHERE/sound.wav", mode="w", samplerate=16000, channels=1
    ),
    "imported module's function": part("zoo.common.build.importlib.import_module", name=DECOY),
    "imported module": part("zoo.common.build.importlib", name=DECOY),
    "os by way of ours": part("zoo.common.atomic_files.os.system", command="touch ELSEWHERE/marker"),
    "Popen by way of ours": part("zoo.ui.commands.subprocess.Popen", args=TOUCH),
    "soundfile by way of ours": part("zoo.audio.io.files.soundfile.SoundFile", file="ELSEWHERE/a.wav", mode="w"),
    "function that builds": part("zoo.common.build.build", spec={"class_path": "os.system"}, allow=["os"]),
    "function that admits": part("zoo.cli.parser.allow_imports", packages=["subprocess", DECOY]),
    "parser": part("zoo.cli.parser.OneLineParser", default_config_files=["ELSEWHERE/secret.yaml"]),
    "command line": part("zoo.cli.main.main", args=["convert", "flow", "a", "b"]),
    "Path by way of ours": part("zoo.cli.main.Path"),
    "user interface": part("zoo.ui.store.Store", path="ELSEWHERE/marker"),
    "user interface's processes": part("zoo.ui.jobs.trainings.Trainings", runs="ELSEWHERE", jobs="ELSEWHERE"),
    "log file": part("zoo.training.callbacks.train_log._LogFile", filename="ELSEWHERE/marker"),
    "rows": part("zoo.runs.metrics_csv.MetricsCSV", save_dir="ELSEWHERE/rows"),
    "bulk": part("zoo.runs.inference.predict.Results", output="ELSEWHERE/out", part="x", rows={}),
    "pickle by way of torch": part("torch.nn.modules.module.torch.load", f="ELSEWHERE/secret.yaml", weights_only=False),
    "torch.hub.load": part("torch.hub.load", repo_or_dir="ELSEWHERE", model="model", source="local"),
    "torch.jit.load": part("torch.jit.load", f="ELSEWHERE/secret.yaml"),
    "torch.nn function": part("torch.nn.functional.relu", input=1),
    "torch.nn class that is no module": part("torch.nn.modules.container.OrderedDict"),
    "torch.nn name that is no class": part("torch.nn.init"),
    "averaged optimizer": part("torch.optim.swa_utils.AveragedModel", model=NET),
    "torchmetrics with a download": part("torchmetrics.text.bert.BERTScore", model_name_or_path="ELSEWHERE"),
    "torchmetrics' collection": part("torchmetrics.MetricCollection", metrics=[]),
    "torchmetrics by way": part("torchmetrics.utilities.imports.importlib.import_module", name=DECOY),
    "Trainer": part("lightning.pytorch.Trainer", default_root_dir="ELSEWHERE/marker"),
    "boring model": part("lightning.pytorch.demos.boring_classes.BoringModel"),
    "class path that is a list": part(["zoo", "flow"]),
    "class path that is a mapping": part({"class_path": "os.system"}),
    "class path that is a number": part(3),
    "class path that is empty": part(""),
    "relative class path": part(".mlp.ToyNet"),
    "method of a class": part("zoo.flow.ToyNet.load_state_dict", state_dict={}),
    "attribute of a class": part("zoo.flow.ToyNet.__class__"),
    "constructor of a class": part("zoo.flow.ToyNet.__init__"),
    "private name": part("zoo.flow.nets.mlp.__builtins__"),
    "underscored class": part("zoo.audio.corpora.cache._Journal", partial="ELSEWHERE", key="a"),
    "name with a space": part(" subprocess.Popen", args=TOUCH),
    "full-width dots": part("subprocess\uff0ePopen", args=TOUCH),
    "nested in a part": lambda place: {**NET, "init_args": {"dim": part("os.system", command="true")(place)}},
    "nested in a list of a part": lambda place: {**NET, "init_args": {"widths": [part("os.system")(place)]}},
    "argument named self": lambda place: {**NET, "init_args": {"self": 1}},
    "argument named __class__": lambda place: {**NET, "init_args": {"__class__": "os.system"}},
    "arguments beyond the signature": lambda place: {**NET, "dict_kwargs": {"command": "touch marker"}, "x": 1},
    "arguments that are a list": lambda place: {**NET, "init_args": [part("os.system")(place)]},
    "backbone from elsewhere": part("zoo.ci_llm.Backbone", source="ELSEWHERE"),
}


def at(*keys: str) -> Callable[[dict[str, Any], Any], None]:
    """What puts a value at a place of a mapping."""

    def put(content: dict[str, Any], value: Any) -> None:
        for key in keys[:-1]:
            content = content.setdefault(key, {})
        content[keys[-1]] = value

    return put


def described(kind: str, name: str, *keys: str, value: Node, refused: bool = True) -> Case:
    def edit(content: dict[str, Any], place: Place) -> None:
        _second(place)
        at(*keys)(content, value(place))

    return Case(name, kind, edited(kind, edit), refused, ".".join(keys))


def _second(place: Place) -> None:
    """What a crafted file may point to: an export and a config that would run a command."""
    node = part("subprocess.Popen", args=TOUCH)(place)
    file = place.elsewhere / "second" / "config.json"
    content = json.loads(file.read_text())
    content["components"]["net"] = node
    file.write_text(json.dumps(content))
    (place.elsewhere / "second.yaml").write_text(f"model: {json.dumps(node)}\n")


def descriptions(kind: str) -> list[Case]:
    """Checkpoints or exports whose description names what is no part."""
    harmless = ("module of nobody, short", "arguments beyond the signature")  # a text and keys that nobody reads
    cases = [
        described(kind, name, "components", "net", value=node, refused=name not in harmless)
        for name, node in NODES.items()
    ]
    for name in ("subprocess.Popen", "Loaded", "module of nobody", "a sound file to write", "rows"):
        cases.append(described(kind, f"{name} as option", "options", "solver", value=NODES[name]))
        cases.append(described(kind, f"{name} in a list of options", "options", "chunk", value=_listed(NODES[name])))
        cases.append(described(kind, f"{name} as path", "components", "path", value=NODES[name]))
    for name in (
        "subprocess.Popen",
        "zoo.cli.trainer.Loaded",
        f"{DECOY}.Thing",
        "zoo.flow.inference.sampler.Path",
        "",
        3,
        None,
    ):
        cases.append(described(kind, f"inference {name}", "inference", value=lambda place, name=name: name))
    frozen = {"sha256": "0", "source": None, "revision": None, "folder": "ELSEWHERE"}
    if kind == "export":
        cases += [
            described(kind, "frozen copy elsewhere", "frozen", value=lambda place: {"net": _filled(frozen, place)}),
            described(
                kind, "frozen copy above", "frozen", value=lambda place: {"net": {**frozen, "folder": "../elsewhere"}}
            ),
            described(kind, "fused parts that are paths", "fused", value=lambda place: [str(place.elsewhere)]),
        ]
    cases += [
        described(kind, "parts that are a list", "components", value=lambda place: [NODES["os.system"](place)]),
        described(kind, "parts that are a text", "components", value=lambda place: "os.system"),
        described(kind, "no parts", "components", value=lambda place: {}),
        described(
            kind, "admission in the file", "allow_import", value=lambda place: ["subprocess", DECOY], refused=False
        ),
    ]
    return cases


def _listed(node: Node) -> Node:
    return lambda place: [node(place)]


CALLBACKS: dict[str, Node] = {
    "ModelCheckpoint elsewhere": part("lightning.pytorch.callbacks.ModelCheckpoint", dirpath="ELSEWHERE/kept"),
    "ModelCheckpoint above": part("lightning.pytorch.callbacks.ModelCheckpoint", dirpath="../elsewhere/kept"),
    "ModelCheckpoint by its file's name": part(
        "lightning.pytorch.callbacks.ModelCheckpoint", filename="../../elsewhere/{step}"
    ),
    "OnExceptionCheckpoint": part("lightning.pytorch.callbacks.OnExceptionCheckpoint", dirpath="ELSEWHERE/kept"),
    "LambdaCallback": part("lightning.pytorch.callbacks.LambdaCallback", on_fit_start="os.system"),
    "SaveConfigCallback": part("lightning.pytorch.cli.SaveConfigCallback", parser=None, config=None),
    "callback by way": part("lightning.pytorch.callbacks.model_checkpoint.os.system", command="true"),
    "Loaded as callback": part("zoo.cli.trainer.Loaded", **LOADS),
    "decoy as callback": part(f"{DECOY}.Thing"),
    "sound file as callback": NODES["a sound file to write"],
    "rows as callback": NODES["rows"],
}
LOGGERS: dict[str, Node] = {
    "CSVLogger elsewhere": part("lightning.pytorch.loggers.CSVLogger", save_dir="ELSEWHERE/log"),
    "CSVLogger above": part("lightning.pytorch.loggers.CSVLogger", save_dir="../elsewhere/log"),
    "TensorBoardLogger elsewhere": part("lightning.pytorch.loggers.TensorBoardLogger", save_dir="ELSEWHERE/log"),
    "WandbLogger elsewhere": part("lightning.pytorch.loggers.WandbLogger", save_dir="ELSEWHERE/log", offline=True),
    "MLFlowLogger": part("lightning.pytorch.loggers.MLFlowLogger", tracking_uri="http://127.0.0.1:9"),
    "logger of nobody": part(f"{DECOY}.Thing"),
    "rows as logger": NODES["rows"],
}
TRAINER: dict[str, tuple[str, Node]] = {
    "AdvancedProfiler": (
        "profiler",
        part("lightning.pytorch.profilers.AdvancedProfiler", dirpath="ELSEWHERE", filename="profile"),
    ),
    "SimpleProfiler": (
        "profiler",
        part("lightning.pytorch.profilers.SimpleProfiler", dirpath="ELSEWHERE", filename="profile"),
    ),
    "PyTorchProfiler": (
        "profiler",
        part("lightning.pytorch.profilers.PyTorchProfiler", dirpath="ELSEWHERE", filename="profile"),
    ),
    "profiler of nobody": ("profiler", part(f"{DECOY}.Thing")),
    "strategy of nobody": ("strategy", part(f"{DECOY}.Thing")),
    "strategy with a file": (
        "strategy",
        part("lightning.pytorch.strategies.DeepSpeedStrategy", config="ELSEWHERE/secret.yaml"),
    ),
    "strategy by way": ("strategy", part("lightning.pytorch.strategies.ddp.subprocess.Popen", args=TOUCH)),
    "plugin of nobody": ("plugins", _listed(part(f"{DECOY}.Thing"))),
    "plugin that starts processes": (
        "plugins",
        _listed(part("lightning.pytorch.plugins.environments.slurm.subprocess.Popen", args=TOUCH)),
    ),
    "plugin that is a command line": ("plugins", _listed(NODES["LightningCLI"])),
    "accelerator of nobody": ("accelerator", part(f"{DECOY}.Thing")),
    "root elsewhere": ("default_root_dir", lambda place: str(place.elsewhere / "root")),
    "model registry": ("model_registry", lambda place: "http://127.0.0.1:9/model"),
}
TEXTS: dict[str, Callable[[str, Place], str]] = {
    "yaml tag apply": lambda text, place: (
        f"{text}\nextra: !!python/object/apply:os.system [touch {place.elsewhere}/m]\n"
    ),
    "yaml tag of a module": lambda text, place: f"{text}\nextra: !!python/module:{DECOY}\n",
    "yaml tag of a name": lambda text, place: text.replace("name: null", "name: !!python/name:os.system", 1),
    "yaml tag new": lambda text, place: f"{text}\nextra: !!python/object/new:subprocess.Popen [[true]]\n",
    "interpolation of a variable": lambda text, place: _named(text, f"${{oc.env:{VARIABLE}}}"),
    "interpolation with spaces": lambda text, place: _named(text, f"'${{ oc.env:{VARIABLE} }}'"),
    "interpolation in a default": lambda text, place: _named(text, f"'${{oc.env:ZOO_ABSENT,${{oc.env:{VARIABLE}}}}}'"),
    "interpolation of a made name": lambda text, place: _named(text, "'${oc.env:${wandb.project}}'").replace(
        "project: zoo", f"project: {VARIABLE}"
    ),
    "interpolation of HOME": lambda text, place: _named(text, "${oc.env:HOME}"),
    "interpolation that decodes": lambda text, place: _named(text, "'${oc.decode:\"[1]\"}'"),
    "interpolation that creates": lambda text, place: _named(text, "'${oc.create:{a:1}}'"),
    "interpolation of keys": lambda text, place: _named(text, "'${oc.dict.keys:trainer}'"),
    "interpolation that clears a cache": lambda text, place: _named(text, "'${oc.deprecated:model}'"),
    "unknown resolver": lambda text, place: _named(text, "'${os.system:true}'"),
    "dotted key": lambda text, place: f"{text}\nmodel.class_path: subprocess.Popen\n",
    "key that adds": lambda text, place: f"{text}\ntrainer.callbacks+: {DECOY}.Thing\n",
    "doubled key": lambda text, place: f"{text}\nmodel:\n  class_path: {DECOY}.Thing\n",
    "model in another file": lambda text, place: f"{text}\nmodel: {place.elsewhere}/secret.yaml\n",
    "data in another file": lambda text, place: f"{text}\ndata: {place.elsewhere}/secret.yaml\n",
    "trainer in another file": lambda text, place: f"{text}\ntrainer: {place.elsewhere}/secret.yaml\n",
    "checkpoints in another file": lambda text, place: f"{text}\ncheckpoints: {place.elsewhere}/secret.yaml\n",
    "another config": lambda text, place: f"{text}\nconfig: {place.elsewhere}/secret.yaml\n",
    "endless aliases": lambda text, place: f"{text}\n{_aliases()}",
    "alias to itself": lambda text, place: f"{text}\nextra: &a [*a]\n",
    "deep nesting": lambda text, place: f"{text}\nextra: {'[' * 5000}{']' * 5000}\n",
    "not a mapping": lambda text, place: f"- {place.elsewhere}/secret.yaml\n",
    "a path alone": lambda text, place: f"{place.elsewhere}/secret.yaml\n",
}


def _named(text: str, value: str) -> str:
    return text.replace("  name: null", f"  name: {value}", 1)


def _aliases() -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 10)]
    return "\n".join(rows) + "\n"


def recipes(kind: str) -> list[Case]:
    """Runs or configs; what a user names on the command line may point anywhere, what came with a run may not."""
    cases = [described(kind, name, "model", "init_args", "net", value=node) for name, node in NODES.items()]
    for name in ("subprocess.Popen", "Loaded", "LightningCLI", "ZooCLI", "module of nobody", "a sound file to write"):
        for keys in (("model",), ("data",), ("model", "init_args", "optimizer"), ("model", "init_args", "scheduler")):
            cases.append(described(kind, f"{name} as {keys[-1]}", *keys, value=NODES[name]))
    for name, node in CALLBACKS.items():
        by_path = "elsewhere" in name or "above" in name or "Checkpoint" in name
        if kind == "run" or not by_path:
            cases.append(described(kind, name, "trainer", "callbacks", value=_listed(node)))
    for name, node in LOGGERS.items():
        if kind == "run" or not ("elsewhere" in name or "above" in name or name == "MLFlowLogger"):
            cases.append(described(kind, name, "trainer", "logger", value=_listed(node)))
    for name, (key, node) in TRAINER.items():
        if kind == "run" or not name.endswith(("Profiler", "elsewhere", "file", "registry")):
            cases.append(described(kind, name, "trainer", key, value=node, refused=key != "model_registry"))
    cases += [Case(name, kind, texts(kind, change)) for name, change in TEXTS.items()]
    if kind == "run":
        for key in ("init_from", "ckpt_path"):
            cases.append(
                described(
                    kind, f"{key} elsewhere", key, value=lambda place: f"{place.elsewhere}/secret.yaml", refused=False
                )
            )
    return cases


def whole_files() -> list[Case]:
    """Checkpoints that are crafted in another way than by their description."""

    def with_content(change: Callable[[dict[str, Any], Place], Any]) -> Callable[[Place, Path], None]:
        def craft(place: Place, sound: Path) -> None:
            sound_file("checkpoint")(place, sound)
            content = torch.load(place.given / CHECKPOINT, weights_only=True)
            change(content, place)
            write_checkpoint(content, place.given / CHECKPOINT)

        return craft

    def set_to(key: str, value: Any) -> Callable[[dict[str, Any], Place], None]:
        return lambda content, place: content.update({key: _filled(value, place)})

    record = {"sha256": "0" * 64, "source": None, "revision": None, "folder": "ELSEWHERE"}
    return [
        Case("frozen copy elsewhere", "checkpoint", with_content(set_to("frozen", {"net": record})), refused=True),
        Case(
            "frozen copy above",
            "checkpoint",
            with_content(set_to("frozen", {"net": {**record, "folder": "../elsewhere"}})),
        ),
        Case(
            "description that is a list", "checkpoint", with_content(set_to("zoo", [NODES["os.system"](Place(Path()))]))
        ),
        Case("weights that are a text", "checkpoint", with_content(set_to("state_dict", "ELSEWHERE/secret.yaml"))),
        Case(
            "datamodule of nobody",
            "checkpoint",
            with_content(set_to("datamodule", {"class_path": f"{DECOY}.Thing"})),
            refused=False,
        ),
    ]


CASES = [
    *descriptions("checkpoint"),
    *descriptions("export"),
    *recipes("run"),
    *recipes("config"),
    *whole_files(),
]
PAIRS = [(entry, kind) for entry, (kinds, _) in ENTRIES.items() for kind in kinds]
COMPLETE = [("load", "checkpoint"), ("predict", "export"), ("fit", "run")]  # others meet every fourth, each other ones


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its export and an input."""
    folder = tmp_path_factory.mktemp("sound")
    good(forked("export", SOUND, folder / "export", cwd=folder))
    shutil.copytree(SOUND, folder / "run")
    load(SOUND).write_example(folder / "input" / "one")
    return folder


def test_there_are_enough() -> None:
    assert len({(case.kind, case.name) for case in CASES}) == len(CASES) >= 40
    assert {case.kind for case in CASES} == {"checkpoint", "export", "run", "config"}


@pytest.mark.parametrize(("entry", "kind"), PAIRS, ids=[f"{entry}-{kind}" for entry, kind in PAIRS])
def test_an_entry_refuses_in_one_line(entry: str, kind: str, sound: Path, tmp_path: Path) -> None:
    every = 1 if (entry, kind) in COMPLETE else 4
    _assert_refused(entry, kind, every, sound, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "kind"), PAIRS, ids=[f"{entry}-{kind}" for entry, kind in PAIRS])
def test_an_entry_refuses_all_in_one_line(entry: str, kind: str, sound: Path, tmp_path: Path) -> None:
    _assert_refused(entry, kind, 1, sound, tmp_path)


def _assert_refused(entry: str, kind: str, every: int, sound: Path, folder: Path) -> None:
    found = in_fork(_meet, entry, kind, every, str(folder), str(sound))
    wrong = {name: faults for name, faults in found if faults}
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)}", *(f"{name}: {wrong[name]}" for name in wrong)])


def _meet(entry: str, kind: str, every: int, folder: str, sound: str) -> list[tuple[str, list[str]]]:
    cases = [case for case in CASES if case.kind == kind][PAIRS.index((entry, kind)) % every :: every]
    return meet(entry, kind, cases, folder, sound)
