import json
import shutil

import pytest
import yaml

from tests.harness import REPOSITORY, RUNS, TOY_ARGS
from zoo.cli.main import main


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["convert", "nothing", "a.txt", "x"], "no system 'nothing'; systems: "),
        (["convert", "toy_system", "a.txt", "x", "--allow_partial=true"], "--allow_partial: the converter of"),
        (["convert-config", "toy_system", "none.json"], "none.json: no such file"),
        (["convert-config", "miipher", "a.txt"], "a.txt"),
    ],
)
def test_errors_are_one_line(tmp_path, working_folder, capsys, args, message):
    (tmp_path / "a.txt").write_text("weights")
    assert main([*TOY_ARGS, *args]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_config_is_translated(tmp_path, working_folder, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"name": "é", "seed": 3, "num_workers": 0, "dist.port": 0}))
    args = [*TOY_ARGS, "convert-config", "toy_system", "config.json"]
    assert main(args) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out) == {"wandb": {"name": "é"}, "seed_everything": 3}
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
