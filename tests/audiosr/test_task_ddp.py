"""Two gloo processes train like one. The test starts this file as a script, which forks them from one import."""

from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from tests.audiosr.task_parts import Data, task, trainer
from tests.training.strategies.processes import fork_ranks, run_script

BATCH, STEPS = 4, 3


def train(world, folder, **arguments):
    """Weights, scale and validation after some steps; batches of all processes are equal."""
    made = task(optimizer=partial(torch.optim.SGD, lr=0.1))
    run = trainer(folder, max_steps=STEPS, limit_val_batches=1.0, **arguments)
    run.fit(made, datamodule=Data(batch_size=BATCH // world, size=STEPS * BATCH))
    assert run.global_step == STEPS
    scores = {f"val/{key}": torch.tensor(value) for key, value in made._means.compute().items()}
    return {**{key: value.clone() for key, value in made.net.state_dict().items()}, **scores}


def worker(rank, world, folder):
    strategy = DDPStrategy(find_unused_parameters=False, process_group_backend="gloo", start_method="popen")
    torch.save(train(world, Path(folder), strategy=strategy, devices=world), Path(folder) / f"rank{rank}.pt")


@pytest.mark.numeric
def test_two_processes_equal_one(tmp_path):
    run_script(__file__, 2, str(tmp_path))
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    full, start = train(1, tmp_path), task().net.state_dict()
    assert any(not torch.equal(start[key], full[key]) for key in start)
    for key, value in full.items():
        assert torch.equal(ranks[0][key], ranks[1][key]), key
        torch.testing.assert_close(ranks[0][key], value, atol=1e-6, rtol=1e-5)


if __name__ == "__main__":
    fork_ranks(worker)
