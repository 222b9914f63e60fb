"""Watch what a call of the zoo touches while it is given a crafted file."""

import contextlib
import io
import json
import os
import platform
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from tests.harness import RUNS
from zoo.runs.checkpoints import save_checkpoint

VALID_RUN = RUNS / "flow" / "points"
CHECKPOINT = "step_00000003.ckpt"
DECOY = "zoo_decoy"  # a module on sys.path that is not allowed
SECRET = "canary-3f1c"  # in the file that no call may read, and in the variable that none may show
VARIABLE = "AWS_SECRET"

_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
_CONNECTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")

# entry -> (kinds of files that it takes, kinds of which it builds what they describe)
ENTRIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fit": (("checkpoint", "run", "config"), ("run", "config")),
    "predict": (("checkpoint", "export", "run"), ("checkpoint", "export")),
    "convert": (("checkpoint", "export", "run"), ()),
    "inspect": (("checkpoint", "export", "run"), ()),
    "export": (("checkpoint", "export", "run"), ("checkpoint", "export")),
    "init_from": (("checkpoint", "export", "run"), ()),
    "load": (("checkpoint", "export", "run"), ("checkpoint", "export")),
    "doctor": (("config",), ("config",)),
}


class Stopped(BaseException):
    """Raised where a watched call was about to do what it must not."""


class Place(NamedTuple):
    """Where one crafted file lies; `elsewhere` is what it names, and nothing there may be read or written."""

    root: Path
    work: Path
    input: Path
    elsewhere: Path


class Case(NamedTuple):
    """One crafted file.

    Args:
        name: what is wrong with it.
        kind: "checkpoint", "export", "run" or "config".
        craft: writes it, given its place and a folder with a valid run and export.
        refused: by the entries that build what it describes.
    """

    name: str
    kind: str
    craft: Callable[[Place, Path], None]
    refused: bool = True


class Watch:
    """An audit hook for the rest of the process that stops and notes what no crafted file may cause."""

    def __init__(self) -> None:
        self._elsewhere: Path | None = None
        self._touched: list[str] = []
        platform.processor()  # starts `uname` once in a process
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[list[str]]:
        """Watch a call whose file lies at a place."""
        self._touched, before = [], sorted(place.elsewhere.rglob("*"))
        self._elsewhere = place.elsewhere
        try:
            yield self._touched
        finally:
            self._elsewhere = None
            self._touched += [f"changed {path}" for path in {*place.elsewhere.rglob("*")} ^ {*before}]

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        elsewhere = self._elsewhere
        if elsewhere is None or event == "os.listdir":
            return
        is_decoy = event == "import" and str(args[0]).partition(".")[0] == DECOY
        paths = [os.fsdecode(each) for each in args[:2] if isinstance(each, str | bytes | os.PathLike)]
        is_outside = event.startswith(("open", "os.", "shutil.")) and any(
            os.path.realpath(path).startswith(f"{elsewhere}{os.sep}") for path in paths
        )
        if is_decoy or is_outside or event in (*_STARTS, *_CONNECTS):
            self._touched.append(f"{event} {str(args)[:80]}")
            raise Stopped(event)


def edited(kind: str, edit: Callable[[dict[str, Any], Place], Any]) -> Callable[[Place, Path], None]:
    """Return what writes a valid file of a kind with its description or config edited."""

    def craft(place: Place, valid: Path) -> None:
        write_valid(kind, place, valid)
        name = {"checkpoint": CHECKPOINT, "export": "config.json"}.get(kind, "config.yaml")
        file = place.input / name
        if kind == "checkpoint":
            content = torch.load(file, weights_only=True)
            edit(content["zoo"], place)
            save_checkpoint(content, file)
        else:
            content = yaml.safe_load(file.read_text())
            edit(content, place)
            file.write_text(json.dumps(content) if kind == "export" else yaml.safe_dump(content, sort_keys=False))

    return craft


def write_valid(kind: str, place: Place, valid: Path) -> None:
    """Write a file of a kind as the zoo writes it."""
    if kind == "config":
        shutil.copy(valid / "run" / "config.yaml", place.input)
    else:
        shutil.copytree(valid / ("export" if kind == "export" else "run"), place.input, dirs_exist_ok=True)
    if kind == "checkpoint":
        (place.input / "config.yaml").unlink()


def arguments(entry: str, kind: str, place: Place, valid: Path) -> list[str]:
    """Return the command line by which an entry meets the crafted file."""
    file = str(place.input / CHECKPOINT if kind == "checkpoint" else place.input)
    config, out, recipe = map(str, (place.input / "config.yaml", place.root / "out", valid / "run" / "config.yaml"))
    root = f"--trainer.default_root_dir={place.work / 'runs'}"
    if entry == "fit":
        named = {
            "run": ["--ckpt_path", file],
            "checkpoint": ["--config", recipe, "--ckpt_path", file],
            "config": ["--config", config],
        }[kind]
        steps = f"--trainer.max_steps={1 if kind == 'config' else 4}"
        return [entry, *named, steps] if kind == "run" else [entry, *named, steps, root]
    return {
        "predict": ["predict", "--ckpt_path", file, "--input", str(valid / "input"), "--output", out],
        "convert": ["convert", "flow", file, f"{out}/original.ckpt"],
        "inspect": ["inspect", file],
        "export": ["export", file, out],
        "init_from": ["fit", "--config", recipe, "--init_from", file, root, "--trainer.max_steps=1"],
        "load": ["load", file],
        "doctor": ["doctor", "--config", config],
    }[entry]


def meet(entry: str, kind: str, cases: Sequence[Case], folder: str, valid: str) -> list[tuple[str, list[str]]]:
    """Let an entry meet crafted files in this process, which is spoiled for all else; return faults by case."""
    decoys = Path(folder) / "decoys"
    decoys.mkdir(parents=True)
    (decoys / f"{DECOY}.py").write_text("class Thing:\n    pass\n")
    sys.path.insert(0, str(decoys))
    sys.dont_write_bytecode = True
    os.environ[VARIABLE] = SECRET
    watch, results = Watch(), []
    place = _new_place(Path(folder) / "valid")
    write_valid(kind, place, Path(valid))
    code, text, faults = _call(watch, arguments(entry, kind, place, Path(valid)), place)
    assert not faults and (code == 0 or kind not in ENTRIES[entry][1]), (text, faults)
    for number, case in enumerate(cases):
        place = _new_place(Path(folder) / str(number))
        case.craft(place, Path(valid))
        code, text, faults = _call(watch, arguments(entry, kind, place, Path(valid)), place)
        message = ("error: ", "failed: ", "  valid  NO: ")  # the last by `inspect`
        errors = [line for line in text.splitlines() if any(each in line for each in message)]
        if case.refused and kind in ENTRIES[entry][1] and code == 0:
            faults.append("accepted it")
        if not faults and (SECRET in text or "Traceback" in text or (code and not errors)):
            faults.append(f"exit {code}: {text[-300:]!r}")
        results.append((case.name, faults))
        shutil.rmtree(place.root)
    return results


def _new_place(root: Path) -> Place:
    place = Place(root, root / "work", root / "input", root / "elsewhere")
    for folder in (place.work, place.input, place.elsewhere, root / "temporary"):
        folder.mkdir(parents=True)
    (place.elsewhere / "secret.yaml").write_text(f"secret: {SECRET}\n")
    return place


def _call(watch: Watch, args: list[str], place: Place) -> tuple[int, str, list[str]]:
    """Return exit code, output and what the watch stopped."""
    from zoo.cli.main import main

    output, code, touched = io.StringIO(), 1, []
    os.chdir(place.work)
    tempfile.tempdir = str(place.root / "temporary")
    with contextlib.suppress(Stopped), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        with watch.at(place) as touched:
            code = _load(args[-1]) if args[0] == "load" else main(args)
    return code, output.getvalue(), list(touched)


def _load(path: str) -> int:
    import zoo

    try:
        zoo.load(path)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}")
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0
