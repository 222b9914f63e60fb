import pytest
import yaml

from zoo.cli.main import main

CONVERTER = """
def convert_config(path):
    return {"model": {"init_args": {"rate": 24000, "name": "é"}}}, ["num_workers", "dist.port"]
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    name = f"sounds_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Sounds."""\n')
    (folder / "convert.py").write_text(CONVERTER)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_standard_output(package, tmp_path, capsys):
    assert main(["--allow-import", package, "convert-config", package, str(tmp_path / "config.json")]) == 0
    shown = capsys.readouterr()
    assert yaml.safe_load(shown.out) == {"model": {"init_args": {"rate": 24000, "name": "é"}}}
    assert "# not translated: num_workers\n# not translated: dist.port\n" in shown.out
    assert shown.err == "not translated: num_workers\nnot translated: dist.port\n"


def test_file(package, tmp_path, capsys):
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


def test_missing_file(package, tmp_path, capsys):
    assert main(["--allow-import", package, "convert-config", package, str(tmp_path / "none.json")]) == 1
    assert "none.json: no such file" in capsys.readouterr().err
