"""Rank and number of processes, as launchers tell them."""

import pytest
import torch

from zoo.common import environment
from zoo.common.environment import LAUNCHERS, local_device, process_rank
from zoo.common.locks import is_rank_zero

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, (2, 4)),  # torchrun, accelerate
        ({**STEP, "SLURM_PROCID": "3"}, (3, 4)),  # srun -n 4
        ({**STEP, "SLURM_PROCID": "1", "RANK": "5", "WORLD_SIZE": "8"}, (5, 8)),  # torchrun below srun
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),  # a batch script, salloc's shell
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
    ],
)
def test_rank_and_lock_agree(variables, expected, monkeypatch):
    for name in (*(each for pair in LAUNCHERS for each in pair), "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process_rank() == expected
    assert is_rank_zero() == (expected[0] == 0)


@pytest.mark.parametrize(
    ("variables", "visible", "expected"),
    [
        ({}, 4, 0),
        ({"LOCAL_RANK": "3"}, 4, 3),
        ({**STEP, "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, 4, 1),
        ({**STEP, "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, 1, 0),  # --gpus-per-task=1: each sees its own alone
        ({**STEP, "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "LOCAL_RANK": "2"}, 4, 2),  # torchrun below srun
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, 4, 0),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 2, 1),
    ],
)
def test_each_process_computes_on_its_own_device(variables, visible, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert local_device("cuda") == torch.device("cuda", expected)
    assert local_device("cuda:2") == torch.device("cuda", 2) and local_device("cpu") == torch.device("cpu")


@pytest.mark.gpu
def test_gpu_memory():
    device = torch.device("cuda:0")
    torch.ones(1_000_000, device=device)
    assert environment.peak_memory_bytes(device) >= 4_000_000
    assert "cuda:0 (" in environment.describe_device(device)


@pytest.mark.parametrize("version", [1, 2])
def test_cached_files_of_a_container_count_as_free(version, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_CONTROL_GROUPS", tmp_path)
    limit, use, statistics, cached = environment._CONTAINER[2 - version]
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text(f"{1 << 20}\n")
    (tmp_path / use).write_text(f"{1000 << 10}\n")
    (tmp_path / statistics).write_text(f"anon {100 << 10}\n{cached} {900 << 10}\n")
    assert environment.total_memory_bytes() == 1 << 20 and environment.free_memory_bytes() == 924 << 10
