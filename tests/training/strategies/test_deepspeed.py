"""DeepSpeed on two processes."""

import json
import logging
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.training.strategies.processes import distance, fork_ranks, run_script
from zoo.runs.checkpoints import load_checkpoint
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.guard import LossGuard
from zoo.training.callbacks.metrics import TrainingMetrics
from zoo.training.gan import GANTask
from zoo.training.strategies.deepspeed import DeepSpeed
from zoo.training.task import SingleOptimizerTask

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="the extra deepspeed is not installed"),
]
BATCH, EPOCHS = 12, 3


class Task(SingleOptimizerTask):
    """Two parameter groups, a schedule and a clipped gradient."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(torch.optim.AdamW, partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9))
        convolution = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 5, 3, padding=1))
        self.net = nn.Sequential(convolution, nn.Tanh(), nn.Conv1d(5, 1, 1))

    def configure_optimizers(self):
        groups = [{"params": self.net[0].parameters()}, {"params": self.net[2].parameters(), "weight_decay": 0.1}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "interval": "step"}}

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch[:, :1].cumsum(-1) / 4).square().mean()


class Adversarial(GANTask):
    def __init__(self):
        L.LightningModule.__init__(self)
        self.automatic_optimization = False


class Batches(L.LightningDataModule):
    """Two batches an epoch, of which each rank has its part."""

    def train_dataloader(self):
        x = torch.randn(2, BATCH, 2, 16, generator=torch.Generator().manual_seed(self.trainer.current_epoch))
        rank, world = self.trainer.global_rank, self.trainer.world_size
        return DataLoader(x[:, rank * BATCH // world : (rank + 1) * BATCH // world].clone(), batch_size=None)


def trainer_of(stage, world, epochs=EPOCHS, gradient_clip_val=0.1, **options):
    return L.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, reload_dataloaders_every_n_epochs=1,
        log_every_n_steps=1, strategy=DeepSpeed(stage) if stage else "ddp", devices=world,
        gradient_clip_val=gradient_clip_val, plugins=[AtomicCheckpointIO()], **options,
    )  # fmt: skip


def fit(name, folder, world, stage=0, epochs=EPOCHS, resume=None):
    """Train and save; stage 0 is DDP."""
    trainer = trainer_of(stage, world, epochs, callbacks=[EMA(["net"], 0.5), TrainingMetrics()])
    trainer.fit(Task(), Batches(), ckpt_path=resume and f"{folder}/{resume}.ckpt", weights_only=True)
    trainer.save_checkpoint(f"{folder}/{name}.ckpt")
    if trainer.is_global_zero:
        Path(f"{folder}/{name}.json").write_text(json.dumps(float(trainer.callback_metrics["train/grad_norm"])))


def refuse(world):
    cases = [
        (Adversarial(), {}, "Adversarial"),
        (Task(), {"precision": "bf16-mixed"}, "precision"),
        (Task(), {"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        (Task(), {"callbacks": [LossGuard()]}, "LossGuard"),
    ]
    for task, options, name in cases:
        clip = None if isinstance(task, Adversarial) else 0.1
        with pytest.raises(ValueError, match=name):
            trainer_of(2, world, gradient_clip_val=clip, **options).fit(task, Batches())
    with pytest.raises(ValueError, match="stage"):
        DeepSpeed(3)


def worker(rank, world, folder, jobs):
    logging.getLogger("lightning").setLevel("ERROR")
    for job in json.loads(jobs):
        os.environ["WORLD_SIZE"] = str(world)  # Lightning's teardown removes it
        refuse(world) if job is None else fit(folder=folder, world=world, **job)


def difference(folder, first, second):
    """The largest difference of weights, averages and optimizer states between two checkpoints."""
    a, b = (load_checkpoint(Path(folder) / f"{name}.ckpt") for name in (first, second))
    assert a["global_step"] == b["global_step"] and a["lr_schedulers"] == b["lr_schedulers"]
    return max(distance(a[key], b[key]) for key in ("state_dict", "optimizer_states", "ema"))


def test_two_processes_equal_ddp_and_resume_exactly(tmp_path):
    part = dict(name="part", stage=2, epochs=1)
    stages = [dict(name=f"stage{stage}", stage=stage) for stage in range(3)]
    jobs = [*stages, part, dict(name="resumed", stage=2, resume="part"), None]
    run_script(__file__, 2, str(tmp_path), json.dumps(jobs))
    for name in ("stage1", "stage2"):
        assert difference(tmp_path, "stage0", name) <= 1e-5
        norms = [json.loads((tmp_path / f"{each}.json").read_text()) for each in ("stage0", name)]
        assert norms[0] == pytest.approx(norms[1], abs=1e-5) and norms[0] > 0.1  # so that it was clipped
    assert difference(tmp_path, "stage2", "resumed") == 0
    jobs = [dict(name="one", resume="part"), dict(name="sharded_one", stage=1, resume="part")]
    run_script(__file__, 1, str(tmp_path), json.dumps(jobs))
    assert difference(tmp_path, "stage2", "one") <= 1e-5
    assert difference(tmp_path, "stage2", "sharded_one") <= 1e-5


if __name__ == "__main__":
    fork_ranks(worker)
