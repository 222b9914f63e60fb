"""One-line explanations of the most frequent errors, with the config keys that help and their values."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import Any

# Parts of the messages of allocators (lower case); torch raises plain RuntimeErrors, too.
OUT_OF_GPU_MEMORY = ("out of memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")
OUT_OF_CPU_MEMORY = ("defaultcpuallocator", "can't allocate memory", "cannot allocate memory")
OUT_OF_MEMORY = (*OUT_OF_GPU_MEMORY, *OUT_OF_CPU_MEMORY)
# torch.save reports a full disk as a RuntimeError with these marks instead of an OSError.
TORCH_WRITE_FAILED = ("inline_container", "pytorchstreamwriter")

# Messages of gloo, NCCL and the store of torch.distributed on every rank that is left when another ends or hangs.
CONNECTION_LOST = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe", "timed out",
)  # fmt: skip
DISTRIBUTED_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")

# Config keys that lower the need for memory, most effective first, with advice.
MEMORY_KEYS = {
    "data.init_args.batch_size": "halve it",
    "data.init_args.max_length": "lower it",
    "model.init_args.step.accumulate": "raise it: splits each batch, same result",
    "trainer.accumulate_grad_batches": "raise it when the batch is halved",
    "trainer.precision": "bf16-mixed",
}

# Extra of pyproject.toml -> a module of each of its packages.
EXTRAS = {
    "metrics": ("pesq", "pystoi"),
    "images": ("datasets",),
    "ui": ("fastapi", "uvicorn", "nicegui", "prometheus_client", "psutil"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "rl": ("h5py",),
    "llm": ("bitsandbytes", "tokenizers", "pyarrow"),
    "mlflow": ("mlflow",),
    "tune": ("optuna",),
    "ray": ("ray",),
    "deepspeed": ("deepspeed",),
}

# Settings that Lightning refuses under manual optimization -> those of GANs.
MANUAL_SETTINGS = {
    "gradient accumulation is not supported": "trainer.accumulate_grad_batches; set model.init_args.step.accumulate",
    "gradient clipping is not supported": "trainer.gradient_clip_val; set model.init_args.step.clip_g and clip_d",
}


class ExplainedError(ValueError):
    """An error whose message says in one line what went wrong and what to do."""


class ConnectionLostError(ExplainedError):
    """Another process of the run ended or hangs; a launcher may restart all of them from the last checkpoint."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


def explain_error(exception: BaseException, config: Mapping[str, Any]) -> str | None:
    """Explain an exception that the user can act on.

    Args:
        exception: what was raised; its causes are checked, too.
        config: the run's configuration as nested mappings; may be empty.

    Returns:
        One line, or None for an exception of another kind.
    """
    if isinstance(exception, ExplainedError):
        return str(exception)
    for error in _chain(exception):
        text = str(error).lower()
        device = _exhausted_device(error, text)
        if device is not None:
            return f"out of memory on {device}; {_memory_advice(config)}"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _disk_full(f" while writing {error.filename}" if error.filename else "")
        is_write = "reader" not in text and any(mark in text for mark in TORCH_WRITE_FAILED)
        if isinstance(error, RuntimeError) and is_write:
            return _disk_full(" while writing a checkpoint")
        for mark, advice in MANUAL_SETTINGS.items():
            if mark in text:
                return f"this system steps two optimizers itself and does not take {advice}"
        if type(error).__name__ == "MisconfigurationException":
            return str(error)
        if isinstance(error, ModuleNotFoundError) and error.name:
            for extra, modules in EXTRAS.items():
                if error.name.partition(".")[0] in modules:
                    return f"{error.name} is not installed: pip install 'zoo[{extra}]'"
    return None


def is_connection_lost(exception: BaseException) -> bool:
    """Return whether an exception, or a cause of it, says that another process ended or does not respond."""
    return any(
        type(error).__name__ in DISTRIBUTED_ERRORS
        or (isinstance(error, RuntimeError) and "gloo" in text and any(mark in text for mark in CONNECTION_LOST))
        for error in _chain(exception)
        for text in [str(error).lower()]
    )


def _chain(exception: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes; torch and worker processes wrap errors."""
    visited: set[int] = set()
    error: BaseException | None = exception
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _exhausted_device(error: BaseException, text: str) -> str | None:
    if isinstance(error, MemoryError):
        return "the machine"
    is_torch_error = type(error).__name__ == "OutOfMemoryError"  # by name: torch is not imported here
    if isinstance(error, RuntimeError | OSError) and any(mark in text for mark in OUT_OF_CPU_MEMORY):
        return "the machine"
    is_gpu_text = isinstance(error, RuntimeError) and any(mark in text for mark in OUT_OF_GPU_MEMORY)
    return "the GPU" if is_torch_error or is_gpu_text else None


def _memory_advice(config: Mapping[str, Any]) -> str:
    """Name the keys of this run that lower the need for memory, with their values."""
    values = dict(_flatten(config, ""))
    hints = [
        f"{key} (now {values[key]}: {advice})"
        for key, advice in MEMORY_KEYS.items()
        if values.get(key) is not None and not (key == "trainer.precision" and "16" in str(values[key]))
    ]
    switches = ("gradient_checkpointing", "activation_checkpointing")
    hints += [f"{key} (now False: set it to true)" for key in values if key.endswith(switches) and values[key] is False]
    return (
        f"change one of {', '.join(hints)}" if hints else f"lower the batch size or precision: {', '.join(MEMORY_KEYS)}"
    )


def _flatten(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by dotted key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _disk_full(where: str) -> str:
    return (
        f"disk full{where}; no earlier file is lost: free some space or set trainer.default_root_dir to another disk, "
        "then resume with --ckpt_path last"
    )
