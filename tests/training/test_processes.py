from pathlib import Path
from types import SimpleNamespace

import pytest

from zoo.training.processes import Processes, differences, limit_waiting, settings, versions


def test_differences_name_facts_ranks_and_hosts():
    facts = [{"torch": "1", "lr": "0.1"}, {"torch": "2", "lr": "0.1"}, {"torch": "2", "lr": "0.1", "ema": "true"}]
    assert differences(facts, ["a", "b", "b"]) == (
        "torch is 1 on rank 0 (a), 2 on ranks 1, 2 (b); ema is not set on ranks 0, 1 (a, b), true on rank 2 (b)"
    )
    many = [{str(number): str(rank) for number in range(7)} for rank in range(2)]
    assert differences(many, ["a", "b"]).endswith("; and 2 more")


def test_places_may_differ():
    config = {
        "config": ["x"],
        "ckpt_path": "runs/a",
        "terminal": {"metrics": ["loss"]},
        "trainer": {"default_root_dir": "runs/1", "max_steps": 4},
        "data": {"init_args": {"root": "/scratch/a", "num_workers": 3, "name": "microsoft/wavlm"}},
    }
    assert settings(config) == {"trainer.max_steps": 4, "data.init_args.name": "microsoft/wavlm"}


def test_versions_tell_the_code():
    assert {"zoo", "torch", "lightning", "Python", "zoo's code"} == set(versions())


def trainer(timeout, device="cpu", world=2):
    strategy = SimpleNamespace(_timeout=timeout, root_device=SimpleNamespace(type=device))
    return SimpleNamespace(strategy=strategy, world_size=world, callbacks=[Processes({})], default_root_dir="run")


@pytest.mark.parametrize(("device", "seconds"), [("cpu", 300), ("cuda", 600)])
def test_waiting_is_limited(device, seconds, monkeypatch):
    from datetime import timedelta

    from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout

    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE"):
        monkeypatch.setenv(name, "kept")
    made = trainer(default_pg_timeout, device)
    assert limit_waiting(made) == made.callbacks[0].seconds == seconds
    assert made.strategy._timeout == timedelta(seconds=600)  # while they start
    assert limit_waiting(trainer(timedelta(seconds=7), device)) == 7
    monkeypatch.setenv("ZOO_TIMEOUT", "1800")
    assert limit_waiting(trainer(timedelta(seconds=7), device)) == 1800
    assert limit_waiting(trainer(default_pg_timeout, world=1)) is None
    for wrong in ("0", "-3", "soon", "nan", "inf", ""):
        monkeypatch.setenv("ZOO_TIMEOUT", wrong)
        with pytest.raises(ValueError, match="ZOO_TIMEOUT"):
            limit_waiting(trainer(default_pg_timeout, device))


def test_one_process_is_left_alone(tmp_path):
    watch = Processes({})
    alone = SimpleNamespace(world_size=1, default_root_dir=tmp_path)
    watch.setup(alone, None, "fit")
    watch.on_train_batch_end()
    watch.on_exception(alone, None, RuntimeError("gloo: connection closed by peer"))
    watch.teardown(alone, None, "fit")
    assert not list(Path(tmp_path).iterdir())
