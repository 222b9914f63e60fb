"""Old calls in our words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.audiosr.lily import config
from zoo.audiosr.convert.legacy import translate
from zoo.audiosr.convert.write import original_name

FOUR = {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config("modelV1", explosion_threshold=4.0)))
    return tmp_path / "config.zoo.yaml"


def test_the_window(path: Path) -> None:
    assert translate([], {}).command == ["ui"]
    assert translate(["--legacy-gui", "--port", "80"], {}).command == ["ui", "--port", "80"]
    assert "convert-config audiosr mine.yaml" in translate(["--gui", "--config", "mine.yaml"], {}).notes[0]
    assert not path.exists()


@pytest.mark.parametrize("way", ["--headless", "--term"])
def test_training(path: Path, way: str) -> None:
    call = translate([way, "--trainer.max_steps=3"], {})
    assert call.command == ["fit", "--config", "config.zoo.yaml", "--trainer.max_steps=3"]
    assert all(note.startswith("not translated: ") for note in call.notes)
    recipe = yaml.safe_load(path.read_text())
    names = [each["class_path"].rpartition(".")[2] for each in recipe["trainer"]["callbacks"]]
    assert names == ["EMA", "LossMonitor", "OriginalFiles"]


def test_one_process_a_device(path: Path) -> None:
    command = translate(["--distributed", "--config=config.yaml"], FOUR).command
    assert Path(command[4]).name == "ddp.yaml"
    assert "--trainer.devices=4" in command
    recipe = yaml.safe_load(path.read_text())
    assert recipe["model"]["init_args"]["parallel"] == "none"
    guard = recipe["trainer"]["callbacks"][1]
    assert guard == {"class_path": "zoo.training.LossGuard", "init_args": {"action": "reduce", "limit": 4.0}}
    assert "--trainer.devices=auto" in translate(["--distributed"], {}).command


def test_the_model_test(path: Path) -> None:
    assert translate(["--test-model"], {}).command == ["doctor", "--config", "config.zoo.yaml"]
    with pytest.raises(ValueError, match="one configuration"):
        translate(["--test-model", "--config", "config.yaml", "--config", "cpu.yaml"], {})
    with pytest.raises(ValueError, match="--headless and --gui exclude one another"):
        translate(["--headless", "--gui"], {})


def test_names_of_the_files(tmp_path: Path) -> None:
    assert original_name(tmp_path / "step_00000025.ckpt") == "step_25.pt"
    assert original_name(tmp_path / "best-step_00000100-0.512345.ckpt") == "best_step_100.pt"
