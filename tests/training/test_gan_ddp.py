"""Two gloo processes. The test starts this file as a script, which forks them from one import of torch."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader

from zoo.training.adversarial import Discriminator
from zoo.training.callbacks.guard import LossGuard
from zoo.training.gan import GANStep, GANTask

CASES = ("adam", "sgd", "chunks", "nan")
BATCH, STEPS = 8, 3


class Toy(Discriminator):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(1, width, 3, padding=1)

    def forward(self, x):
        hidden = nn.functional.leaky_relu(self.conv(x), 0.1)
        return [(hidden.mean(1), [hidden])]


class Task(GANTask):
    def __init__(self, case):
        torch.manual_seed(0)
        optimizer = partial(torch.optim.AdamW, lr=0.01) if case == "adam" else partial(torch.optim.SGD, lr=0.1)
        weights = {f"{term}_{name}": 1.0 for term in ("g/adv", "g/fm") for name in ("one", "two")}
        weights |= {"d/one": 1.0, "d/two": 0.5, "g/l1": 2.0}
        generator = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv1d(4, 1, 1))
        chunks = 2 if case == "chunks" else 1
        discriminators = {"one": Toy(3), "two": Toy(2)}
        super().__init__(generator, discriminators, optimizer, optimizer, weights, step=GANStep(accumulate=chunks))

    def generate(self, batch):
        return self.generator(batch), batch[:, :1].cumsum(-1) / 4

    def reconstruction(self, fake, real, batch):
        return {"g/l1": (fake - real).abs().mean()}


def train(case, rank, world, **kwargs):
    """Weights after three steps on this rank's half of each batch, and the guard's count."""
    x = torch.randn(STEPS, BATCH, 2, 16, generator=torch.Generator().manual_seed(1))
    mine = x[:, rank * BATCH // world : (rank + 1) * BATCH // world].clone()
    if case == "nan" and rank == world - 1:
        mine[1] = float("nan")
    task, guard = Task(case), LossGuard()
    trainer = L.Trainer(
        accelerator="cpu",
        precision="64-true",
        max_epochs=1,
        logger=False,
        callbacks=[guard],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        log_every_n_steps=1,
        **kwargs,
    )
    trainer.fit(task, DataLoader(mine, batch_size=None))
    assert trainer.global_step == STEPS
    logged = {key: value for key, value in trainer.callback_metrics.items() if key.startswith(("train/g/", "train/d/"))}
    state = {key: value.clone() for key, value in task.state_dict().items()}
    return {**state, **logged, "skipped": torch.tensor(guard.skipped_batches)}


def worker(rank, port, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    results = {}
    for case in CASES:
        strategy = DDPStrategy(broadcast_buffers=False, process_group_backend="gloo", start_method="popen")
        results[case] = train(case, rank, 2, strategy=strategy, devices=2)
    torch.save(results, Path(folder) / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT")}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(f"two processes: {time.monotonic() - began:.1f} s")
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_ranks_agree_bitwise(ranks, case):
    first, second = ranks[0][case], ranks[1][case]
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.numeric
@pytest.mark.parametrize("case", ["adam", "sgd", "chunks"])
def test_two_halves_equal_the_whole_batch(ranks, case):
    whole = train(case, 0, 1)
    start = Task(case).state_dict()
    assert all(torch.allclose(whole[key], ranks[0][case][key], rtol=0, atol=1e-5) for key in start)
    assert sum(key.startswith("train/") for key in whole) == 8
    for key in whole.keys() - start.keys():  # losses are means over both ranks
        torch.testing.assert_close(ranks[0][case][key], whole[key], rtol=0, atol=1e-5)
    assert all(float((whole[key] - start[key]).abs().max()) > 1e-3 for key in start)


def test_a_nan_on_one_rank_is_skipped_by_both(ranks):
    assert int(ranks[0]["nan"]["skipped"]) == int(ranks[1]["nan"]["skipped"]) == 1
    assert all(bool(value.isfinite().all()) for value in ranks[0]["nan"].values())


if __name__ == "__main__":
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.multiprocessing import start_processes

    start_processes(worker, args=(get_free_port(), sys.argv[1]), nprocs=2, start_method="fork")
