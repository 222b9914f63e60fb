"""Imports never point upward, and the nets need neither Lightning nor I/O."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment

PACKAGE = REPOSITORY / "zoo"
NOT_SYSTEMS = {"training", "audio", "commands", "ui"}
SYSTEMS = {path.name for path in PACKAGE.iterdir() if (path / "task.py").is_file()} - NOT_SYSTEMS
USES_VOCODER = {"miipher", "audiosr"}
TOP = {"zoo.cli.main", "zoo.cli.trainer", "zoo.__main__"}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.split(".")[0] in ("zoo", "scripts")}


def forbidden(path: Path) -> list[str]:
    room = path.relative_to(PACKAGE).parts[0]
    bad = []
    for name in imports(path):
        parts = name.split(".")
        target = parts[1] if len(parts) > 1 else ""
        upward = parts[0] == "scripts" or target in ("cli", "__main__")
        if room not in ("commands", "ui", "cli.py", "lightning_cli.py", "__main__.py"):
            upward |= target in ("lightning_cli", "commands", "ui")
        if room in ("training", "audio"):
            upward |= target in SYSTEMS
        if room in SYSTEMS:
            upward |= target in SYSTEMS - {room} and not (target == "hifigan" and room in USES_VOCODER)
        if room == "common":
            upward |= parts[0] == "zoo" and target != "common"
        if room == "audio":
            upward |= target == "training"
        if upward:
            bad.append(name)
    return bad


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_upward_import(path: Path) -> None:
    allowed = {"zoo.cli.main"} if path.name == "__main__.py" else set()
    assert [name for name in forbidden(path) if not any(name.startswith(a) for a in allowed)] == []


def test_an_upward_import_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "x.py").write_text("from zoo.hifigan.task import HiFiGANTask\nimport zoo.cli.main\n")
    assert {"zoo.hifigan.task", "zoo.cli.main"} <= set(forbidden(tmp_path / "training" / "x.py"))


def test_nets_import_without_lightning() -> None:
    nets = ["hifigan.generator", "hifigan.discriminators", "hifigan.conditioners", "audio.mel"]
    nets += ["audiosr.denoiser", "audiosr.vae"]
    code = "import sys; " + "; ".join(f"import zoo.{net}" for net in nets) + "; assert 'lightning' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_no_file_is_longer_than_the_house_allows() -> None:
    long = {
        str(p.relative_to(PACKAGE)): n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 500
    }
    assert long == {}
