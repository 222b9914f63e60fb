"""Two gloo processes. The test starts this file as a script, which forks them from one import of torch."""

import json
import logging
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from zoo.runs.checkpoints import load_checkpoint
from zoo.training.adversarial import Discriminator
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.guard import LossGuard
from zoo.training.callbacks.monitor import GradNorm
from zoo.training.gan import GANTask
from zoo.training.strategies.deepspeed import ZeROStrategy
from zoo.training.task import SingleOptimizerTask

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="the extra deepspeed is not installed"),
]
BATCH, EPOCHS = 12, 3
KEEP_NONE = {"stage3_param_persistence_threshold": 0}  # shard small weights, too


class Toy(Discriminator):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(1, width, 3, padding=1))

    def forward(self, x):
        hidden = nn.functional.leaky_relu(self.conv(x), 0.1)
        return [(hidden.mean(1), [hidden])]


class Lent(nn.Module):
    """Lends its weight to a function outside of its forward pass."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(2, 5, 3, padding=1)
        self.gain = nn.Parameter(torch.ones(5, 1))
        self.last = nn.Conv1d(5, 1, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.gain) + self.last.weight.mean()


def weights():
    found = {f"{term}_{name}": 1.0 for term in ("g/adv", "g/fm") for name in ("one", "two")}
    return found | {"d/one": 1.0, "d/two": 0.5, "g/l1": 2.0}


class Gan(GANTask):
    def __init__(self, **options):
        torch.manual_seed(0)
        adam = partial(torch.optim.AdamW, lr=0.01)
        decay = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
        options = {"clip_g": 0.3, "clip_d": 0.2, "scheduler_g": decay, "scheduler_interval": "step"} | options
        super().__init__(Lent(), {"one": Toy(3), "two": Toy(2)}, adam, adam, weights(), **options)

    def generate(self, batch):
        return self.generator(batch), batch[:, :1].cumsum(-1) / 4

    def reconstruction(self, fake, real, batch):
        return {"g/l1": (fake - real).abs().mean()}


class Single(SingleOptimizerTask):
    def __init__(self):
        torch.manual_seed(0)
        decay = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
        super().__init__(partial(torch.optim.AdamW, lr=0.01), decay)
        self.net = nn.ModuleDict({"always": Lent(), "at_times": Lent()})

    @property
    def find_unused_parameters(self):
        return True

    def training_step(self, batch, batch_idx):
        made = self.net["always"](batch)
        if batch_idx == 1:  # the first step is without
            made = made + self.net["at_times"](batch)
        return (made - batch[:, :1].cumsum(-1) / 4).square().mean()


class Batches(L.LightningDataModule):
    """Two batches an epoch, of which each rank has its part."""

    def __init__(self, spoilt):
        super().__init__()
        self.spoilt = spoilt

    def train_dataloader(self):
        x = torch.randn(2, BATCH, 2, 16, generator=torch.Generator().manual_seed(self.trainer.current_epoch))
        rank, world = self.trainer.global_rank, self.trainer.world_size
        mine = x[:, rank * BATCH // world : (rank + 1) * BATCH // world].clone()
        if self.spoilt and rank == world - 1:
            mine[1, 0] = float("nan")
        return DataLoader(mine, batch_size=None)


def fit(name, folder, kind="gan", stage=0, epochs=EPOCHS, resume=None, world=2):
    """Train and save; stage 0 is DDP."""
    strategy = ZeROStrategy(stage, KEEP_NONE) if stage else DDPStrategy(find_unused_parameters=True)
    options = {"single": {"gradient_clip_val": 0.1}, "sums": {"accumulate_grad_batches": 2}}.get(kind, {})
    automatic = kind in ("single", "sums")
    task = Single() if automatic else Gan(accumulate=2 if kind == "chunks" else 1)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        callbacks=[LossGuard(), EMA(["net" if automatic else "generator"], 0.5), GradNorm()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        log_every_n_steps=1,
        strategy=strategy,
        devices=world,
        plugins=[AtomicCheckpointIO()],
        **options,
    )
    ckpt_path = None if resume is None else f"{folder}/{resume}.ckpt"
    trainer.fit(task, Batches(kind == "nan"), ckpt_path=ckpt_path, weights_only=True)
    trainer.save_checkpoint(f"{folder}/{name}.ckpt")
    if trainer.is_global_zero:
        wanted = {key: float(value) for key, value in trainer.callback_metrics.items() if "train/g" in key}
        Path(f"{folder}/{name}.json").write_text(json.dumps(wanted))


def worker(rank, port, folder, world, jobs):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    logging.getLogger("lightning").setLevel("ERROR")
    for job in jobs:
        fit(folder=folder, world=world, **job)


def run(folder, world, *jobs):
    """Do jobs in turn in processes of their own."""
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT")}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    call = [sys.executable, __file__, str(folder), str(world), json.dumps(jobs)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


def difference(folder, first, second):
    """The largest difference of weights, averages and optimizer states between two checkpoints, relative above 1."""
    a, b = (load_checkpoint(Path(folder) / f"{name}.ckpt") for name in (first, second))
    assert a["global_step"] == b["global_step"]
    assert a["lr_schedulers"] == b["lr_schedulers"]
    keys = "state_dict", "optimizer_states", "ema"
    pairs = [*zip(*(tree_leaves({k: c[k] for k in keys}) for c in (a, b)), strict=True)]
    return max(float((torch.as_tensor(x - y) / max(1, float(abs(torch.as_tensor(x)).max()))).abs().max())
               for x, y in pairs if not isinstance(x, bool | str | None))  # fmt: skip


def logged(folder, name):
    return json.loads((Path(folder) / f"{name}.json").read_text())


def test_a_gan_in_shards_equals_ddp_goes_on_under_another_stage_and_skips_a_bad_batch(tmp_path):
    jobs = [dict(name="ddp"), dict(name="part", stage=2, epochs=1), dict(name="resumed", stage=3, resume="part")]
    run(tmp_path, 2, *jobs, dict(name="nan", kind="nan", stage=2), dict(name="nan_ddp", kind="nan"))
    assert difference(tmp_path, "ddp", "resumed") <= 1e-5
    assert difference(tmp_path, "nan_ddp", "nan") <= 1e-5
    assert logged(tmp_path, "nan")["train/guard_trips"] == EPOCHS
    assert logged(tmp_path, "resumed") == pytest.approx(logged(tmp_path, "ddp"), abs=1e-5)
    assert logged(tmp_path, "ddp")["train/grad_norm_g"] > 0.3  # so that it was clipped


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gan", "single", "sums", "chunks", "nan"])
def test_all_stages_equal_ddp(tmp_path, kind):
    run(tmp_path, 2, *(dict(name=f"stage{stage}", kind=kind, stage=stage) for stage in range(4)))
    found = [difference(tmp_path, "stage0", f"stage{stage}") for stage in (1, 2, 3)]
    print(kind, found)
    assert max(found) <= 1e-5
    for stage in (1, 2, 3):
        assert logged(tmp_path, f"stage{stage}") == pytest.approx(logged(tmp_path, "stage0"), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gan", "single"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_resume_on_another_number_of_processes(tmp_path, kind, stage):
    run(tmp_path, 4, dict(name="whole", kind=kind, stage=stage), dict(name="four", kind=kind, stage=stage, epochs=1))
    run(tmp_path, 2, dict(name="two", kind=kind, stage=stage, epochs=2, resume="four"))
    run(tmp_path, 1, dict(name="one", kind=kind, stage=stage, resume="two"))
    run(tmp_path, 3, dict(name="three", kind=kind, stage=stage, resume="two"))
    found = [difference(tmp_path, "whole", name) for name in ("one", "three")]
    print(kind, stage, found)
    assert max(found) <= 1e-5


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(ValueError, match="stage is 4"):
        ZeROStrategy(4)


if __name__ == "__main__":
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.multiprocessing import start_processes

    folder, world, jobs = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    start_processes(worker, args=(get_free_port(), folder, world, jobs), nprocs=world, start_method="fork")
