"""One-line explanations of the most frequent errors, with the config keys that help and their values."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import Any

from zoo.common.environment import OUT_OF_CPU_MEMORY, OUT_OF_GPU_MEMORY
from zoo.runs.run_info import flatten_config

# torch.save reports a full disk as a RuntimeError with these marks instead of an OSError.
TORCH_WRITE_FAILED = ("inline_container", "pytorchstreamwriter")

# Messages of gloo, NCCL and the store of torch.distributed on every rank that is left when another ends or hangs.
CONNECTION_LOST = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe", "timed out",
)  # fmt: skip
# Messages of torch where tensors of two precisions meet.
MIXED_DTYPES = ("expected scalar type", "must have the same dtype", "should be the same", "expected both to have")
DISTRIBUTED_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")

TOKEN_BUDGET = "data.init_args.token_budget"
# Config keys that lower the need for memory, most effective first, with advice.
MEMORY_KEYS = {
    TOKEN_BUDGET: "halve it",
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


def explain_error(exception: BaseException, config: Mapping[str, Any]) -> ExplainedError | None:
    """Return the error to report when the user can act on an exception or a cause of it; None for others.

    `config` is the run's, as nested mappings; may be empty.
    """
    for error in _chain(exception):
        if isinstance(error, ExplainedError):
            return error
        text = str(error).lower()
        lost = isinstance(error, RuntimeError) and "gloo" in text and any(mark in text for mark in CONNECTION_LOST)
        if lost or type(error).__name__ in DISTRIBUTED_ERRORS:
            return ConnectionLostError(
                "lost contact with another process, which was killed or hangs; nothing saved is lost: start all of "
                "them again with --ckpt_path last"
            )
        message = (
            _explain_memory(error, text, config)
            or _explain_disk(error, text)
            or _explain_precision(error, text, config)
            or _explain_setup(error, text)
        )
        if message is not None:
            return ExplainedError(message)
    return None


def _chain(exception: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from; torch and worker processes wrap errors."""
    visited: set[int] = set()
    error: BaseException | None = exception
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__


def _explain_memory(error: BaseException, text: str, config: Mapping[str, Any]) -> str | None:
    """Name the keys of this run that lower the need for memory, with their values."""
    on_host = isinstance(error, RuntimeError | OSError) and any(mark in text for mark in OUT_OF_CPU_MEMORY)
    on_gpu = isinstance(error, RuntimeError) and any(mark in text for mark in OUT_OF_GPU_MEMORY)
    if not (on_host or on_gpu or isinstance(error, MemoryError)):
        return None
    values = flatten_config(config)
    if values.get(TOKEN_BUDGET, "null") != "null":  # takes the place of batch_size
        values.pop("data.init_args.batch_size", None)
    hints = [
        f"{key} (now {values[key]}: {advice})"
        for key, advice in MEMORY_KEYS.items()
        if values.get(key, "null") != "null" and not (key == "trainer.precision" and "16" in str(values[key]))
    ]
    switches = ("gradient_checkpointing", "activation_checkpointing")
    hints += [f"{key} (now False: set it to true)" for key in values if key.endswith(switches) and values[key] is False]
    device = "the GPU" if on_gpu and not on_host else "the machine"
    return f"out of memory on {device}; change one of {', '.join(hints or MEMORY_KEYS)}"


def _explain_disk(error: BaseException, text: str) -> str | None:
    is_write = isinstance(error, RuntimeError) and any(mark in text for mark in TORCH_WRITE_FAILED)
    if not (is_write and "reader" not in text) and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return (
        f"disk full while writing {getattr(error, 'filename', None) or 'a file'}; no earlier file is lost: free some "
        "space or set trainer.default_root_dir to another disk, then resume with --ckpt_path last"
    )


def _explain_precision(error: BaseException, text: str, config: Mapping[str, Any]) -> str | None:
    precision = str(flatten_config(config).get("trainer.precision"))
    is_mixture = isinstance(error, RuntimeError) and any(mark in text for mark in MIXED_DTYPES)
    if not is_mixture or precision not in ("bf16-true", "16-true"):
        return None
    return (
        f"trainer.precision {precision} casts all weights, and a part of this model needs float32: use "
        f"{precision.replace('true', 'mixed')} ({error})"
    )


def _explain_setup(error: BaseException, text: str) -> str | None:
    for mark, advice in MANUAL_SETTINGS.items():
        if mark in text:
            return f"this system steps two optimizers itself and does not take {advice}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        for extra, modules in EXTRAS.items():
            if error.name.partition(".")[0] in modules:
                return f"{error.name} is not installed: pip install 'zoo[{extra}]'"
    return str(error) if type(error).__name__ == "MisconfigurationException" else None
