"""C1, security: what a config, a checkpoint or an export names or holds is never executed, by no command."""

import functools
import json
import os
import pickle
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.faults.attempts import Attempt, attempts
from tests.harness import SMOKE, TOY_ARGS, TOY_FIT, TOY_RECIPE, forked, good, in_fork, newest
from zoo.audio.io import files
from zoo.runs.checkpoints import load_checkpoint, save_checkpoint

COMMANDS = ("fit", "validate", "test", "predict")


class Payload:
    """An object whose unpickling calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


class Traps:
    """Payloads that would leave a file `marker`.

    Args:
        folder: where scripts and the marker lie.
    """

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "marker"
        code = f"open({str(self.marker)!r}, 'w').close()"
        self.script = folder / "hubconf.py"
        self.script.write_text(f"{code}\ndef model():\n    pass\n")
        touch = f"touch {self.marker}"
        self.calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
            "os.system": (os.system, (touch,), {"command": touch}),
            "subprocess.Popen": (subprocess.Popen, (touch.split(),), {"args": touch.split()}),
            "runpy.run_path": (runpy.run_path, (str(self.script),), {"path_name": str(self.script)}),
            "torch.hub.load": (
                functools.partial(torch.hub.load, source="local"),
                (str(folder), "model"),
                {"repo_or_dir": str(folder), "model": "model", "source": "local"},
            ),
            "builtins.exec": (exec, (code,), {"source": code}),
        }

    def nodes(self) -> list[dict[str, Any]]:
        """What a config would name, also by way of modules that it may import."""
        detours = (
            "zoo.common.journal.os.system",
            "zoo.audio.corpora.cache.os.system",
            "torch.nn.modules.module.torch.hub.load",
        )
        named = {path: kwargs for path, (_, _, kwargs) in self.calls.items()}
        named |= {detour: named[".".join(detour.split(".")[-2 - ("hub" in detour) :])] for detour in detours}
        return [{"class_path": path, "init_args": kwargs} for path, kwargs in named.items()]

    def objects(self) -> dict[str, Payload]:
        """What a pickle would hold."""
        return {name.replace(".", "_"): Payload(function, *args) for name, (function, args, _) in self.calls.items()}

    def assert_untouched(self, found: list[Attempt], codes: tuple[int, ...]) -> None:
        assert not self.marker.exists()
        for attempt in found:
            assert attempt.code in codes, attempt
            assert "Traceback" not in attempt.said, attempt
            assert len(attempt.errors) == 1, attempt


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    folder = tmp_path / "traps"
    folder.mkdir()
    return Traps(folder)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.wav"
    files.write(path, np.zeros(100), 16000)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    good(forked(*TOY_FIT, "--trainer.max_steps=5", f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"


def test_the_traps_would_snap(traps: Traps) -> None:
    for name, (function, args, _) in traps.calls.items():
        outcome = function(*args)
        if isinstance(outcome, subprocess.Popen):
            outcome.wait()
        assert traps.marker.exists(), name
        traps.marker.unlink()
    pickle.loads(pickle.dumps(traps.objects()["os_system"]))
    assert traps.marker.exists()


def configs(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Recipes with a payload in every position that takes a class or a callable."""
    found = []
    for place in ("model", "data", "model.init_args.net", "model.init_args.optimizer", "model.init_args.scheduler"):
        for value in (node, node["class_path"]):
            recipe = yaml.safe_load(TOY_RECIPE.read_text())
            target = recipe
            for key in place.split(".")[:-1]:
                target = target[key]
            target[place.split(".")[-1]] = value
            found.append(recipe)
    for key, value in {
        "callbacks": [node],
        "logger": [node],
        "plugins": [node],
        "strategy": node,
        "profiler": node,
    }.items():
        recipe = yaml.safe_load(TOY_RECIPE.read_text())
        recipe["trainer"][key] = value
        found.append(recipe)
    return found


def config_calls(traps: Traps, folder: Path, commands: tuple[str, ...]) -> list[list[object]]:
    calls: list[list[object]] = []
    for node in traps.nodes():
        for recipe in configs(node):
            path = folder / f"{len(calls)}.yaml"
            path.write_text(yaml.safe_dump(recipe))
            calls += [[command, "--config", path, *TOY_ARGS] for command in commands]
    return calls


def test_configs_of_fit(traps: Traps, tmp_path: Path) -> None:
    traps.assert_untouched(in_fork(attempts, config_calls(traps, tmp_path, ("fit",))), codes=(2,))


@pytest.mark.slow
def test_configs_of_every_command(traps: Traps, tmp_path: Path) -> None:
    traps.assert_untouched(in_fork(attempts, config_calls(traps, tmp_path, COMMANDS)), codes=(2,))


def test_configs_of_a_run_folder(traps: Traps, trained: Path, tmp_path: Path) -> None:
    node = traps.nodes()[0]
    calls = []
    for number, recipe in enumerate(configs(node)[::4]):
        run = tmp_path / str(number)
        run.mkdir()
        (run / newest(trained).name).write_bytes(newest(trained).read_bytes())
        (run / "config.yaml").write_text(yaml.safe_dump(recipe))
        calls += [[command, "--ckpt_path", run, *TOY_ARGS] for command in COMMANDS]
    traps.assert_untouched(in_fork(attempts, calls), codes=(2,))


def test_pickles(traps: Traps, trained: Path, sound: Path, tmp_path: Path) -> None:
    calls: list[list[object]] = []
    for name, payload in traps.objects().items():
        run = tmp_path / name
        run.mkdir()
        (run / "config.yaml").write_bytes((trained / "config.yaml").read_bytes())
        held = {**load_checkpoint(newest(trained)), "trap": payload}
        torch.save(held, run / "step_00000005.ckpt")
        torch.save({"generator": payload}, run / "g_00000005")
        torch.save(
            {"model_state_dict": {"adapters.0.ff.0.bias": torch.zeros(1)}, "config": payload}, run / "adapter.pt"
        )
        (run / "accelerate").mkdir()
        torch.save({"adapters.0.ff.0.bias": payload}, run / "accelerate" / "pytorch_model.bin")
        (run / "plain.pkl").write_bytes(pickle.dumps(payload))
        for checkpoint in (run, run / "step_00000005.ckpt"):
            for command in COMMANDS:
                inputs = ["--input", sound, "--output", tmp_path / "out"] if command == "predict" else []
                calls.append([command, "--ckpt_path", checkpoint, *inputs, *TOY_ARGS])
        sources = [run / "step_00000005.ckpt", run / "g_00000005", run / "plain.pkl"]
        for source in sources:
            calls.append([*TOY_FIT, "--init_from", source, f"--trainer.default_root_dir={tmp_path / 'fresh'}"])
            calls.append(
                ["fit", "--config", SMOKE, "--init_from", source, f"--trainer.default_root_dir={tmp_path / 'fresh'}"]
            )
            calls += [
                ["convert", system, source, tmp_path / "converted", *TOY_ARGS]
                for system in ("hifigan", "miipher", "toy_wing")
            ]
        calls += [["convert", "miipher", run / name, tmp_path / "converted"] for name in ("adapter.pt", "accelerate")]
    found = in_fork(attempts, calls)
    traps.assert_untouched(found, codes=(1, 2))
    refused = [attempt for call, attempt in zip(calls, found, strict=True) if "--ckpt_path" in call]
    assert all("it holds pickled objects" in attempt.errors[0] for attempt in refused)


def test_inspect_shows_and_does_not_run(traps: Traps, tmp_path: Path) -> None:
    for name, payload in traps.objects().items():
        torch.save({"state_dict": {}, "trap": payload}, tmp_path / f"{name}.ckpt")
        torch.save(payload, tmp_path / f"{name}.pth")
    found = in_fork(attempts, [["inspect", path] for path in sorted(tmp_path.glob("*.*"))])
    assert not traps.marker.exists()
    assert all("Traceback" not in attempt.said for attempt in found)


def test_descriptions_of_parts(traps: Traps, trained: Path, sound: Path, tmp_path: Path) -> None:
    calls: list[list[object]] = []
    for number, node in enumerate(traps.nodes()):
        for place in ("part", "inference"):
            checkpoint = load_checkpoint(newest(trained))
            specs = checkpoint["zoo"]
            if place == "part":
                specs["components"]["net"] = node
            else:
                specs["inference"] = node["class_path"]
            folder = tmp_path / f"{place}{number}"
            folder.mkdir()
            save_checkpoint(checkpoint, folder / "step_00000005.ckpt")
            inputs = ["--input", sound, "--output", tmp_path / "out", *TOY_ARGS]
            calls.append(["predict", "--ckpt_path", folder / "step_00000005.ckpt", *inputs])
            calls.append(["export", folder / "step_00000005.ckpt", folder / "exported", *TOY_ARGS])
    found = in_fork(attempts, calls)
    traps.assert_untouched(found, codes=(1, 2))


def test_an_export_is_no_way_in(traps: Traps, sound: Path, tmp_path: Path) -> None:
    (tmp_path / "original.json").write_text(json.dumps({"toy_gain": 1.5}))
    calls: list[list[object]] = [["convert", "toy_wing", tmp_path / "original.json", tmp_path / "export", *TOY_ARGS]]
    assert in_fork(attempts, calls)[0].code == 0
    file = tmp_path / "export" / "config.json"
    content = json.loads(file.read_text())
    calls = []
    for number, node in enumerate(traps.nodes()):
        export = tmp_path / f"export{number}"
        export.mkdir()
        for path in (tmp_path / "export").iterdir():
            (export / path.name).write_bytes(path.read_bytes())
        (export / "config.json").write_text(json.dumps({**content, "components": {"net": node}}))
        calls.append(["predict", "--ckpt_path", export, "--input", sound, "--output", tmp_path / "out", *TOY_ARGS])
    traps.assert_untouched(in_fork(attempts, calls), codes=(1, 2))


def test_urls_are_refused(traps: Traps) -> None:
    calls = [
        [command, "--config", TOY_RECIPE, *TOY_ARGS, "--ckpt_path=http://127.0.0.1:9/x.ckpt"] for command in COMMANDS
    ]
    calls.append([*TOY_FIT, "--init_from=http://127.0.0.1:9/x.ckpt"])
    traps.assert_untouched(in_fork(attempts, calls), codes=(1, 2))
