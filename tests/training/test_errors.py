import errno

import pytest
import torch

from zoo.training.errors import ConnectionLostError, explain_error

CONFIG = {
    "data": {"init_args": {"batch_size": 16}},
    "model": {"init_args": {"backbone": {"init_args": {"gradient_checkpointing": False}}}},
    "trainer": {"precision": "32-true"},
}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried 1"),
    ],
)
def test_out_of_memory_names_keys_and_values(error):
    text = str(explain_error(error, CONFIG))
    assert text.startswith("out of memory") and "\n" not in text
    keys = ("data.init_args.batch_size (now 16", "backbone.init_args.gradient_checkpointing (now False")
    assert all(key in text for key in (*keys, "trainer.precision (now 32-true"))
    budget = {"data": {"init_args": {"batch_size": 8, "token_budget": 4096}}}
    text = str(explain_error(error, budget))
    assert "token_budget (now 4096" in text and "batch_size" not in text
    assert "precision" not in str(explain_error(error, CONFIG | {"trainer": {"precision": "bf16-mixed"}}))


LOST = "lost contact"


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "runs/x.ckpt"), "runs/x.ckpt"),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), "disk full"),
        (RuntimeError("[enforce fail at inline_container.cc:145] . PytorchStreamReader failed locating file"), None),
        (ModuleNotFoundError("No module named 'h5py'", name="h5py"), "zoo[rl]"),
        (RuntimeError("size mismatch"), None),
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection reset by peer"), LOST),
        (torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1"), LOST),
        (ConnectionResetError("Connection reset by peer"), None),
        (RuntimeError("expected scalar type Float but found BFloat16"), "use bf16-mixed"),
    ],
)
def test_causes_are_explained_and_other_errors_are_not(error, part):
    wrapped = ValueError("outer")
    wrapped.__cause__ = error
    for each in (error, wrapped):
        explained = explain_error(each, {"trainer": {"precision": "bf16-true"}})
        assert explained is None if part is None else part in str(explained)
        assert isinstance(explained, ConnectionLostError) is (part == LOST)
