import json

from tests.harness import read_csv
from tests.run_folders import INTERRUPTED, make
from zoo.cli.main import main


def test_the_list(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    make(tmp_path / "flow/smoke/20260101-100000")
    long = "compressed_ad/key_to_door_base"
    make(tmp_path / long / "20260101-100001", steps=250000, log=INTERRUPTED, recipe=long)
    assert main(["runs", "--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["recipe", "run", "state", "step", "best", "age"]
    assert all(len(line) <= 80 for line in lines)
    assert any("flow/smoke" in line and "finished" in line and "10/10" in line for line in lines)
    assert main(["runs", "--root", str(tmp_path), "--last", "1"]) == 0
    assert "1 older ones" in capsys.readouterr().out.splitlines()[-1]
    assert main(["runs", "--root", str(tmp_path), "--json", "--last=0"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_what_is_missing_is_named(tmp_path, capsys, working_folder):
    assert main(["runs"]) == 1
    assert "runs: no such folder" in capsys.readouterr().err
    (tmp_path / "runs" / "bare").mkdir(parents=True)
    assert main(["runs"]) == 0
    assert "no runs below runs" in capsys.readouterr().out
    make(tmp_path / "runs/flow/smoke/1")
    for line, message in (
        ("runs x", "no run 'x'"),
        ("runs bare", "holds no run"),
        ("compare 1", "two or more runs"),
        ("compare 1 3", "did you mean flow/smoke/1"),
    ):
        assert main(line.split()) == 1
        assert message in capsys.readouterr().err


def test_compare_writes_tables_and_plots(tmp_path, capsys, caplog):
    make(tmp_path / "flow/smoke/1")
    make(tmp_path / "flow/smoke/2", steps=20, rows="step,epoch,train/loss,val/loss\n9,0,3,0.25\n19,0,nan,0.75\n")
    output = tmp_path / "out"
    assert main(["compare", "1", "2", "--root", str(tmp_path), "--output", str(output)]) == 0
    messages = capsys.readouterr().out
    for part in ("trainer.max_steps", "val/loss ↓", "0.25 (0.75)", "train/loss"):
        assert part in messages
    rows = {(row["run"], row["metric"]): (row["best"], row["last"]) for row in read_csv(output / "compare.csv")}
    assert rows["2", "val/loss"] == ("0.25", "0.75")
    assert "2: train/loss is not finite since step 19" in caplog.text
    assert json.loads((output / "compare.json").read_text())["config"] == {"trainer.max_steps": [10, 20]}
    assert "| trainer.max_steps | 10 | 20 |" in (output / "compare.md").read_text()
    assert (output / "compare.png").is_file()
    assert main(["compare", "1", "2", "--root", str(tmp_path), "--metrics", "train/*"]) == 0
    assert "val/loss" not in capsys.readouterr().out
