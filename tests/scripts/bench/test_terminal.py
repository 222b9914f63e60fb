"""The benchmark of watching a run at tiny size: that it takes turns, and that it says what it cannot measure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import TensorDataset

from scripts.bench import terminal as benchmark
from scripts.bench.tools import Settings
from zoo.training.callbacks.progress import ProgressBar


class Line(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.watched: list[bool] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.watched.append(self.trainer.progress_bar_callback is not None)
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_bar_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "STEP_RECIPES", ("flow/demo_swissroll",))
    models = []

    def build_fit(args: list[str]) -> SimpleNamespace:
        assert "--terminal.every_seconds=1" in args
        trainer = L.Trainer(
            accelerator="cpu", max_steps=10**6, logger=False, enable_checkpointing=False, enable_model_summary=False,
            default_root_dir=tmp_path, callbacks=[ProgressBar()],
        )  # fmt: skip
        models.append(Line())
        data = L.LightningDataModule.from_datasets(TensorDataset(torch.ones(3, 1)), batch_size=1)
        return SimpleNamespace(trainer=trainer, model=models[-1], datamodule=data)

    rows = benchmark.bar(Settings(build_fit, tmp_path, quick=True))
    assert [row.name.split(",")[0] for row in rows] == ["bar", "lines"]
    assert all(row.details["rounds"] == 2 and row.target == "<= 3" for row in rows)
    assert all(True in model.watched and False in model.watched for model in models)


def test_without_a_section_of_samples_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no section `samples`"):
        benchmark.samples(Settings(lambda args: SimpleNamespace(config={}), tmp_path, quick=True))  # type: ignore[arg-type, return-value]
