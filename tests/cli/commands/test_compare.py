import csv
import json

from matplotlib.image import imread

from tests.run_folders import make
from zoo.cli.main import main


def test_tables_plots_and_files(tmp_path, capsys):
    make(tmp_path / "flow/smoke/1")
    make(tmp_path / "flow/smoke/2", steps=20, rows="step,epoch,train/loss,val/loss\n9,0,3,0.25\n19,0,1,\n")
    output = tmp_path / "out"
    assert main(["compare", "1", "2", "--root", str(tmp_path), "--output", str(output)]) == 0
    told = capsys.readouterr().out
    for part in ("trainer.max_steps", "val/loss ↓", "0.25 (0.25)", "train/loss  1 to 3", "█"):
        assert part in told
    with (output / "compare.csv").open() as file:
        rows = {(row["run"], row["metric"]): (row["best"], row["last"]) for row in csv.DictReader(file)}
    assert rows["2", "val/loss"] == ("0.25", "0.25")
    assert json.loads((output / "compare.json").read_text())["config"] == {"trainer.max_steps": [10, 20]}
    assert "| trainer.max_steps | 10 | 20 |" in (output / "compare.md").read_text()
    assert imread(output / "compare.png").shape[1] > 300
    assert main(["compare", "1", "2", "--root", str(tmp_path), "--metrics", "train/*"]) == 0
    assert "val/loss" not in capsys.readouterr().out


def test_wrong_calls(tmp_path, capsys):
    make(tmp_path / "flow/smoke/1")
    assert main(["compare", "1", "--root", str(tmp_path)]) == 1
    assert "two or more runs" in capsys.readouterr().err
    assert main(["compare", "1", "3", "--root", str(tmp_path)]) == 1
    assert "did you mean flow/smoke/1" in capsys.readouterr().err
    assert main(["compare", "1", "1", "--root", str(tmp_path), "--metrics", "val/x"]) == 1
    assert "val/loss" in capsys.readouterr().err
