"""Two gloo processes train like one. The test starts this file as a script, which forks them from one import."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from tests.audiosr.task_parts import Data, task, trainer

BATCH, STEPS = 4, 3


def train(world, folder, **arguments):
    """Weights, scale and validation after some steps; batches of all processes are equal."""
    made = task(optimizer=partial(torch.optim.SGD, lr=0.1))
    run = trainer(folder, max_steps=STEPS, limit_val_batches=1.0, **arguments)
    run.fit(made, datamodule=Data(batch_size=BATCH // world, size=STEPS * BATCH))
    assert run.global_step == STEPS
    scores = {f"val/{key}": torch.tensor(value) for key, value in made._means.compute().items()}
    return {**{key: value.clone() for key, value in made.net.state_dict().items()}, **scores}


def worker(rank, port, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    strategy = DDPStrategy(find_unused_parameters=False, process_group_backend="gloo", start_method="popen")
    torch.save(train(2, Path(folder), strategy=strategy, devices=2), Path(folder) / f"rank{rank}.pt")


@pytest.mark.numeric
def test_two_processes_equal_one(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT")}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    full, start = train(1, tmp_path), task().net.state_dict()
    assert any(not torch.equal(start[key], full[key]) for key in start)
    for key, value in full.items():
        assert torch.equal(ranks[0][key], ranks[1][key]), key
        torch.testing.assert_close(ranks[0][key], value, atol=1e-6, rtol=1e-5)


if __name__ == "__main__":
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.multiprocessing import start_processes

    start_processes(worker, args=(get_free_port(), sys.argv[1]), nprocs=2, start_method="fork")
