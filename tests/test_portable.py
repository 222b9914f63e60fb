"""No call that one system alone has stands without a guard: what mypy knows of Windows, and a walk over the sources."""

import ast
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import REPOSITORY
from zoo.ui.jobs import groups

# Modules with names that Windows lacks.
OF_SYSTEMS = re.compile(
    r"^\s*import (os|signal|socket|mmap|fcntl|resource|pwd|grp|pty|tty|termios|select|time)\b", re.M
)
# File -> why POSIX may be taken for granted in it.
POSIX_ONLY: dict[str, str] = {}
# What means something else on Windows, and where it stands all the same.
ARGUMENTS = {"start_new_session", "preexec_fn", "pass_fds", "umask"}
WITH_ARGUMENTS = {"zoo/tuning/study.py", "zoo/ui/jobs/groups.py"}
KILLS = {
    "zoo/tuning/study.py": "a trial that is pruned or left; on Windows it ends without saving",
    "zoo/ui/jobs/groups.py": "the place for it",
    "zoo/ui/jobs/commands.py": "what does not end when asked to",
    "zoo/ui/jobs/trainings.py": "a training that never began",
    "zoo/ui/warm/worker.py": "behind a guard",
}
FOLDERS = re.compile(r"/(proc|sys|dev|tmp|bin|usr|etc)/")
WITH_FOLDERS = {
    "zoo/common/environment.py": "looked for; the answer is 0 or the next way without it",
    "zoo/tuning/batch_finder.py": "Linux alone",
    "zoo/ui/jobs/records.py": "psutil answers without it",
    "zoo/ui/readings.py": "without it there are no cards of AMD",
}


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted((REPOSITORY / "zoo").rglob("*.py")):
        yield path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")


def test_windows_has_every_name_that_is_used() -> None:
    files = [name for name, text in sources() if OF_SYSTEMS.search(text)]
    command = [sys.executable, "-m", "mypy", "--platform=win32", "--follow-imports=skip", f"--cache-dir={os.devnull}"]
    said = subprocess.run([*command, *files], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert said.returncode in (0, 1) and "checked" in said.stdout, said.stderr
    found = [line for line in said.stdout.splitlines() if "Module has no attribute" in line]
    assert [line for line in found if line.partition(":")[0] not in POSIX_ONLY] == []
    assert {line.partition(":")[0] for line in found} == set(POSIX_ONLY), "an exception that is none any more"


def test_what_means_something_else_on_windows_stands_in_few_places() -> None:
    found: dict[str, set[str]] = {"arguments": set(), "kills": set(), "folders": set()}
    for name, text in sources():
        if not re.search("|".join((*ARGUMENTS, "kill", "terminate", "send_signal", FOLDERS.pattern)), text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", "")
                owner = getattr(getattr(node.func, "value", None), "id", "")
                if ARGUMENTS & {each.arg for each in node.keywords}:
                    found["arguments"].add(name)
                if called in ("terminate", "send_signal") or (called.startswith("kill") and owner in ("os", "child")):
                    found["kills"].add(name)
            elif isinstance(node, ast.Dict) and ARGUMENTS & {getattr(key, "value", None) for key in node.keys}:
                found["arguments"].add(name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and FOLDERS.match(node.value):
                found["folders"].add(name)
    # zoo/ui/jobs/groups.py starts, asks and kills on every system
    assert found == {"arguments": set(WITH_ARGUMENTS), "kills": set(KILLS), "folders": set(WITH_FOLDERS)}


def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for name, value in (("CTRL_BREAK_EVENT", 1), ("SIGBREAK", signal.SIGUSR2)):
        monkeypatch.setattr(signal, name, value, raising=False)
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)


def test_windows_stops_by_ctrl_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for what Windows alone has; not run there."""

    class Child:
        sent: list[int] = []  # noqa: RUF012

        def send_signal(self, number: int) -> None:
            self.sent.append(number)

    with monkeypatch.context() as there:
        on_windows(there)
        assert groups.own_group() == {"creationflags": 0x200}
        groups.ask_to_end(Child())
        spec = importlib.util.spec_from_file_location("there", REPOSITORY / "zoo/training/signals.py")
        signals = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(signals)
    assert Child.sent == [1]
    assert signals.EXIT_CODES == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR2: 143}
    request = signals.StopSignal()
    request.install()
    try:
        signal.raise_signal(signal.SIGUSR2)
        assert request.exit_code == 143
    finally:
        request.uninstall()


def test_windows_ends_itself_and_others_without_posix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(threading.current_thread()))
    grandchild = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    child = subprocess.Popen([sys.executable, "-c", f"{grandchild}; print(1, flush=True); time.sleep(60)"], stdout=-1)
    child.stdout.readline()
    tree = [psutil.Process(child.pid), *psutil.Process(child.pid).children()]
    with monkeypatch.context() as there:
        on_windows(there)
        there.delattr(os, "killpg")
        groups.kill_group(child.pid)
        groups.kill_group(2**22 + 1)  # nobody
        thread = threading.Thread(target=groups.end_self)
        thread.start()
        thread.join()
    signal.signal(signal.SIGTERM, before)
    assert len(tree) == 2 and psutil.wait_procs(tree, timeout=10)[1] == []
    assert seen == [threading.main_thread()]
    child.stdout.close()
