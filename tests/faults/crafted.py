"""Watching what a call of the zoo touches while it is given a crafted file."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from tests.faults.attempts import limited_memory
from tests.harness import REPOSITORY

SOUND = REPOSITORY / "tests" / "data" / "runs" / "flow" / "points"
CHECKPOINT = "step_00000003.ckpt"
DECOY = "zoo_decoy"  # a module on sys.path that nobody admitted
SECRET = "canary-3f1c"  # what stands in the file that no call may read, and in the variable that none may show
VARIABLE = "AWS_SECRET"
MEMORY = 300 * 2**20  # beside four times the file
SECONDS = 10  # of the processor
GIVE_UP = 30  # of these, an endless call is stopped

_STARTS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
}
_CONNECTS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"}
_CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_CHANGES |= {"shutil.rmtree", "shutil.copyfile", "shutil.move"}


class Stopped(BaseException):
    """Raised where a watched call was about to do what it must not, or did not end."""


class Place(NamedTuple):
    """Where one crafted file lies; only what a command line names, and `runs` below `work`, may be written to."""

    root: Path

    @property
    def work(self) -> Path:
        """The working directory."""
        return self.root / "work"

    @property
    def given(self) -> Path:
        """Folder of the crafted file; a run where it is one."""
        return self.root / "given"

    @property
    def elsewhere(self) -> Path:
        """What no call may touch."""
        return self.root / "elsewhere"

    @property
    def writable(self) -> tuple[Path, ...]:
        return self.given, self.root / "out", self.root / "temporary", self.work / "runs"


class Outcome(NamedTuple):
    """What one call did."""

    code: int
    said: str
    touched: list[str]
    seconds: float
    memory: int

    def faults(self, size: int, refuses: bool) -> list[str]:
        """What is wrong with it.

        Args:
            size: of the crafted file in bytes.
            refuses: whether it has to fail.
        """
        lines = self.said.splitlines()
        # what doctor's table says of a recipe is summed up in its last line
        errors = [line for line in lines if "error: " in line] or [
            line for line in lines if line.startswith("failed: ")
        ]
        found = list(self.touched)
        if refuses and self.code == 0:
            found.append("accepted it")
        if "Traceback" in self.said or (self.code and len(errors) != 1):
            found.append(f"exit {self.code} with {len(errors)} lines of error: {self.said[-300:]!r}")
        if SECRET in self.said:
            found.append("showed the secret")
        if self.seconds > SECONDS:
            found.append(f"took {self.seconds:.1f} s")
        if self.memory > 4 * size + MEMORY:
            found.append(f"took {self.memory / 2**20:.0f} MiB")
        return found


class Watch:
    """An audit hook for the rest of the process, that stops and notes what no crafted file may cause."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._usual: set[str] = set()
        self._touched: list[str] = []
        self._inside = threading.local()
        platform.processor()  # asks `uname` once in a process; DeepSpeed does so on its import
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def at(self, place: Place, usual: set[str]) -> Iterator[list[str]]:
        """Watch a call whose crafted file lies at a place.

        Args:
            place: decides what may be written.
            usual: what the same call does with a sound file.
        """
        self._place, self._usual, self._touched = place, usual, []
        try:
            yield self._touched
        finally:
            self._place = None

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._place is None or getattr(self._inside, "hook", False):
            return
        self._inside.hook = True
        try:
            found = self._judge(event, args, self._place)
        finally:
            self._inside.hook = False
        if found is not None and found not in self._usual:
            self._touched.append(found)
            raise Stopped(found)

    def _judge(self, event: str, args: tuple[Any, ...], place: Place) -> str | None:
        if event in _STARTS:
            return f"started a process: {event} {str(args[0])[:80] if args else ''}"
        if event in _CONNECTS:
            return f"connected: {event} {str(args[1:])[:80]}"
        if event == "import" and str(args[0]).partition(".")[0] == DECOY:
            return f"imported {args[0]}"
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            path = _resolved(args[0])
            flags = args[2] if isinstance(args[2], int) else 0
            writes = any(mark in str(args[1]) for mark in "wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and not self._may_write(path, place):
                return f"wrote {_told(path, place)}"
            if not path.is_dir() and path.is_relative_to(place.elsewhere):
                return f"read {_told(path, place)}"
        if event in _CHANGES:
            for name in args[:2]:
                path = _resolved(name) if isinstance(name, str | bytes | os.PathLike) else None
                # makedirs(exist_ok=True) of what is there changes nothing
                if (
                    path is not None
                    and not (event == "os.mkdir" and path.is_dir())
                    and not self._may_write(path, place)
                ):
                    return f"changed {_told(path, place)} ({event})"
        return None

    @staticmethod
    def _may_write(path: Path, place: Place) -> bool:
        return (
            path.is_relative_to("/dev")
            or path.is_relative_to("/proc")
            or any(path.is_relative_to(folder) for folder in place.writable)
        )


def _resolved(name: Any) -> Path:
    return Path(os.path.realpath(os.fsdecode(name)))


def _told(path: Path, place: Place) -> str:
    return str(path.relative_to(place.root)) if path.is_relative_to(place.root) else str(path)


class Case(NamedTuple):
    """One crafted file.

    Args:
        name: what is wrong with it.
        kind: "checkpoint", "export", "run" or "config".
        craft: writes it, given its place and a folder with the sound run and export.
        refused: by the entries that build what it describes, unless their command line sets the option itself.
        option: that it crafts, `trainer.default_root_dir`.
    """

    name: str
    kind: str
    craft: Callable[[Place, Path], None]
    refused: bool = True
    option: str = ""


def place_of(root: Path) -> Place:
    """Lay out the folders of one case, with what no call may touch."""
    place = Place(root)
    for folder in (place.work, place.given, place.elsewhere, root / "temporary"):
        folder.mkdir(parents=True)
    (place.elsewhere / "secret.yaml").write_text(f"secret: {SECRET}\n")
    (place.elsewhere / "config.json").write_text(json.dumps({"model_type": "llama", "secret": SECRET}))
    return place


def sound_file(kind: str) -> Callable[[Place, Path], None]:
    """What writes the file of a kind as the zoo wrote it."""

    def craft(place: Place, sound: Path) -> None:
        if kind == "export":
            shutil.copytree(sound / "export", place.given, dirs_exist_ok=True)
        elif kind == "config":
            shutil.copy(sound / "run" / "config.yaml", place.given)
        else:
            shutil.copytree(sound / "run", place.given, dirs_exist_ok=True)
            if kind == "checkpoint":
                (place.given / "config.yaml").unlink()

    return craft


def edited(kind: str, edit: Callable[[dict[str, Any], Place], Any]) -> Callable[[Place, Path], None]:
    """What writes the file of a kind with its description edited: a checkpoint's, an export's or a config."""

    def craft(place: Place, sound: Path) -> None:
        sound_file(kind)(place, sound)
        shutil.copytree(sound / "export", place.elsewhere / "second")
        if kind == "checkpoint":
            file = place.given / CHECKPOINT
            content = torch.load(file, weights_only=True)
            edit(content["zoo"], place)
            write_checkpoint(content, file)
        elif kind == "export":
            file = place.given / "config.json"
            content = json.loads(file.read_text())
            edit(content, place)
            file.write_text(json.dumps(content))
        else:
            file = place.given / "config.yaml"
            content = yaml.safe_load(file.read_text())
            edit(content, place)
            file.write_text(yaml.safe_dump(content, sort_keys=False))

    return craft


def texts(kind: str, change: Callable[[str, Place], str]) -> Callable[[Place, Path], None]:
    """What writes a run or a config whose YAML is changed as text."""

    def craft(place: Place, sound: Path) -> None:
        sound_file(kind)(place, sound)
        file = place.given / "config.yaml"
        file.write_text(change(file.read_text(), place))

    return craft


def write_checkpoint(content: Any, file: Path) -> None:
    """Write a checkpoint with a hash that matches, as whoever crafts one would."""
    torch.save(content, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_name(f"{file.name}.sha256").write_text(f"{digest}  {file.name}\n")


# entry -> (kinds that it takes, kinds of which it builds what they describe)
ENTRIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fit": (("checkpoint", "run", "config"), ("run", "config")),
    "validate": (("checkpoint", "run", "config"), ("run", "config")),
    "test": (("checkpoint", "run", "config"), ("run", "config")),
    "predict": (("checkpoint", "export", "run"), ("checkpoint", "export")),
    "convert": (("checkpoint", "export", "run"), ()),
    "inspect": (("checkpoint", "export", "run"), ()),
    "export": (("checkpoint", "export", "run"), ("checkpoint", "export")),
    "init_from": (("checkpoint", "export", "run"), ()),
    "load": (("checkpoint", "export", "run"), ("checkpoint", "export")),
    "doctor": (("config",), ("config",)),
}


def arguments(entry: str, kind: str, place: Place, sound: Path) -> list[str]:
    """The command line by which an entry meets the crafted file."""
    file = str(place.given / CHECKPOINT if kind == "checkpoint" else place.given)
    config, out = str(place.given / "config.yaml"), str(place.root / "out")
    recipe = str(sound / "run" / "config.yaml")
    fresh = [f"--trainer.default_root_dir={place.work / 'runs'}", "--trainer.max_steps=1"]
    inputs = ["--input", str(sound / "input"), "--output", out]
    commands = {
        "convert": ["convert", "flow", file, f"{out}/original.ckpt"],
        "inspect": ["inspect", file],
        "export": ["export", file, out],
        "init_from": ["fit", "--config", recipe, "--init_from", file, *fresh],
        "load": ["load", file],
        "doctor": ["doctor", "--config", config],
    }
    if entry in commands:
        return commands[entry]
    named = {
        "run": ["--ckpt_path", file],
        "export": ["--ckpt_path", file],
        "checkpoint": ([] if entry == "predict" else ["--config", recipe]) + ["--ckpt_path", file],
        "config": ["--config", config, *([] if entry == "fit" else ["--ckpt_path", str(sound / "run" / CHECKPOINT)])],
    }[kind]
    if entry == "fit":
        limit = "--trainer.max_steps=4" if kind != "config" else "--trainer.max_steps=1"
        return ["fit", *named, limit, *([] if kind == "run" else fresh[:1])]
    written = [f"--trainer.default_root_dir={place.work / 'runs'}"]
    return [entry, *named, *(inputs if entry == "predict" else written)]


def meet(entry: str, kind: str, cases: Sequence[Case], folder: str, sound: str) -> list[tuple[str, list[str]]]:
    """Let an entry meet crafted files one after the other in this process, which is spoiled for all else.

    Args:
        entry: of `ENTRIES`.
        kind: of the files.
        cases: of this kind.
        folder: for the files.
        sound: with the sound `run`, `export` and `input`.

    Returns:
        (case, faults) for each.
    """
    decoys = Path(folder) / "decoys"
    decoys.mkdir(parents=True)
    (decoys / f"{DECOY}.py").write_text("class Thing:\n    pass\n")
    sys.path.insert(0, str(decoys))
    sys.dont_write_bytecode = True
    os.environ[VARIABLE] = SECRET
    _prepare()
    builds, watch, found = kind in ENTRIES[entry][1], Watch(), []
    with limited_memory():
        usual = _usual(watch, entry, kind, Path(folder), Path(sound))
        for number, case in enumerate(cases):
            place = place_of(Path(folder) / str(number))
            case.craft(place, Path(sound))
            size = sum(path.stat().st_size for path in place.given.rglob("*") if path.is_file())
            before = _listing(place)
            args = arguments(entry, kind, place, Path(sound))
            outcome = _call(watch, args, entry, place, usual)
            overridden = any(argument.startswith(f"--{case.option}=") for argument in args)
            faults = outcome.faults(size, case.refused and builds and not overridden)
            faults += [f"changed {name}" for name in sorted(_listing(place) ^ before)]
            faults += ["wrote the secret"] * any(SECRET.encode() in path.read_bytes() for path in _written(place))
            found.append((case.name, faults))
            shutil.rmtree(place.root)
    return found


def _prepare() -> None:
    """Let jsonargparse look for its stubs, for which it asks another Python for its path, once."""
    from jsonargparse._stubs_resolver import get_stubs_resolver

    get_stubs_resolver()


def _usual(watch: Watch, entry: str, kind: str, folder: Path, sound: Path) -> set[str]:
    """What a call does with a sound file; the first ones also do what modules do once."""
    usual: set[str] = set()
    for number in range(8):
        place = place_of(folder / f"sound{number}")
        sound_file(kind)(place, sound)
        outcome = _call(watch, arguments(entry, kind, place, sound), entry, place, usual)
        if not outcome.touched:
            assert outcome.code == 0 or kind not in ENTRIES[entry][1], outcome
            return usual
        usual |= set(outcome.touched)
    raise AssertionError(f"{entry} of a sound {kind} did always more: {usual}")


def _call(watch: Watch, args: list[str], entry: str, place: Place, usual: set[str]) -> Outcome:
    from zoo.cli.main import main

    said, code, before = io.StringIO(), 0, _memory("VmRSS")
    os.chdir(place.work)
    tempfile.tempdir = str(place.root / "temporary")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started = time.process_time()
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, GIVE_UP)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), watch.at(place, usual) as touched:
            code = _load(args[-1]) if entry == "load" else main(args)
    except Stopped as stop:
        code = 1
        touched += [] if touched else [str(stop)]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    # what follows from the watch's own stop says nothing about the zoo
    text = "error: stopped by the watch\n" if touched else said.getvalue()
    return Outcome(code or bool(touched), text, list(touched), time.process_time() - started, _memory("VmHWM") - before)


def _load(path: str) -> int:
    import zoo

    try:
        zoo.load(path)
    except (ValueError, OSError, ImportError) as error:
        for line in str(error).splitlines() or [""]:
            print(f"error: {line}")
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _stop(*_: object) -> None:
    raise Stopped(f"no answer within {GIVE_UP} s of the processor")


def _memory(key: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024


def _listing(place: Place) -> set[str]:
    """Names and contents of all that no call may change."""
    kept = [path for path in place.root.rglob("*") if path.is_file()]
    kept = [path for path in kept if not any(path.is_relative_to(folder) for folder in place.writable)]
    return {f"{path.relative_to(place.root)} {hashlib.sha256(path.read_bytes()).hexdigest()[:8]}" for path in kept}


def _written(place: Place) -> list[Path]:
    roots = (place.root / "out", place.work, place.given)
    return [path for root in roots for path in root.rglob("*") if path.is_file()]
