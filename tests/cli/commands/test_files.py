import shutil

import pytest
import yaml

from tests.harness import REPOSITORY, RUNS
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
    # Another name per test, since Python keeps imported modules.
    name = f"shapes_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Shapes."""\n')
    (folder / "convert.py").write_text(CONVERTER)
    (folder / "configs").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.txt").write_text("weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return name


def test_converts_and_prints_the_report(package, tmp_path, capsys):
    call = ["convert", package, "a.txt", "b.txt", "--allow-import", package]
    assert main([*call, "--allow_partial", "false"]) == 0
    assert (tmp_path / "b.txt").read_text() == "WEIGHTS"
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [["direction", "original -> ours"], ["tensors", "3"], ["missing", "none"], ["unexpected", "a.b, c"]]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["convert", "nothing", "a.txt", "x"], "no system 'nothing'; systems: "),
        (["convert", "PACKAGE", "a.txt", "x", "--allow_partial=true"], "--allow_partial: the converter of"),
        (["convert-config", "PACKAGE", "none.json"], "none.json: no such file"),
        (["convert-config", "miipher", "a.txt"], "a.txt"),
    ],
)
def test_errors_are_one_line(package, tmp_path, capsys, args, message):
    args = [word.replace("PACKAGE", package) for word in args]
    assert main(["--allow-import", package, *args]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_config_is_translated(package, tmp_path, capsys):
    args = ["--allow-import", package, "convert-config", package, "config.json"]
    assert main(args) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out) == {"model": {"init_args": {"rate": 24000, "name": "é"}}}
    assert "# not translated: num_workers\n# not translated: dist.port\n" in printed.out
    assert printed.err == "not translated: num_workers\nnot translated: dist.port\n"
    assert main([*args, "--output", "new/recipe.yaml"]) == 0
    assert (tmp_path / "new" / "recipe.yaml").read_text(encoding="utf-8") == printed.out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["recipe.yaml"]


def test_export_into_a_run_follows_no_link_out_of_it(tmp_path, capsys):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(RUNS / "flow" / "points", run)
    outside.mkdir()
    (run / "exports").symlink_to(outside)
    for source in (run, run / "step_00000003.ckpt"):
        assert main(["export", str(source), str(run / "exports" / "one")]) == 1
        assert "exports is a link out of the run folder" in capsys.readouterr().err
    assert not list(outside.iterdir())
    shutil.copy(run / "step_00000003.ckpt", plain := tmp_path / "plain.ckpt")  # beside links that are not its own
    (tmp_path / "link").symlink_to(REPOSITORY)
    assert main(["export", str(plain), str(tmp_path / "of_a_file")]) == 0
    (run / "exports").unlink()
    assert main(["export", str(run), str(run / "exports" / "one")]) == 0
