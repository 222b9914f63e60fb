import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness import environment
from tests.run_folders import INTERRUPTED, ROWS, make
from zoo.common.atomic_files import LOCK_NAME
from zoo.common.locks import LOCK_INFO_NAME, lock_folder
from zoo.runs import run_info
from zoo.runs.checkpoints import save_checkpoint
from zoo.runs.compare_runs import compare_runs
from zoo.runs.run_info import describe_run, find_runs


def state(folder: Path) -> str:
    return run_info.read_run(folder, folder.parent).state


def test_a_finished_run(tmp_path):
    run = run_info.read_run(make(tmp_path / "flow" / "smoke" / "20260101-100000"), tmp_path)
    assert (run.name, run.recipe) == ("flow/smoke/20260101-100000", "flow/smoke")
    assert (run.state, run.step, run.total, run.epochs) == ("finished", 10, 10, None)
    assert (run.monitor, run.best, run.best_step) == ("val/loss", 0.5, 10)
    run = run_info.read_run(make(tmp_path / "a", steps=-1, epochs=5), tmp_path)
    assert (run.total, run.epoch, run.epochs) == (None, 1, 5)


def test_states(tmp_path):
    assert state(make(tmp_path / "a", steps=99, log=INTERRUPTED)) == "stopped"
    failed = "x ERROR zoo.x: ended by ValueError\nTraceback\n" + "  line\n" * 100
    assert state(make(tmp_path / "b", steps=99, log=INTERRUPTED + failed)) == "failed"
    later = f"{failed}x: {run_info.FINISHED_MARK} 10\n"
    assert state(make(tmp_path / "c", steps=-1, epochs=3, log=later)) == "finished"
    assert state(make(tmp_path / "d", steps=99, rows="", saved=())) == "empty"
    torn = make(tmp_path / "e")
    os.truncate(torn / "step_00000010.ckpt", 100)
    assert state(torn) == "corrupt"
    killed = make(tmp_path / "f", steps=99)
    for name in (LOCK_NAME, LOCK_INFO_NAME):  # as a killed command leaves them
        (killed / name).touch()
    assert [state(killed), state(killed)] == ["killed", "killed"]
    with lock_folder(killed, "fit"):
        assert state(killed) == "running"


def test_best_comes_from_names_then_from_the_record(tmp_path):
    folder = make(tmp_path / "a", mode="max", rows=ROWS + "14,0,,0.75\n")
    assert run_info.read_run(folder, tmp_path).best == 0.75
    for name in ("best-step_00000003-0.910000.ckpt", "best-step_00000005-0.100000.ckpt", "best-step_x.ckpt"):
        save_checkpoint({}, folder / name)
    run = run_info.read_run(folder, tmp_path)
    assert (run.best, run.best_step) == (0.91, 3)


@pytest.mark.parametrize("config", ["", "\0\xff", "trainer:\n  max_steps: many\ncheckpoints: 3\n", "- a"])
def test_broken_folders_are_listed_and_reported(tmp_path, config):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.csv").write_bytes(b'\xff\0,step\n\n1,,,,,,\n"')
    (folder / "train.log").write_bytes(b"\xff\0")
    (folder / "step_00000003.ckpt").touch()
    (folder / "media").touch()
    [run] = run_info.list_runs(tmp_path)
    assert (run.state, run.step, run.best) == ("corrupt", 3, None)
    assert describe_run(run)["checkpoints"] == [{"name": "step_00000003.ckpt", "bytes": 0, "valid": False}]


@pytest.mark.parametrize("rows", [b"time,loss\n1,2\n3,4\n", b"step,epoch,val/loss\n" + b"9" * 5000 + b",0,1\n"])
def test_metrics_of_another_program_show_no_step(tmp_path, rows):
    folder = make(tmp_path / "run", rows="", saved=())
    (folder / "metrics.csv").write_bytes(rows)
    [run] = run_info.list_runs(tmp_path)
    assert (run.state, run.step, run.best) == ("empty", 0, None)


def test_newest_first_and_nothing_within_a_run(tmp_path):
    for name, age in (("a/b/old", 500), ("a/b/new", 5)):
        folder = make(tmp_path / name, saved=())
        for file in folder.iterdir():
            os.utime(file, 2 * (time.time() - age,))
    make(tmp_path / "a/b/new/inner")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.utime(tmp_path / "a/b/new/config.yaml")
    (tmp_path / "pretrained.ckpt").touch()
    assert [run.name for run in run_info.list_runs(tmp_path)] == ["a/b/new", "a/b/old"]


def test_a_checkpoint_beside_runs_hides_none(tmp_path):
    for path in ("system/pretrained.ckpt", "system/recipe/run/config.yaml", "system/recipe/run/checkpoints/a.ckpt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert set(find_runs(tmp_path)) == {tmp_path / "system", tmp_path / "system/recipe/run"}


def test_runs_are_found_by_the_end_of_their_name(tmp_path):
    make(tmp_path / "flow/smoke/1", saved=())
    two = make(tmp_path / "flow/smoke/22", saved=(3,))
    make(tmp_path / "flow/demo/1", saved=())
    assert run_info.find_run("22", tmp_path) == two
    assert run_info.find_run(str(two / "step_00000003.ckpt"), tmp_path) == two
    assert run_info.find_run("smoke/1", tmp_path) == tmp_path / "flow/smoke/1"
    assert run_info.find_run("last", tmp_path) == two  # of the newest checkpoint, as for every command
    with pytest.raises(ValueError, match="2 runs"):
        run_info.find_run("1", tmp_path)


def test_curves_survive_a_torn_row_and_foreign_text(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/<b>\n0,2.0,\n1,nan,3\n2,1.0,\n3,0.")
    curves = run_info.read_curves(tmp_path / "metrics.csv")
    assert curves == {"train/loss": [(0, 2), (2, 1), (3, 0)], "val/<b>": [(1, 3)]}
    assert run_info.read_curves(tmp_path / "none.csv") == {}


def test_changes_of_data_are_described():
    def config(**arguments):
        corpus = {"class_path": "x.Corpus", "init_args": {"cache": arguments.pop("corpus", "a")}}
        return {"data": {"class_path": "x.Data", "init_args": {"corpus": corpus, **arguments}}}

    before = config(segment=4, batch_size=8, seed=1, num_workers=0, root="a", cache="a")
    unreported = config(segment=4, batch_size=4, seed=2, num_workers=3, root="b", cache="b", corpus="b")
    assert run_info.describe_config_changes(before, unreported) == ""
    changed = run_info.describe_config_changes(before, config(segment=8, batch_size=8, seed=1))
    assert changed == "data.init_args.segment 8 (was 4)"


def test_a_validation_before_step_1_is_not_the_trainings(tmp_path):
    rows = "step,epoch,train/lr_x,val/loss\n0,,,0.1\n0,0,,2.0\n0,,0.5,\n1,0,,1.0\n"
    run = make(tmp_path / "run", rows=rows, saved=())
    curves = run_info.read_curves(run / "metrics.csv")
    assert (curves["val/loss"], curves["train/lr_x"]) == ([(0, 2), (1, 1)], [(0, 0.5)])
    assert run_info.read_run(run, tmp_path).best == 1.0
    assert compare_runs([run], tmp_path).values("val/loss") == [(1.0, 1.0)]
    (run / "metrics.csv").write_text("step,epoch,train/lr_x,val/loss\n0,,,0.1\n")
    assert run_info.read_run(run, tmp_path).step == 0


def test_time_leaves_the_pause_before_a_resume_out(tmp_path):
    resumed = "2026-01-01 11:00:00,000 INFO x: next\n2026-01-02 10:00:00,000 INFO x.summary: recipe a/b\n"
    resumed += "2026-01-02 10:00:30,000 INFO x: fit finished at step 10\n"
    folder = make(tmp_path / "a", log=INTERRUPTED + resumed, saved=())
    assert run_info.trained_seconds(folder) == 150
    killed = "2026-01-01 10:00:00,000 INFO x.summary: recipe a/b\n2026-01-01 10:01:00,000 INFO x: step 1\n"
    killed += "2026-01-03 10:00:00,000 INFO x: fit starts in process 3\n2026-01-03 10:00:20,000 INFO x: step 2\n"
    killed += "2026-01-03 10:00:30,000 INFO x: fit finished at step 10\n"
    assert run_info.trained_seconds(make(tmp_path / "b", log=killed, saved=())) == 90


def test_all_without_torch_or_lightning(tmp_path):
    make(tmp_path / "flow/smoke/1")
    make(tmp_path / "flow/smoke/2", mode="max")
    code = (
        "import sys; from zoo.cli.main import main; "
        f"codes = [main([*command, '--root', {str(tmp_path)!r}]) for command in "
        "(['runs'], ['runs', '1', '--json'], ['compare', '1', '2', '--output', 'out'])]; "
        "print(codes, [name for name in ('torch', 'lightning', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[0, 0, 0] []", result.stdout + result.stderr
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["config"] == {"checkpoints.mode": ["min", "max"]}
