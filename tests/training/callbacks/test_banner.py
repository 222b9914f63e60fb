import logging
import multiprocessing

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from zoo.common import hardware
from zoo.training.callbacks.monitor import Banner, facts


class Task(L.LightningModule):
    def __init__(self, accumulate=1):
        super().__init__()
        self.net = torch.nn.Linear(3, 2)
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.accumulate = accumulate

    def training_step(self, batch, batch_idx):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    batch_size = 4

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 3), batch_size=4)


def make_trainer(tmp_path, **settings):
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        max_epochs=1,
        callbacks=[Banner()],
        **settings,
    )


def test_one_process(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    make_trainer(tmp_path, devices=1, accumulate_grad_batches=3).fit(Task(accumulate=2), Data())
    text = caplog.text
    assert "1 on 1 node" in text
    assert "12 = 4 per process x 1 process x 3 accumulated batches" in text
    assert "2 of each batch" in text
    assert "8 trainable, 6 frozen" in text
    assert f"cpu ({hardware.cpu_name()})" in text
    assert "32-true" in text
    assert str(tmp_path) in text


def test_without_a_batch_size_the_line_is_left_out(tmp_path):
    trainer = make_trainer(tmp_path, devices=1)
    assert "effective batch" not in facts(trainer, Task(), ["cpu"])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="forks its second process")
def test_two_processes_log_once_and_name_both_devices(tmp_path):
    log = tmp_path / "log.txt"
    handler = logging.FileHandler(log)
    logger = logging.getLogger("zoo.training.callbacks.monitor")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        make_trainer(tmp_path, devices=2, strategy="ddp_fork").fit(Task(), Data())
    finally:
        logger.removeHandler(handler)
    lines = log.read_text().splitlines()
    assert sum("rank 0" in line for line in lines) == 1
    assert sum("rank 1" in line for line in lines) == 1
    assert any("8 = 4 per process x 2 processes" in line for line in lines)


def test_hardware():
    cpu = hardware.devices()[0]
    assert (cpu.name, cpu.backend) == ("cpu", "CPU")
    assert cpu.memory_bytes > 0
    assert hardware.usable_cores() >= 1


@pytest.mark.gpu
def test_gpu():
    device = torch.device("cuda:0")
    torch.ones(1_000_000, device=device)
    assert hardware.peak_memory_bytes(device) >= 4_000_000
    assert hardware.devices()[1].name == "cuda:0"
    assert "cuda:0 (" in hardware.describe_device(device)
