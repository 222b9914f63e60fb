"""Generators of GPUs, by stand-ins for torch's functions."""

import pytest
import torch

from zoo.training.callbacks.rng import capture_rng, restore_rng


@pytest.mark.parametrize(("visible", "everything"), [(4, True), (1, False)])
def test_a_process_gets_its_own_gpu_back(visible: int, everything: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another number of GPUs is visible, or its GPU has another number."""
    restored: list = []
    state = capture_rng() | {"cuda": [torch.full((16,), gpu, dtype=torch.uint8) for gpu in range(4)], "cuda_device": 2}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", restored.append)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    restore_rng(state)
    assert [int(each[0]) for each in restored if isinstance(each, torch.Tensor)] == [2]
    assert any(isinstance(each, list) for each in restored) == everything
