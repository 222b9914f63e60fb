"""Two gloo processes. The test starts this file as a script, which forks them from one import of torch."""

from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import loader, rows, task, texts, trainer, weights
from tests.training.strategies.processes import fork_ranks, run_script
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
        optimizer=partial(torch.optim.SGD, lr=0.5),
    )
    numbers = range(rank, BATCH, world)
    if case == "gathered" and world == 2:  # ranks may have different numbers of texts
        numbers = (range(3), range(3, BATCH))[rank]
    mine = [rows(texts(BATCH, seed=step), *numbers) for step in range(STEPS)]
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


def worker(rank, world, folder):
    results = {}
    for case in CASES:
        # every adapter is used in every step: no search for unused parameters
        strategy = DDPStrategy(find_unused_parameters=False, process_group_backend="gloo", start_method="popen")
        results[case] = train(case, rank, world, Path(folder), strategy=strategy, devices=world)
    torch.save(results, Path(folder) / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_script(__file__, 2, str(folder))
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.numeric
@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(ranks, case, tmp_path):
    single = train(case, 0, 1, tmp_path)
    start = weights(task())
    for key, value in single.items():
        assert torch.equal(ranks[0][case][key], ranks[1][case][key])
        torch.testing.assert_close(ranks[0][case][key].double(), value.double(), atol=1e-6, rtol=1e-5, msg=key)
    assert all(float((single[key] - start[key]).abs().max()) > 1e-4 for key in start)


if __name__ == "__main__":
    fork_ranks(worker)
