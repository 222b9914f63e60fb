"""`zoo predict`: a checkpoint is enough, options have the types of the system, processes share the files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.harness import RUNS, contents, error_line, forked_ranks, good, newest
from zoo.cli.main import main
from zoo.runs.checkpoints import load_checkpoint, save_checkpoint


@pytest.fixture
def work(tmp_path: Path, working_folder: Path) -> Path:
    """A folder with a run, and requests for it."""
    shutil.copytree(RUNS / "flow" / "smoke", "run")
    Path("in").mkdir()
    for number in range(5):
        Path("in", f"{number}.jsonl").write_text(json.dumps({"label": 0, "seed": number}))
    return tmp_path


ARGS = ("predict", "--ckpt_path", "run", "--input", "in", "--output", "out")


def test_options_have_types_and_keep_the_others(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    solver = '{"class_path": "zoo.flow.Solver", "init_args": {"method": "heun2"}}'
    assert main([*ARGS, "--model.solver", solver, "--model.init_args.solver.init_args.steps", "3"]) == 0
    options = json.loads(Path("out/settings.json").read_text())["options"]["solver"]["init_args"]
    assert (options["steps"], options["method"]) == (3, "heun2")
    for wrong in (["--model.solver.init_args.steps", "few"], ["--model.chnuk", "3"], ["--model.net", "x"]):
        assert main([*ARGS, *wrong]) == 2
    assert "did you mean chunk?" in capsys.readouterr().err


def test_other_settings_are_refused_and_a_moved_run_is_not(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGS]) == 0
    before = contents(work / "out")
    assert main([*ARGS, "--precision", "bf16-mixed"]) == 1
    assert main([*ARGS, "--model.chunk", "3"]) == 1
    save_checkpoint({**load_checkpoint(newest(work / "run")), "global_step": 4}, work / "run" / "step_00000004.ckpt")
    assert main([*ARGS]) == 1
    assert capsys.readouterr().err.count("was begun with other settings") == 3
    assert contents(work / "out") == before
    assert main([*ARGS, "--overwrite", "true"]) == 0
    Path("run").rename("moved")
    times = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.npy")}
    assert main([*ARGS, "--ckpt_path", "moved"]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.npy")} == times


def test_processes_share_the_files(work: Path) -> None:
    for result in forked_ranks(*ARGS, cwd=work):
        good(result)
    shared = rows_by_target()
    assert len(shared) == 5
    shutil.rmtree("out")
    Path("run/config.yaml").unlink()  # a checkpoint is enough
    for shard in ("2/2", "1/2"):
        assert main([*ARGS, "--shard", shard]) == 0
    assert rows_by_target() == shared
    assert json.loads(Path("out/summary.json").read_text())["done"] == 5


def rows_by_target() -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in Path("out/manifest.jsonl").read_text().splitlines()]
    assert all(row["status"] == "done" for row in rows)
    return {row["target"]: {key: value for key, value in row.items() if "seconds" not in key} for row in rows}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*ARGS, "flow/smoke"], "takes no recipe"),
        ([*ARGS, "--trainer.devices", "2"], "torchrun"),
        ([*ARGS, "--shard", "3/2"], "--shard 3/2"),
        ([*ARGS, "--engine", "ray", "--shard", "1/2"], "start the command once"),
    ],
)
def test_wrong_calls_get_one_line(
    work: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) in (1, 2)
    assert message in error_line(capsys.readouterr().err)
    assert not Path("out").exists()
