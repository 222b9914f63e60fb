from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn

from zoo.training.checkpoint_files import save_checkpoint
from zoo.training.init_from import init_from


class Task(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)


def checkpoint(path: Path, state: dict[str, torch.Tensor]) -> Path:
    save_checkpoint({"state_dict": state}, path)
    return path


def test_reports_by_component_and_copies(tmp_path: Path) -> None:
    given, task = Task(), Task()
    state = {key: value for key, value in given.state_dict().items() if key.startswith("net")}
    report = init_from(task, checkpoint(tmp_path / "a.ckpt", {**state, "extra.x": torch.zeros(1)}), 0.9)
    assert torch.equal(task.net.weight, given.net.weight)
    assert report["net"] == {"matched": 2}
    assert report["head"] == {"missing": 2}
    assert report["extra"] == {"unexpected": 1}


def test_refuses_below_the_limit(tmp_path: Path) -> None:
    state = Task().state_dict() | {"net.weight": torch.zeros(3, 3)}
    path = checkpoint(tmp_path / "a.ckpt", state)
    with pytest.raises(ValueError, match=r"only 1 of the net's tensors match"):
        init_from(Task(), path, 0.9)
    assert init_from(Task(), path, 0.5)["net"] == {"matched": 1, "mismatched": 1}


def test_nothing_matches(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tensor matches"):
        init_from(Task(), checkpoint(tmp_path / "a.ckpt", {"other.x": torch.zeros(1)}), 0.9)
    with pytest.raises(FileNotFoundError, match="nothing at"):
        init_from(Task(), tmp_path / "absent.ckpt")
