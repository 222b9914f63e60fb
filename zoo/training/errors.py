"""One-line explanations of what goes wrong most, naming the config keys that help and their present values."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import Any

# Parts of the messages of CUDA, ROCm, MPS and CPU allocators (lower case): torch raises plain RuntimeErrors too.
OUT_OF_MEMORY = {
    "cuda out of memory": "the GPU",
    "hip out of memory": "the GPU",
    "mps backend out of memory": "the GPU (MPS)",
    "cuda error: out of memory": "the GPU",
    "hip error: out of memory": "the GPU",
    "cublas_status_alloc_failed": "the GPU",
    "cudnn_status_alloc_failed": "the GPU",
    "defaultcpuallocator": "the machine",
    "can't allocate memory": "the machine",
    "cannot allocate memory": "the machine",
}
# torch.save reports a full disk as a RuntimeError with these marks instead of an OSError.
TORCH_WRITE_FAILED = ("inline_container", "pytorchstreamwriter")

# What gloo, NCCL and the store of torch.distributed say on every rank that is left when one is gone or hangs.
LOST_CONTACT = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out",
)
DISTRIBUTED_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")

# Config keys that lower the need for memory, most effective first, and what to do with them.
MEMORY_KEYS = (
    ("data.init_args.batch_size", "halve it"),
    ("data.init_args.max_length", "lower it"),
    ("model.init_args.accumulate", "raise it: splits each batch, same result"),
    ("trainer.accumulate_grad_batches", "raise it when the batch is halved"),
    ("trainer.precision", "bf16-mixed"),
)

# Extra of pyproject.toml -> a module of each of its packages.
EXTRAS = {
    "metrics": ("pesq", "pystoi"),
    "images": ("datasets",),
    "ui": ("fastapi", "uvicorn", "nicegui", "prometheus_client", "psutil"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "rl": ("gymnasium", "h5py"),
    "llm": ("bitsandbytes", "tokenizers", "pyarrow"),
    "mlflow": ("mlflow",),
    "tune": ("optuna",),
    "ray": ("ray",),
    "deepspeed": ("deepspeed",),
}
EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


# Lightning refuses these settings under manual optimization; the tasks of GANs have their own.
MANUAL_SETTINGS = {
    "gradient accumulation is not supported": "trainer.accumulate_grad_batches; set model.init_args.accumulate",
    "gradient clipping is not supported": "trainer.gradient_clip_val; set model.init_args.clip_g and clip_d",
}


def explain(exception: BaseException, config: Mapping[str, Any]) -> str | None:
    """Explain an exception that the user can act on.

    Args:
        exception: what was raised; its causes are checked too.
        config: the run's configuration as nested mappings; empty when there is none.

    Returns:
        One line, or None when the exception is of no known kind.
    """
    if isinstance(exception, ExplainedError):
        return str(exception)
    for error in _chain(exception):
        text = str(error).lower()
        place = _where_memory_ended(error, text)
        if place is not None:
            return f"out of memory on {place}; {_memory_advice(config)}"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _disk_full(f" while writing {error.filename}" if error.filename else "")
        if (
            isinstance(error, RuntimeError)
            and "reader" not in text
            and any(mark in text for mark in TORCH_WRITE_FAILED)
        ):
            return _disk_full(" while writing a checkpoint")
        for mark, advice in MANUAL_SETTINGS.items():
            if mark in text:
                return f"this system steps two optimizers itself and does not take {advice}"
        if type(error).__name__ == "MisconfigurationException":
            return str(error)
        if isinstance(error, ModuleNotFoundError) and error.name:
            extra = EXTRA_OF.get(error.name.partition(".")[0])
            if extra is not None:
                return f"{error.name} is not installed: pip install 'zoo[{extra}]'"
    return None


class ExplainedError(ValueError):
    """Says in one line what went wrong, and what to do."""


class LostContactError(ExplainedError):
    """Another process of the run is gone or hangs; a launcher may start all of them again from the last checkpoint."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


def lost_contact(exception: BaseException) -> bool:
    """Whether an exception says that another process is gone or does not answer, and nothing is wrong with this one."""
    for error in _chain(exception):
        text = str(error).lower()
        if type(error).__name__ in DISTRIBUTED_ERRORS:
            return True
        if isinstance(error, RuntimeError) and "gloo" in text and any(mark in text for mark in LOST_CONTACT):
            return True
    return False


def _chain(exception: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes; torch and worker processes wrap what went wrong."""
    seen: set[int] = set()
    error: BaseException | None = exception
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _where_memory_ended(error: BaseException, text: str) -> str | None:
    if isinstance(error, MemoryError):
        return "the machine"
    # By name, so that help and tools need not import torch.
    if type(error).__name__ == "OutOfMemoryError":
        return next((place for mark, place in OUT_OF_MEMORY.items() if mark in text), "the GPU")
    if isinstance(error, RuntimeError | OSError):
        return next((place for mark, place in OUT_OF_MEMORY.items() if mark in text), None)
    return None


def _memory_advice(config: Mapping[str, Any]) -> str:
    """Name the keys of this run that lower the need, with their values."""
    hints = []
    for key, advice in MEMORY_KEYS:
        value = _look_up(config, key)
        if value is not None and not (key == "trainer.precision" and "16" in str(value)):
            hints.append(f"{key} (now {value}: {advice})")
    for key, value in _checkpointing_keys(config, ""):
        hints.append(f"{key} (now {value}: set it to true)")
    if not hints:
        return f"lower the batch size or precision: {', '.join(key for key, _ in MEMORY_KEYS)}"
    return f"change one of {', '.join(hints)}"


def _look_up(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _checkpointing_keys(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Find the model's switches for gradient checkpointing that are off; systems nest them differently."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        name = f"{prefix}.{key}" if prefix else str(key)
        if key in ("gradient_checkpointing", "activation_checkpointing") and value is False:
            yield name, value
        yield from _checkpointing_keys(value, name)


def _disk_full(where: str) -> str:
    return (
        f"disk full{where}; nothing saved before is lost: free some room or set trainer.default_root_dir "
        "to another disk, then go on with --ckpt_path last"
    )
