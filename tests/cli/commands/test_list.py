import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from zoo.cli.main import main
from zoo.common.systems import list_systems, recipe_root


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a user with one recipe; importing it fails."""
    folder = tmp_path / "colours"
    (folder / "configs").mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Colours: red and green.\n\nMore."""\nraise RuntimeError("imported")\n')
    (folder / "configs" / "smoke.yaml").write_text("# Seconds on a CPU.\nmodel: {}\n")
    (folder / "configs" / "bare.yaml").write_text("model: {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_systems_and_recipes_are_listed(capsys):
    assert main(["list", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("hifigan: HiFi-GAN: GAN vocoder") for line in lines)
    assert not any(line.startswith(("audio:", "training:", "commands:")) for line in lines)
    for recipe in recipe_root().glob("*/*.yaml"):
        assert sum(line.split()[:1] == [f"{recipe.parent.name}/{recipe.stem}"] for line in lines) == 1
    assert all(system.title for system in list_systems())
    assert main(["list", "flow"]) == 0
    names = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:-1]}
    assert {"flow/base", "flow/smoke"} < names and "flow/smoke_dit" not in names
    assert all(name.startswith("flow/") for name in names)


def test_a_package_named_like_a_system_is_refused(package, capsys):
    package.rename(package.with_name("flow"))
    assert main(["--allow-import", "flow", "list"]) == 1
    assert "zoo.flow has the same last name" in capsys.readouterr().err


def test_package_of_a_user_is_listed_without_importing_it(package, capsys):
    assert main(["--allow-import", "colours", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("colours: Colours: red and green.")
    assert lines[start + 1] == "  colours/bare"
    assert lines[start + 2].split(maxsplit=1) == ["colours/smoke", "Seconds on a CPU."]


def test_a_file_of_the_working_folder_hides_no_installed_package(package, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (Path.cwd() / "omegaconf.py").touch()
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(Path.cwd()))])
    assert main(["--allow-import", "colours", "list"]) == 0
    assert Path(PathFinder.find_spec("colours").origin).parent.parent == Path.cwd()
    assert Path.cwd() not in Path(PathFinder.find_spec("omegaconf").origin).parents
