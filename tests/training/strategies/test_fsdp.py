"""FSDP on two processes."""

import os
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.utils import parametrizations

from tests.harness import MEASURED
from tests.training.strategies.processes import distance, fork_ranks, run_script
from zoo.runs.checkpoints import find_checkpoint, load_checkpoint
from zoo.training.adversarial import Discriminator
from zoo.training.callbacks.checkpoint import AtomicCheckpointIO, Checkpoints
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.guard import LossGuard
from zoo.training.callbacks.metrics import TrainingMetrics
from zoo.training.callbacks.rng import RNGState
from zoo.training.datamodule import ZooDataModule
from zoo.training.gan import GANStep, GANTask
from zoo.training.strategies.fsdp import FSDP
from zoo.training.task import SingleOptimizerTask

GLOBAL_BATCH, STEPS = 12, 5


def block(width):
    return nn.Sequential(parametrizations.weight_norm(nn.Conv1d(width, width, 3, padding=1)), nn.Tanh())


class Net(nn.Module):
    """Sizes that two processes do not share evenly; a method beside forward; a frozen weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(2, 7, 3, padding=1)
        self.blocks = nn.ModuleList(block(7) for _ in range(2))
        self.last = nn.Conv1d(7, 1, 1)
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def encode(self, x):
        return self.first(x)

    def forward(self, x):
        hidden = self.encode(x)
        for each in self.blocks:
            hidden = hidden + each(hidden)
        return self.last(hidden) * self.scale


class Judge(Discriminator):
    def __init__(self, width):
        super().__init__()
        self.conv = parametrizations.spectral_norm(nn.Conv1d(1, width, 3, padding=1))
        self.out = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        hidden = nn.functional.leaky_relu(self.conv(x), 0.1)
        return [(self.out(hidden)[:, 0], [hidden])]


class Data(ZooDataModule):
    def setup(self, stage):
        x = torch.randn(60, 2, 16, generator=torch.Generator().manual_seed(1))
        self.train_set = [{"x": each} for each in x]
        self.val_set = self.train_set[:4]

    def train_batches(self, rank, world):
        batches = super().train_batches(rank, world)
        self.train_set = {(epoch, item): self.train_set[item] for epoch in range(3) for item in range(60)}
        return batches

    def train_dataloader(self):
        self.setup("fit")
        return super().train_dataloader()


class Single(SingleOptimizerTask):
    """Some items, and so some ranks in some steps, pass through a frozen part."""

    inference_class, inference_modules = "zoo.flow.Sampler", ("net",)
    fsdp_excluded_modules = ("judge",)

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(partial(torch.optim.AdamW, lr=0.01))
        self.net = Net()
        self.judge = nn.Sequential(nn.Conv1d(1, 8, 3), nn.Conv1d(8, 1, 3)).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        results = self.net(batch["x"])
        loss = (results - batch["x"][:, :1].cumsum(-1)).square().mean()
        loud = batch["x"].mean((1, 2)) > 0.18
        if loud.any():
            loss = loss + self.judge(results[loud]).square().mean((1, 2)).sum() / len(results)
        self.log("train/loss", loss)
        return loss

    def evaluate(self, batch, batch_idx, stage):
        return {"loss": (self.net(batch["x"]) + self.net.encode(batch["x"])[:, :1]).square().mean()}, 1


class Gan(GANTask):
    inference_class, inference_modules = "zoo.hifigan.Vocoder", ("generator",)

    def __init__(self, chunks):
        torch.manual_seed(0)
        weights = {f"{term}_{name}": 1.0 for term in ("g/adv", "g/fm") for name in ("one", "two")}
        weights |= {"d/one": 1.0, "d/two": 0.5, "g/l1": 2.0}
        adam = partial(torch.optim.AdamW, lr=0.01)
        judges = {"one": Judge(5), "two": Judge(3)}
        super().__init__(Net(), judges, adam, adam, weights, step=GANStep(0.5, 0.3, chunks))

    def generate(self, batch):
        return self.generator(batch["x"]), batch["x"][:, :1].cumsum(-1) / 4

    def reconstruction(self, fake, real, batch):
        return {"g/l1": (fake - real).abs().mean()}

    def evaluate(self, batch, batch_idx, stage):
        fake, real = self.generate(batch)
        return {"l1": (fake - real).abs().mean()}, 1


class NanGan(Gan):
    """One rank meets a loss that is not finite."""

    def generate(self, batch):
        fake, real = super().generate(batch)
        bad = self.trainer.training and self.trainer.global_step == 1
        return fake, real * float("nan") if bad and self.trainer.global_rank == self.trainer.world_size - 1 else real


CASES = {"single": Single, "gan": partial(Gan, 1), "chunks": partial(Gan, 2), "nan": partial(NanGan, 1)}


def train(case, folder, strategy, steps=STEPS, checkpoint=None):
    """Train to so many steps in this process's share of each batch; the last state lies in the folder."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    kinds = {
        "ddp": lambda: DDPStrategy(broadcast_buffers=False, process_group_backend="gloo"),
        "fsdp": lambda: FSDP(min_block_parameters=20),
        "one": lambda: "auto",
    }
    task = CASES[case]()
    part = "net" if case == "single" else "generator"
    callbacks = [EMA([part], decay=0.5), LossGuard(), RNGState(), TrainingMetrics()]
    trainer = L.Trainer(
        accelerator="cpu", devices=world, strategy=kinds[strategy](), max_steps=steps,
        callbacks=[*callbacks, Checkpoints(every_n_steps=100)], default_root_dir=folder,
        plugins=[AtomicCheckpointIO()], logger=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, log_every_n_steps=1, num_sanity_val_steps=1, val_check_interval=2,
        gradient_clip_val=0.5 if case == "single" else None,
        accumulate_grad_batches=2 if case == "single" else 1,
    )  # fmt: skip
    trainer.fit(task, Data(batch_size=GLOBAL_BATCH // world, drop_last=True), ckpt_path=checkpoint, weights_only=True)
    assert trainer.global_step == steps
    return {key: float(value) for key, value in trainer.callback_metrics.items()}


def worker(rank, world, folder, *plan):
    folder = Path(folder)
    for entry in plan:  # case:strategy:place:steps:former place
        os.environ["WORLD_SIZE"] = str(world)  # Lightning's teardown removes it
        case, strategy, place, steps, former = entry.split(":")
        checkpoint = str(find_checkpoint(folder / former)) if former else None
        logged = train(case, folder / place, strategy, int(steps), checkpoint)
        if rank == 0:
            torch.save(logged, folder / place / "logged.pt")


def last(folder):
    return load_checkpoint(find_checkpoint(folder))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    plan = [f"{case}:{strategy}:{case}_{strategy}:{STEPS}:" for case in CASES for strategy in ("ddp", "fsdp")]
    plan += [f"gan:fsdp:first:{STEPS - 2}:"]
    plan += [f"gan:fsdp:second:{STEPS}:first", f"gan:ddp:mixed:{STEPS}:first"]
    run_script(__file__, 2, str(folder), *plan)
    return folder


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_ddp(pair, case):
    full, sharded = last(pair / f"{case}_ddp"), last(pair / f"{case}_fsdp")
    for key in ("state_dict", "ema", "optimizer_states"):
        assert distance(full[key], sharded[key]) <= 1e-5, key
    assert full.keys() == sharded.keys()
    assert full["loops"] == sharded["loops"] and full["Data"]["epoch"] == sharded["Data"]["epoch"]
    logged = (torch.load(pair / f"{case}_{each}" / "logged.pt") for each in ("ddp", "fsdp"))
    of_ddp, of_shards = ({key: each[key] for key in each if key not in MEASURED} for each in logged)
    assert of_ddp.keys() == of_shards.keys() and len(of_ddp) >= 4
    assert {key: value for key, value in of_ddp.items() if abs(value - of_shards[key]) > 1e-5} == {}


@pytest.mark.cluster
def test_a_resume_goes_on_bit_exactly_and_under_ddp_up_to_rounding(pair):
    uninterrupted = last(pair / "gan_fsdp")
    assert distance(uninterrupted["state_dict"], last(pair / "second")["state_dict"]) == 0
    assert distance(uninterrupted["state_dict"], last(pair / "mixed")["state_dict"]) <= 1e-5


@pytest.mark.cluster
def test_ranks_skip_a_bad_step_together(pair):
    assert all(value.isfinite().all() for value in last(pair / "nan_ddp")["state_dict"].values())


@pytest.mark.numeric
@pytest.mark.cluster
@pytest.mark.parametrize("case", ["single", "gan", "chunks"])
def test_one_process_equals_two(pair, case, tmp_path):
    train(case, tmp_path, "one")
    assert distance(last(pair / f"{case}_ddp")["state_dict"], last(tmp_path)["state_dict"]) <= 1e-5


if __name__ == "__main__":
    fork_ranks(worker)
