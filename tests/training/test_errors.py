import errno

import pytest
import torch

from zoo.training.errors import explain_error, is_connection_lost

CONFIG = {
    "data": {"init_args": {"batch_size": 16}},
    "model": {"init_args": {"step": {"accumulate": 1}, "backbone": {"init_args": {"gradient_checkpointing": False}}}},
    "trainer": {"precision": "32-true", "accumulate_grad_batches": 1},
}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 18.13 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried 1"),
        MemoryError(),
    ],
)
def test_out_of_memory_names_the_keys_and_their_values(error):
    text = explain_error(error, CONFIG)
    assert text.startswith("out of memory on the ")
    assert "\n" not in text
    for part in (
        "data.init_args.batch_size (now 16: halve it)",
        "model.init_args.step.accumulate (now 1",
        "trainer.accumulate_grad_batches (now 1",
        "trainer.precision (now 32-true: bf16-mixed)",
        "model.init_args.backbone.init_args.gradient_checkpointing (now False: set it to true)",
    ):
        assert part in text


def test_a_real_allocation_failure_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert explain_error(caught.value, {}).startswith("out of memory on the machine; lower the batch size")


def test_precision_is_not_advised_when_it_is_16_bit_already():
    text = explain_error(
        MemoryError(), {"trainer": {"precision": "bf16-mixed"}, "data": {"init_args": {"batch_size": 4}}}
    )
    assert "precision" not in text


def test_disk_full():
    assert "while writing runs/x.ckpt" in explain_error(
        OSError(errno.ENOSPC, "No space left on device", "runs/x.ckpt"), {}
    )
    torch_error = RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")
    assert "trainer.default_root_dir" in explain_error(torch_error, {})
    reading = RuntimeError("[enforce fail at inline_container.cc:145] . PytorchStreamReader failed locating file")
    assert explain_error(reading, {}) is None


def test_causes_are_looked_at():
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise ValueError("saving failed") from error
    except ValueError as error:
        assert explain_error(error, {}).startswith("disk full")


def test_missing_extra():
    error = ModuleNotFoundError("No module named 'h5py'", name="h5py")
    assert explain_error(error, {}) == "h5py is not installed: pip install 'zoo[rl]'"
    assert explain_error(ModuleNotFoundError("No module named 'mine'", name="mine"), {}) is None


@pytest.mark.parametrize("error", [ValueError("wrong"), RuntimeError("size mismatch"), KeyError("a")])
def test_other_errors_are_left_alone(error):
    assert explain_error(error, CONFIG) is None


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (
            RuntimeError(
                "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error: Connection reset by peer"
            ),
            True,
        ),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"), True),
        (torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1"), True),
        (torch.distributed.DistStoreError("wait timeout after 1000ms"), True),
        (RuntimeError("gloo: tensors must have the same size"), False),
        (ConnectionResetError("Connection reset by peer"), False),
        (RuntimeError("DataLoader timed out"), False),
    ],
)
def test_contact_with_another_process_is_lost(error, lost):
    assert is_connection_lost(error) is lost
    wrapped = ValueError("outer")
    wrapped.__cause__ = error
    assert is_connection_lost(wrapped) is lost
