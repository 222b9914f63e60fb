import pytest
import yaml

from tests.conftest import reference_folder
from zoo.cli.main import main

CONVERTER = """
def convert(source, target):
    target.write_text(source.read_text().upper())
    return {"direction": "original -> ours", "tensors": 3, "missing": [], "unexpected": ["a.b", "c"]}

def convert_config(path):
    return {"model": {"init_args": {"rate": 24000, "name": "é"}}}, ["num_workers", "dist.port"]
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    # A name of its own per test, since Python keeps imported modules.
    name = f"shapes_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Shapes."""\n')
    (folder / "convert.py").write_text(CONVERTER)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_converts_and_prints_the_report(package, tmp_path, capsys):
    source, target = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("weights")
    assert main(["convert", package, str(source), str(target), "--allow-import", package]) == 0
    assert target.read_text() == "WEIGHTS"
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        ["direction", "original -> ours"],
        ["tensors", "3"],
        ["missing", "none"],
        ["unexpected", "a.b, c"],
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing", "pyproject.toml", "x"], "no system 'nothing'; systems: "),
        (["hifigan", "no-such-file", "x"], "no-such-file: no such file or folder"),
    ],
)
def test_errors_are_one_line(repository, monkeypatch, capsys, args, message):
    monkeypatch.chdir(repository)
    assert main(["convert", *args]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_are_those_of_the_converter(package, tmp_path, capsys):
    source, target = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("weights")
    call = ["convert", package, str(source), str(target), "--allow-import", package]
    assert main([*call, "--allow_partial", "false"]) == 0
    target.unlink()
    assert main([*call, "--allow_partial", "true"]) == 1
    assert "--allow_partial: the converter of" in capsys.readouterr().err and not target.exists()


def test_a_system_without_converter(package, tmp_path, capsys):
    (tmp_path / package / "convert.py").unlink()
    (tmp_path / package / "configs").mkdir()
    source = tmp_path / "a"
    source.touch()
    assert main(["--allow-import", package, "convert", package, str(source), "x"]) == 1
    assert "has no converter" in capsys.readouterr().err


@pytest.mark.shared
def test_an_original_of_hifigan(tmp_path, capsys):
    target = tmp_path / "ours.ckpt"
    assert main(["convert", "hifigan", str(reference_folder("hifigan") / "g_00000123"), str(target)]) == 0
    assert target.exists()


def test_a_config_is_translated(package, tmp_path, capsys):
    assert main(["--allow-import", package, "convert-config", package, str(tmp_path / "config.json")]) == 0
    shown = capsys.readouterr()
    assert yaml.safe_load(shown.out) == {"model": {"init_args": {"rate": 24000, "name": "é"}}}
    assert "# not translated: num_workers\n# not translated: dist.port\n" in shown.out
    assert shown.err == "not translated: num_workers\nnot translated: dist.port\n"


def test_a_translated_config_is_written(package, tmp_path, capsys):
    output = tmp_path / "new" / "recipe.yaml"
    args = ["convert-config", package, str(tmp_path / "config.json"), "--output", str(output)]
    assert main(["--allow-import", package, *args]) == 0
    assert yaml.safe_load(output.read_text(encoding="utf-8"))["model"]["init_args"]["rate"] == 24000
    assert [path.name for path in output.parent.iterdir()] == ["recipe.yaml"]
    assert capsys.readouterr().out == ""


def test_a_system_that_translates_none(package, tmp_path, capsys):
    (tmp_path / package / "convert.py").write_text("")
    assert main(["--allow-import", package, "convert-config", package, str(tmp_path / "config.json")]) == 1
    assert "translates no configurations" in capsys.readouterr().err


def test_a_missing_config(package, tmp_path, capsys):
    assert main(["--allow-import", package, "convert-config", package, str(tmp_path / "none.json")]) == 1
    assert "none.json: no such file" in capsys.readouterr().err
