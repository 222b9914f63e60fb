"""Two gloo processes. The test starts this file as a script, which forks them from one import of torch."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import loader, rows, task, texts, trainer, weights
from zoo.ci_llm.losses.diversity import Diversity

CASES = ("plain", "accumulated", "gathered", "chunked")
BATCH, STEPS = 4, 2


def train(case, rank, world, folder, **arguments):
    """Weights and scores after two steps on this rank's texts of each batch."""
    mode = {"mode": "chunked", "chunk": 2} if case == "chunked" else {}
    term = Diversity(0.5, 8, "answer_mean", gather=True) if case in ("gathered", "chunked") else None
    made = task(
        crowd_parts.crowd(checkpointing=case == "plain", **mode),
        diversity=term,
        optimizer=partial(torch.optim.SGD, lr=2.0),
    )
    mine = [rows(texts(BATCH, seed=step), *range(rank, BATCH, world)) for step in range(STEPS)]
    val = [rows(texts(BATCH + 1, seed=9), number) for number in range(rank, BATCH + 1, world)]
    parts = 1
    if case == "accumulated":
        parts = BATCH // world
        mine = [rows(batch, number) for batch in mine for number in range(parts)]
    run = trainer(
        folder, precision="64-true", max_steps=STEPS, accumulate_grad_batches=parts, use_distributed_sampler=False,
        num_sanity_val_steps=0, val_check_interval=len(mine), log_every_n_steps=1, **arguments,
    )  # fmt: skip
    run.fit(made, loader(mine), loader(val))
    assert run.global_step == STEPS
    scores = {f"val/{key}": torch.tensor(value) for key, value in made._means.compute().items()}
    # of an accumulated step the last batch is logged
    logged = {key: value for key, value in run.callback_metrics.items() if "loss" in key and key.startswith("train/")}
    return {**weights(made), **scores, **(logged if case != "accumulated" else {})}


def worker(rank, port, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    results = {}
    for case in CASES:
        # every adapter is used in every step: no search for unused parameters
        strategy = DDPStrategy(find_unused_parameters=False, process_group_backend="gloo", start_method="popen")
        results[case] = train(case, rank, 2, Path(folder), strategy=strategy, devices=2)
    torch.save(results, Path(folder) / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT")}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(ranks, case, tmp_path):
    single = train(case, 0, 1, tmp_path)
    start = weights(task())
    for key, value in single.items():
        assert torch.equal(ranks[0][case][key], ranks[1][case][key])
        torch.testing.assert_close(
            ranks[0][case][key].double(),
            value.double(),
            atol=1e-6,
            rtol=1e-5,
            msg=lambda said, key=key: f"{key}: {said}",
        )
    assert all(float((single[key] - start[key]).abs().max()) > 1e-4 for key in start)


if __name__ == "__main__":
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.multiprocessing import start_processes

    start_processes(worker, args=(get_free_port(), sys.argv[1]), nprocs=2, start_method="fork")
