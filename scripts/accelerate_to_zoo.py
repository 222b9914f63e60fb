#!/usr/bin/env python
"""Translate a configuration of `accelerate config` into settings of the trainer.

python scripts/accelerate_to_zoo.py accelerate_config.yaml                  prints flags of `zoo fit`
python scripts/accelerate_to_zoo.py accelerate_config.yaml trainer.yaml     writes a fragment for `--config`
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zoo.common.atomic_files import write_atomic
from zoo.convert.settings import PRECISIONS, read_settings_file

# As in configs/trainer/ddp.yaml.
DDP = {"class_path": "lightning.pytorch.strategies.DDPStrategy", "init_args": {"broadcast_buffers": False}}
PLAIN_KINDS = ("NO", "MULTI_GPU", "MULTI_CPU", "MPS")
SHARDED_KINDS = {"FSDP": "configs/trainer/fsdp.yaml", "DEEPSPEED": "configs/trainer/deepspeed.yaml"}
# Keys that Lightning or the environment settles.
UNNEEDED = ("compute_environment", "main_training_function", "same_network", "rdzv_backend", "debug")
VARIABLES = {"machine_rank": "NODE_RANK", "main_process_ip": "MASTER_ADDR", "main_process_port": "MASTER_PORT"}
HINTS = {
    "fsdp_config": "set the same choices in configs/trainer/fsdp.yaml",
    "deepspeed_config": "set the same choices in configs/trainer/deepspeed.yaml (accumulation, clipping: trainer keys)",
    "dynamo_config": "set model.init_args.compile: true",
    "dynamo_backend": "set model.init_args.compile: true",
    "fp8_config": "trainer.precision: transformer-engine",
    "mpirun_config": "start `zoo fit` with mpirun itself",
    "enable_cpu_affinity": "start `zoo fit` with numactl",
}


class Launch(NamedTuple):
    """The `trainer` section of a recipe, the variables of each node, and a line for each key without a counterpart."""

    trainer: dict[str, Any]
    environment: dict[str, str]
    untranslated: list[str]


def translate(config: Mapping[str, Any]) -> Launch:
    """Translate the keys of an accelerate configuration.

    Raises:
        ValueError: when a value is none that accelerate writes.
    """
    values = dict(config)
    kind = str(values.pop("distributed_type", None) or "NO")
    on_cpu = values.pop("use_cpu", False) is True or kind == "MULTI_CPU"
    nodes = _count(values, "num_machines")
    processes = "auto" if values.get("num_processes") in ("auto", -1) else _count(values, "num_processes")
    values.pop("num_processes", None)
    devices = _devices(values.pop("gpu_ids", None), processes, nodes, on_cpu)
    trainer: dict[str, Any] = {"accelerator": "cpu" if on_cpu else "auto", "devices": devices, "num_nodes": nodes}
    untranslated = []
    if kind in SHARDED_KINDS:
        untranslated.append(f"distributed_type {kind}: add --config {SHARDED_KINDS[kind]} before these settings")
    else:
        trainer["strategy"] = "auto" if processes == 1 else DDP
    if kind not in (*PLAIN_KINDS, *SHARDED_KINDS):
        untranslated.append(f"distributed_type {kind}: no counterpart here; the fragment uses DDP")
    older = "fp16" if values.pop("fp16", None) is True else "no"  # the key of accelerate's first versions
    precision = str(values.pop("mixed_precision", older) or "no").lower()
    if precision in PRECISIONS:
        # fp16 needs a GPU; on the CPU accelerate ran in fp32 as well.
        trainer["precision"] = PRECISIONS["no" if on_cpu and precision == "fp16" else precision]
    else:
        untranslated.append(f"mixed_precision {precision}: {HINTS['fp8_config']}")
    if "gradient_accumulation_steps" in values:
        trainer["accumulate_grad_batches"] = _count(values, "gradient_accumulation_steps")
    environment = {VARIABLES[key]: str(values.pop(key)) for key in VARIABLES if values.get(key) is not None}
    if nodes == 1:
        environment = {name: value for name, value in environment.items() if name == "MASTER_PORT"}
    untranslated += [
        f"{key}: {HINTS.get(key, 'unknown key')}"
        for key, value in values.items()
        if key not in UNNEEDED and value not in (None, False, "", "no", "NO", [], {})
    ]
    return Launch(trainer, environment, untranslated)


def _devices(gpu_ids: Any, processes: int | str, nodes: int, on_cpu: bool) -> Any:
    """Devices of one node: how many, or which."""
    if isinstance(processes, str):
        return processes
    if processes % nodes:
        raise ValueError(f"num_processes {processes} cannot be divided among num_machines {nodes}")
    if on_cpu or gpu_ids in (None, "all"):
        return processes // nodes
    try:
        numbers = [int(number) for number in str(gpu_ids).split(",")]
    except ValueError as error:
        raise ValueError(f"gpu_ids is {gpu_ids!r}, expected all, or numbers like 0,1") from error
    if len(numbers) != processes // nodes:
        raise ValueError(f"gpu_ids {gpu_ids!r} names {len(numbers)} devices for {processes // nodes} processes a node")
    return numbers


def _count(values: dict[str, Any], key: str) -> int:
    value = values.pop(key, None)
    value = 1 if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} is {value!r}, expected a whole number from 1")
    return value


def _flags(prefix: str, value: Any) -> Iterator[str]:
    """Write a mapping as flags; a class comes before its arguments."""
    if isinstance(value, Mapping) and "class_path" in value:
        yield f"--{prefix}={value['class_path']}"
        value = value["init_args"]
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flags(f"{prefix}.{key}", entry)
    else:
        yield f"--{prefix}={str(value).lower() if isinstance(value, bool) else value}"


def main(args: list[str] | None = None) -> int:
    """Translate one file; keys without a counterpart go to standard error."""
    parser = argparse.ArgumentParser(description="accelerate configuration -> trainer settings")
    parser.add_argument("source", type=Path, help="YAML written by `accelerate config`")
    parser.add_argument("target", type=Path, nargs="?", help="fragment to write; without it the flags are printed")
    options = parser.parse_args(args)
    try:
        trainer, environment, untranslated = translate(read_settings_file(options.source))
    except (ValueError, OSError) as error:
        print(f"accelerate_to_zoo: error: {options.source}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    for line in untranslated:
        print(f"not translated: {line}", file=sys.stderr)
    variables = [f"{name}={value}" for name, value in environment.items()]
    if options.target is None:
        print(" ".join([*variables, shlex.join(_flags("trainer", trainer))]))
        return 0
    lines = [*(f"# set in the environment: {each}" for each in variables)]
    lines += [f"# not translated: {line}" for line in untranslated]
    text = "\n".join([*lines, yaml.safe_dump({"trainer": trainer}, sort_keys=False)])
    write_atomic(options.target, lambda stream: stream.write(text.encode()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
