import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from zoo.cli.commands.inspect import count_tensors
from zoo.cli.main import main
from zoo.runs.checkpoints import save_checkpoint


def checkpoint() -> dict:
    return {
        "zoo": {"version": "0.1.0", "task": "zoo.hifigan.HiFiGANTask", "inference": "x", "format": 2, "components": {}},
        "epoch": 2,
        "global_step": 40,
        "state_dict": {"generator.a": torch.ones(3, 4), "generator.b": torch.ones(2), "mpd.c": torch.ones(5).half()},
        "ema": {"shadow": {"generator.a": torch.ones(3, 4)}, "updates": 39},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(14)}}}],
    }


def lines(capsys) -> dict[str, str]:
    """What was printed, by the first word of each line."""
    words = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    return {first: rest for first, rest in (pair for pair in words if len(pair) == 2)}


def test_our_checkpoint(tmp_path, capsys):
    path = tmp_path / "step_00000040.ckpt"
    save_checkpoint(checkpoint(), path)
    assert main(["inspect", str(path)]) == 0
    found = lines(capsys)
    assert found["kind"] == "checkpoint of the zoo"
    assert found["system"] == "hifigan"
    assert found["version"] == "0.1.0"
    assert found["step"] == "40 batches"
    assert found["epoch"] == "2"
    assert found["optimizers"] == "1, 14 values"
    assert found["EMA"] == "after 39 updates"
    assert found["valid"].startswith("yes (sha256)")
    assert found["generator"] == "2 tensors, 14 values, float32"
    assert found["mpd"] == "1 tensor, 5 values, float16"


def test_last_is_the_newest_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", "last"]) == 1
    assert "last: no run with a checkpoint below runs" in capsys.readouterr().err
    for age, name in ((100, "new"), (200, "old")):
        file = tmp_path / "runs" / "flow" / name / "step_00000040.ckpt"
        file.parent.mkdir(parents=True)
        save_checkpoint(checkpoint(), file)
        os.utime(file, (1e9 - age,) * 2)
    assert main(["inspect", "last"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("runs/flow/new: run folder") and said.err == "last is runs/flow/new\n"
    (tmp_path / "last").mkdir()  # a folder of that name is meant where there is one
    assert main(["inspect", "last"]) == 1


def test_an_altered_checkpoint_is_torn(tmp_path, capsys):
    path = tmp_path / "step_00000040.ckpt"
    save_checkpoint(checkpoint(), path)
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["inspect", str(path)]) == 1
    assert lines(capsys)["valid"].startswith("NO")


def test_run_folder_shows_its_newest_sound_checkpoint(tmp_path, capsys):
    for step in (10, 20):
        save_checkpoint(checkpoint() | {"global_step": step}, tmp_path / f"step_{step:08d}.ckpt")
    (tmp_path / "step_00000020.ckpt").write_bytes(b"torn")
    assert main(["inspect", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "run folder, checkpoints: 2" in out
    assert "config.yaml is missing" in out
    assert "step_00000020.ckpt  0.0 MiB  CORRUPT" in out
    assert "10 batches" in out
    shutil.copy(tmp_path / "step_00000020.ckpt", tmp_path / "step_00000010.ckpt")
    assert main(["inspect", str(tmp_path)]) == 1


def test_export_folder(tmp_path, capsys):
    save_file({"generator.a": torch.ones(3, 4)}, tmp_path / "model.safetensors", {"task": "x"})
    (tmp_path / "config.json").write_text("{}")
    assert main(["inspect", str(tmp_path)]) == 0
    found = lines(capsys)
    assert found["valid"].startswith("yes")
    assert found["generator"] == "1 tensor, 12 values, f32"
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert main(["inspect", str(weights)]) == 1
    weights.write_bytes(b"short")
    assert main(["inspect", str(weights)]) == 1


class Payload:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_pickled_code_is_refused_not_run(tmp_path, capsys):
    marker = tmp_path / "marker"
    path = tmp_path / "x.pt"
    torch.save({"x": Payload(f"touch {marker}")}, path)
    assert main(["inspect", str(path)]) == 1
    assert not marker.exists()
    assert "nothing of the file was executed" in capsys.readouterr().err


def test_errors(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "none")]) == 1
    assert "no such file or folder" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 1
    assert "neither a run folder" in capsys.readouterr().err


def test_tensors_are_counted_in_circles():
    inner: dict = {"t": torch.ones(2)}
    inner["self"] = inner
    assert count_tensors({"a.x": inner, "a.y": [torch.ones(1)], "b": 3}) == {"a": [(2, "float32"), (1, "float32")]}
    assert count_tensors(torch.ones(2)) == {"content": [(2, "float32")]}


@pytest.mark.shared
def test_originals(shared, capsys):
    golden = shared / "golden"
    assert main(["inspect", str(golden / "hifigan" / "g_00000123")]) == 0
    assert "original's file, system hifigan" in capsys.readouterr().out
    for path in sorted(golden.rglob("*")):
        if path.suffix in {".pt", ".ckpt", ".bin", ".pkl", ".safetensors"}:
            assert main(["inspect", str(path)]) == 0, path
    out = capsys.readouterr().out
    assert "fm.FMScheduler" in out
