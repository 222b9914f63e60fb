"""scripts/slurm.sh with stand-ins for SLURM's commands; tests/cluster/test_slurm.py runs it on a real cluster."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm.sh"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
RUN_TASK = 'until [[ $1 == bash ]]; do shift; done; "$@"'  # what srun does with the command behind its options


def stand_in(folder, name, body):
    """Put an executable of that name at the front of the path."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def start(folder, *args, recipe="flow/r.yaml", srun="exit 0", scontrol="", **environment):
    stand_in(folder, "srun", f'printf "%s\\n" srun "$@" >"{folder}/said"; {srun}')
    stand_in(folder, "scontrol", f"case $1 in requeue) {scontrol or 'echo requeue $2'};; *) echo node1;; esac")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "SLURM_SUBMIT_DIR": str(folder), **JOB, **environment}
    command = ["bash", str(SCRIPT), recipe, *args]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def submit(folder, *args, **settings):
    """Run the script; its exit code, what it printed, and srun's arguments."""
    process = start(folder, *args, **settings)
    printed = "".join(process.communicate(timeout=60))
    return process.returncode, printed, (folder / "said").read_text().splitlines()


def records(folder):
    return [path.read_text().strip() for path in folder.glob("slurm-7.*")]


@pytest.mark.parametrize(("code", "requeued", "exit_code"), [(143, True, 0), (137, True, 0), (10, False, 10)])
def test_what_was_stopped_or_lost_a_process_comes_back(tmp_path, code, requeued, exit_code):
    left, printed, output = submit(tmp_path, srun=f"exit {code}")
    assert (left, "requeue 7" in printed) == (exit_code, requeued), printed
    assert output[output.index("--ckpt_path") + 1] == "auto"
    assert records(tmp_path) == (["1"] if requeued else [])


@pytest.mark.parametrize("code", [0, 2, 75, 130, 137])
def test_a_failure_stands_above_what_the_other_ranks_report(tmp_path, code):
    stand_in(tmp_path, "python", f"exit {code}")
    left, printed, _ = submit(tmp_path, srun=f"{RUN_TASK}; code=$?; exit $((code > 75 ? code : 75))")
    assert left == (code if code in (1, 2, 130) else 0) and ("requeue 7" in printed) == (code not in (1, 2, 130))


def test_gives_up_when_nothing_is_gained(tmp_path):
    codes = [random.choice((75, 137, 143)) for _ in range(3)]
    print(codes)
    done = [submit(tmp_path, srun=f"exit {code}", ZOO_RESTARTS="2") for code in codes]
    assert [each[0] for each in done] == [0, 0, codes[-1]] and records(tmp_path) == []
    assert "no new checkpoint in 3 starts: given up" in done[-1][1] and "requeue" not in done[-1][1]


def test_goes_on_while_something_is_gained(tmp_path):
    others, run = (tmp_path / "runs" / name / "time" for name in ("hifigan/r", "flow/r"))
    others.mkdir(parents=True)
    run.mkdir(parents=True)
    for step in range(6):  # also when the last start that is allowed has saved something
        saves = f'sleep 0.01; touch "{run}/step_{step}.ckpt"; exit 137'
        assert submit(tmp_path, srun=saves, ZOO_RESTARTS="0")[0] == 0
    for step in range(2):  # what another job saves is no gain of this one
        saves = f'sleep 0.01; touch "{others}/step_{step}.ckpt"; exit 137'
        assert submit(tmp_path, srun=saves, ZOO_RESTARTS="1")[0] == (0, 137)[step]
    key = "trainer.default_root_dir"
    for step, flags in enumerate([(f"--{key}", str(others)), (f"--{key}={others}",), (f"{key}={others}",)], 2):
        saves = f'sleep 0.01; touch "{others}/step_{step}.ckpt"; exit 137'
        assert submit(tmp_path, *flags, srun=saves, ZOO_RESTARTS="0")[0] == 0


@pytest.mark.parametrize("recipe", ["r.yaml", "./configs/r.yaml", "../{name}/r.yaml"])
def test_finds_the_runs_of_a_recipe_in_the_working_folder(tmp_path, recipe):
    run = tmp_path / "runs" / tmp_path.name / "r" / "time"
    run.mkdir(parents=True)
    for step in range(2):
        saves = f'sleep 0.01; touch "{run}/step_{step}.ckpt"; exit 137'
        settings = {"recipe": recipe.format(name=tmp_path.name), "srun": saves, "ZOO_RESTARTS": "0"}
        assert submit(tmp_path, **settings)[0] == 0


def test_states_when_slurm_does_not_take_it_back(tmp_path):
    left, printed, _ = submit(tmp_path, srun="exit 75", scontrol="echo disabled >&2; exit 1")
    assert left == 75 and "disabled" in printed


@pytest.mark.parametrize(("reason", "requeued"), [("None", False), ("TimeLimit", True)])
def test_a_job_that_is_cancelled_never_comes_back(tmp_path, reason, requeued):
    process = start(tmp_path, srun=f"touch {tmp_path}/up; sleep 1; exit 143")
    stand_in(
        tmp_path, "scontrol", f'[[ $1 == requeue ]] && echo requeue $2 || echo "JobState=x Reason={reason} Nodes=1"'
    )
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    printed = "".join(process.communicate(timeout=60))
    assert ("requeue 7" in printed) == requeued and process.returncode == (0 if requeued else 143)
    assert records(tmp_path) == (["1"] if requeued else [])


def test_containers(tmp_path):
    stand_in(tmp_path, "apptainer", f'printf "%s\\n" "$@" >"{tmp_path}/apptainer.said"')
    mounts = f"{tmp_path}:{tmp_path},/data:/data"
    left, _, output = submit(tmp_path, srun=RUN_TASK, ZOO_CONTAINER="zoo.sif", ZOO_MOUNTS="/data:/data")
    inside = (tmp_path / "apptainer.said").read_text().splitlines()
    expected = ["exec", "--nv", "--bind", mounts, "--pwd", str(tmp_path), "zoo.sif", "python", "-m", "zoo", "fit"]
    assert left == 0 and inside[: len(expected)] == expected and not any("--container" in word for word in output)
    _, _, output = submit(tmp_path, ZOO_CONTAINER="nvcr.io#nvidia/pytorch:25.01-py3", ZOO_MOUNTS="/data:/data")
    expected = ["--container-image=nvcr.io#nvidia/pytorch:25.01-py3", f"--container-mounts={mounts}"]
    assert [*expected, f"--container-workdir={tmp_path}"] == output[3 : output.index("bash")]
    assert not any("--container" in word for word in submit(tmp_path)[2])


def test_tasks_of_an_array_have_runs_of_their_own(tmp_path):
    output = submit(tmp_path, "--seed_everything=%a", SLURM_ARRAY_TASK_ID="3")[2]
    assert output[-2:] == ["--trainer.default_root_dir=runs/array/flow/r-3", "--seed_everything=3"]
    assert submit(tmp_path, "--seed_everything=%a")[2][-1] == "--seed_everything=%a"
