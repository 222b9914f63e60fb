from __future__ import annotations

import math
import time

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from zoo.common.environment import peak_memory_bytes
from zoo.runs.csv_log import RunCSV, read_metrics
from zoo.training.callbacks.metrics import TrainingMetrics, items_in, learning_rates


@pytest.mark.parametrize(
    ("batch", "items"),
    [
        (torch.zeros(3, 2), 3),
        (torch.tensor(1.0), 1),
        ({"name": ["a", "b"], "audio": torch.zeros(4, 1, 8)}, 4),
        (([], [torch.zeros(5)]), 5),
        (["a", "b"], 2),
        ("text", 1),
        (None, 1),
    ],
)
def test_items_in(batch, items):
    assert items_in(batch) == items


def test_learning_rates_are_named():
    def parameter():
        return torch.nn.Parameter(torch.zeros(1))

    adam = [torch.optim.Adam([parameter()], lr=0.1 * (i + 1)) for i in range(2)]
    groups = torch.optim.SGD([{"params": [parameter()], "lr": 1.0}, {"params": [parameter()], "lr": 2.0}], lr=3.0)
    assert learning_rates([*adam, groups]) == {
        "train/lr_adam": 0.1,
        "train/lr_adam_1": 0.2,
        "train/lr_sgd_0": 1.0,
        "train/lr_sgd_1": 2.0,
    }
    assert learning_rates(adam, ("g", "d")) == {"train/lr_g": 0.1, "train/lr_d": 0.2}


def test_peak_memory_of_this_process():
    psutil = pytest.importorskip("psutil")
    assert peak_memory_bytes(torch.device("cpu")) >= 0.9 * psutil.Process().memory_info().rss


class Slow(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(1)


class Toy(L.LightningModule):
    optimizer_names = ("toy",)

    def __init__(self, seconds=0.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.seconds = seconds

    def training_step(self, batch, batch_idx):
        time.sleep(self.seconds)
        return self.weight[0] * 3.0 + self.weight[1] * 4.0

    def validation_step(self, batch, batch_idx):
        time.sleep(0.3)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(folder, module, *callbacks, item_seconds=0.0, **settings):
    trainer = L.Trainer(
        default_root_dir=folder,
        logger=RunCSV(folder),
        log_every_n_steps=2,
        max_epochs=1,
        accelerator="cpu",
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, DataLoader(Slow(item_seconds), batch_size=2), DataLoader([1]) if "val" in str(folder) else None)
    return read_metrics(folder)


@pytest.mark.filterwarnings("ignore")
def test_throughput(tmp_path):
    rows = fit(tmp_path, Toy(seconds=0.02), TrainingMetrics(), item_seconds=0.03)
    assert [row["step"] for row in rows] == ["1", "3"]
    # a batch waits 2 * 30 ms and works 20 ms, and the first batch's wait lies before the first step
    assert 0.6 < float(rows[1]["train/data_wait"]) < 0.9
    assert 10.0 < float(rows[1]["train/samples_per_sec"]) <= 2 / 0.08


@pytest.mark.filterwarnings("ignore")
def test_a_task_may_count_its_items(tmp_path):
    class Counting(Toy):
        def items_in(self, batch):
            return 100 * len(batch)

    rows = fit(tmp_path, Counting(seconds=0.02), TrainingMetrics())
    assert float(rows[1]["train/samples_per_sec"]) > 500


@pytest.mark.filterwarnings("ignore")
def test_validation_is_no_waiting(tmp_path):
    rows = fit(
        tmp_path / "val",
        Toy(seconds=0.05),
        TrainingMetrics(),
        val_check_interval=1,
        num_sanity_val_steps=0,
        max_steps=4,
    )
    waits = [float(row["train/data_wait"]) for row in rows if row["train/data_wait"]]
    assert len(waits) == 2
    assert max(waits) < 0.3


@pytest.mark.filterwarnings("ignore")
def test_resources_and_gradient_norm(tmp_path):
    rows = fit(tmp_path, Toy(), TrainingMetrics(), gradient_clip_val=1.0, max_steps=2)
    (row,) = rows
    assert float(row["train/lr_toy"]) == 0.5
    assert math.isclose(float(row["train/grad_norm"]), 5.0, rel_tol=1e-6)
    assert 0.0 < float(row["train/memory_gib"]) < 64.0
    assert "train/amp_scale" not in row


@pytest.mark.filterwarnings("ignore")
def test_accumulation_logs_once_per_step(tmp_path):
    rows = fit(tmp_path, Toy(), TrainingMetrics(), accumulate_grad_batches=2)
    assert [row["step"] for row in rows] == ["1"]
    assert math.isclose(float(rows[0]["train/grad_norm"]), 5.0, rel_tol=1e-6)


class Manual(Toy):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.weight.sum())
        self.optimizers().step()


@pytest.mark.filterwarnings("ignore")
def test_manual_tasks_log_their_own_gradient_norms(tmp_path):
    rows = fit(tmp_path, Manual(), TrainingMetrics())
    assert rows
    assert all("train/grad_norm" not in row for row in rows)
