import os
import subprocess


def test_launch_script_parses(repository):
    path = repository / "scripts" / "launch.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.stat().st_mode & 0o111


def stand_in(folder, name, body):
    """Put an executable of that name at the front of the path."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def run_script(repository, tmp_path, script, *args, **environment):
    variables = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        **environment,
    }
    command = ["bash", str(repository / "scripts" / script), *args]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def test_launch_script(repository, tmp_path):
    stand_in(tmp_path, "python", 'echo python "$@"')
    done = run_script(repository, tmp_path, "launch.sh", "r.yaml", "2", "--seed_everything=1")
    assert done.stdout == (
        "python -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=3 -m zoo fit --config r.yaml "
        "--config trainer/ddp --trainer.devices=2 --ckpt_path auto --seed_everything=1\n"
    )
