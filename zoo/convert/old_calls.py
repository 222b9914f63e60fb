"""Calls of the original projects' scripts in the words of `zoo`: what every translator of them needs."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from zoo.common.atomic import write_atomic
from zoo.convert.settings import read_table


@dataclass
class Call:
    """An old call in our words.

    Args:
        command: arguments of `zoo`.
        notes: what has no counterpart or means something else here, a line each.
    """

    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def command(
    translate: Callable[[Sequence[str], Mapping[str, str]], Call], arguments: Sequence[str] | None = None
) -> list[str]:
    """Translate the call of an old script, telling on the first process what it means here.

    Args:
        translate: makes a call of the script's arguments and the environment.
        arguments: of the script; the process's when None.

    Returns:
        Arguments of `zoo`. A faulty call ends the process with code 2 and one line.
    """
    try:
        call = translate(sys.argv[1:] if arguments is None else arguments, os.environ)
    except (ValueError, FileNotFoundError) as error:
        print(f"zoo: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        print("the same here:", shlex.join(["python", "-m", "zoo", *call.command]), file=sys.stderr)
        for note in call.notes:
            print("note:", note, file=sys.stderr)
    return call.command


def processes(environment: Mapping[str, str]) -> tuple[int, int]:
    """How many processes torchrun or accelerate has started on each node, and on how many nodes.

    WORLD_SIZE would not do: Lightning sets it for processes that it starts itself, after it has chosen a strategy.
    """
    return int(environment.get("LOCAL_WORLD_SIZE", "1")), int(environment.get("GROUP_WORLD_SIZE", "1"))


def is_on_cpu(environment: Mapping[str, str]) -> bool:
    """Whether `accelerate launch --cpu` has started this process."""
    return is_true(environment.get("ACCELERATE_USE_CPU", ""))


def is_true(value: str) -> bool:
    """Whether a text means yes."""
    return value.lower() in ("true", "1", "yes")


def shown(path: Path) -> str:
    """A path for people and command lines: relative to the working directory where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def write_recipe(recipe: Mapping[str, Any], original: Path, script: str) -> str:
    """Write a recipe beside the configuration it was made of, as `<name>.zoo.yaml`; every process of a launch does.

    Returns:
        Its path for command lines.
    """
    path = original.with_suffix(".zoo.yaml")
    text = f"# Made of {original.name} by {script}.\n" + yaml.safe_dump(recipe, sort_keys=False)
    write_atomic(path, lambda file: file.write(text.encode()))
    return shown(path)


def share_steps(recipe: Mapping[str, Any], processes: int) -> None:
    """Divide the steps of whole epochs and their warm-up by the processes, in place."""
    trainer, schedule = recipe["trainer"], recipe["model"]["init_args"]["scheduler"]
    if "max_steps" in trainer:
        trainer["max_steps"] = math.ceil(trainer["max_steps"] / processes)
        if schedule is not None:
            schedule["init_args"]["warmup_steps"] //= processes


PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
# As in configs/trainer/ddp.yaml.
DDP: dict[str, Any] = {
    "class_path": "lightning.pytorch.strategies.DDPStrategy",
    "init_args": {"broadcast_buffers": False},
}
PLAIN_KINDS = ("NO", "MULTI_GPU", "MULTI_CPU", "MPS")
# accelerate's name of a strategy that shards -> the fragment that sets it up.
SHARDED_KINDS = {"FSDP": "configs/trainer/fsdp.yaml", "DEEPSPEED": "configs/trainer/deepspeed.yaml"}
# Keys that Lightning or the environment settles.
NEEDLESS = ("compute_environment", "main_training_function", "same_network", "rdzv_backend", "debug", "fp16")
HINTS = {
    "fsdp_config": "set the same choices in configs/trainer/fsdp.yaml",
    "deepspeed_config": "set the same choices in configs/trainer/deepspeed.yaml (accumulation, clipping: trainer keys)",
    "dynamo_config": "set model.init_args.compile: true",
    "dynamo_backend": "set model.init_args.compile: true",
    "fp8_config": "trainer.precision: transformer-engine",
    "mpirun_config": "start `zoo fit` with mpirun itself",
    "enable_cpu_affinity": "start `zoo fit` with numactl",
}


@dataclass(frozen=True)
class Launch:
    """Trainer settings and what goes with them.

    Args:
        trainer: the `trainer:` section of a recipe.
        environment: variables that each node's process needs.
        unmapped: one line for each key without a counterpart, with a hint.
    """

    trainer: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    unmapped: list[str] = field(default_factory=list)

    def to_yaml(self) -> str:
        """Write a fragment for `--config`, with variables and unmapped keys as comments."""
        lines = [f"# set in the environment: {name}={value}" for name, value in self.environment.items()]
        lines += [f"# not translated: {key}" for key in self.unmapped]
        return "\n".join([*lines, yaml.safe_dump({"trainer": self.trainer}, sort_keys=False)])

    def to_flags(self) -> list[str]:
        """Write the settings as flags of `zoo fit`."""
        return [f"--{key}={value}" for key, value in _flat("trainer", self.trainer)]


def read_accelerate(path: Path) -> Launch:
    """Translate an accelerate configuration file.

    Args:
        path: YAML as `accelerate config` writes it.

    Returns:
        The settings; keys without a counterpart are listed, never dropped silently.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no mapping, or a value is not one that accelerate writes.
    """
    given = read_table(path)
    try:
        return translate(given)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def launch_recipe(config: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]] | None:
    """The `trainer` section, and keys without a counterpart, where a configuration is Accelerate's; else None."""
    if not {"distributed_type", "num_processes"} <= set(config):
        return None
    launch = read_accelerate(path)
    return {"trainer": launch.trainer}, launch.unmapped


def translate(given: Mapping[str, Any]) -> Launch:
    """Translate the keys of an accelerate configuration; a value that accelerate does not write is a ValueError."""
    values = dict(given)
    kind = str(values.pop("distributed_type", None) or "NO")
    on_cpu = values.pop("use_cpu", False) is True or kind == "MULTI_CPU"
    nodes = _count(values, "num_machines", 1)
    processes = "auto" if values.get("num_processes") in ("auto", -1) else _count(values, "num_processes", 1)
    values.pop("num_processes", None)
    unmapped = []
    devices = _devices(values.pop("gpu_ids", None), processes, nodes, on_cpu)
    trainer: dict[str, Any] = {"accelerator": "cpu" if on_cpu else "auto", "devices": devices, "num_nodes": nodes}
    if kind in SHARDED_KINDS:
        unmapped.append(f"distributed_type {kind}: add --config {SHARDED_KINDS[kind]}")
    else:
        trainer["strategy"] = "auto" if processes == 1 else DDP
    if kind not in (*PLAIN_KINDS, *SHARDED_KINDS):
        unmapped.append(f"distributed_type {kind}: no counterpart here; the fragment uses DDP")
    precision = str(values.pop("mixed_precision", None) or "no").lower()
    if precision in PRECISIONS:
        # fp16 needs a GPU; on the CPU accelerate ran in fp32 as well.
        trainer["precision"] = "32-true" if on_cpu and precision == "fp16" else PRECISIONS[precision]
    else:
        unmapped.append(f"mixed_precision {precision}: {HINTS['fp8_config']}")
    if "gradient_accumulation_steps" in values:
        trainer["accumulate_grad_batches"] = _count(values, "gradient_accumulation_steps", 1)
    environment = _environment(values, nodes)
    unmapped += [
        f"{key}{_names(value)}: {HINTS.get(key, 'unknown key')}"
        for key, value in values.items()
        if key not in NEEDLESS and value not in (None, False, "", "no", "NO", [], {})
    ]
    return Launch(trainer, environment, unmapped)


def _devices(gpu_ids: Any, processes: int | str, nodes: int, on_cpu: bool) -> Any:
    """Devices of one node: how many, or which."""
    if isinstance(processes, str):
        return processes
    if processes % nodes:
        raise ValueError(f"num_processes {processes} cannot be divided among num_machines {nodes}")
    if on_cpu or gpu_ids in (None, "all"):
        return processes // nodes
    try:
        chosen = [int(number) for number in str(gpu_ids).split(",")]
    except ValueError as error:
        raise ValueError(f"gpu_ids {gpu_ids!r}: expected all, or numbers like 0,1") from error
    if len(chosen) != processes // nodes:
        raise ValueError(f"gpu_ids {gpu_ids!r} names {len(chosen)} devices for {processes // nodes} processes a node")
    return chosen


def _environment(values: dict[str, Any], nodes: int) -> dict[str, str]:
    """Variables by which the nodes find one another."""
    names = {"machine_rank": "NODE_RANK", "main_process_ip": "MASTER_ADDR", "main_process_port": "MASTER_PORT"}
    found = {variable: values.pop(key, None) for key, variable in names.items()}
    if nodes == 1:
        found = {"MASTER_PORT": found["MASTER_PORT"]}
    return {variable: str(value) for variable, value in found.items() if value is not None}


def _count(values: dict[str, Any], key: str, default: int) -> int:
    value = values.pop(key, None)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key}: expected a number from 1, found {value!r}")
    return value


def _names(value: Any) -> str:
    return f" ({', '.join(map(str, value))})" if isinstance(value, Mapping) else ""


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Spell a mapping out as flags; a class comes before its arguments."""
    if isinstance(value, Mapping) and "class_path" in value:
        yield prefix, value["class_path"]
        yield from _flat(prefix, value.get("init_args", {}))
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flat(f"{prefix}.{key}", entry)
    else:
        yield prefix, str(value).lower() if isinstance(value, bool) else str(value)
