from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.audiosr.lily import nets, state_of, write
from zoo.audiosr.convert import convert, original_files
from zoo.audiosr.convert.original_files import OriginalFiles


def test_files_follow_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "theirs", "model.py", {"state_dict": state_of(nets("model.py"), "model.py"), "ema": {}})
    run = tmp_path / "run"
    first, second = run / "step_00000040.ckpt", run / "best-step_00000050-0.5.ckpt"
    convert(source, first)
    monkeypatch.setattr(original_files, "run_folder", lambda trainer: run)
    trainer = SimpleNamespace(is_global_zero=True, strategy=object(), fast_dev_run=False)
    callback = OriginalFiles()
    callback.on_train_batch_start(trainer, None, None, 0)
    assert not (run / "checkpoints").exists()
    callback.on_save_checkpoint(trainer, None, {})
    callback.on_train_batch_start(trainer, None, None, 1)
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step_40.pt", "config.yaml"}
    shutil.move(first, second)
    shutil.move(f"{first}.sha256", f"{second}.sha256")
    callback.on_save_checkpoint(trainer, None, {})
    callback.on_train_end(trainer, None)
    callback.teardown(trainer, None, "fit")
    left = {path.name for path in (run / "checkpoints").iterdir()}
    assert left == {"best_step_50.pt", "final_ema.pt", "config.yaml"}
