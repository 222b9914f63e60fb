"""Readers of CI-LLM's checkpoint folders (`checkpoint_step_{n}/`, `final_checkpoint/`) and PEFT folders."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.nets.agents import LINEAR_LAYERS, PEFT_PREFIX
from zoo.ci_llm.nets.backbone import ALL_LINEAR
from zoo.common.foreign_files import load_json
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.convert.engine import OriginalFile

log = logging.getLogger(__name__)

Weights = dict[str, Tensor]  # of one agent, by peft's names: base_model.model.{layer}.lora_A.weight

# Names of agent 1's tensors in other releases of peft, and in accelerate's state of the whole module:
#   base_model.model.{layer}.lora_A.agent1.weight, {layer}.lora_A1.weight; base_model.{layer}.lora_A.agent1.weight
STATE_PREFIX = "base_model."
_PEFT_NAME = re.compile(rf"{re.escape(PEFT_PREFIX)}(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_AGENT_NAME = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])(?P<rest>\d*)(?:\.(?P<agent>[^.]+))?\.weight")

# Files of CI-LLM's folders; META marks one.
META = "ci_llm_meta_config.json"
PROGRESS = "training_progress.json"
TOKENIZER = "tokenizer"
STATE = "model.safetensors"
BACKBONE = "backbone"  # our addition to the meta file
DTYPES = ("float32", "bfloat16")  # of a backbone
_WEIGHTS_FILE = re.compile(r"agent(\d+)_weights\.pth")
# Files of a PEFT folder.
CONFIG = "adapter_config.json"
PEFT_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_AGENT_FOLDER = re.compile(r"agent(\d+)")
# Keys of adapter_config.json that are read or have no effect; any other key that is set is refused.
SUPPORTED_KEYS = frozenset({
    "peft_type", "task_type", "base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "peft_version",
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "use_rslora", "fan_in_fan_out", "bias", "init_lora_weights", "runtime_config", "megatron_config", "megatron_core",
    "qalora_group_size", "eva_config",
})  # fmt: skip
BASE_CHANGING = ("pissa", "olora", "corda", "lora_ga", "loftq")  # initialisations that also change the backbone
EQUAL_KEYS = ("r", "lora_alpha", "lora_dropout", "use_rslora")  # in all agents of a crowd

ORIGINAL_LAYOUT, PEFT_LAYOUT = "checkpoint of CI-LLM", "PEFT folders"
FORMATS = (
    "known are checkpoint folders of CI-LLM (ci_llm_meta_config.json) and PEFT folders (adapter_config.json, or "
    "agent0, agent1, ... with one)"
)


@dataclass(kw_only=True)
class Adapters(OriginalFile):
    """Adapters of some agents and their configuration.

    Attributes:
        weights: of each agent, by peft's names.
        targets: last parts of the names of the adapted layers, or their full names.
        mode: the original's `parallel_mode`, which has no effect.
        base: name of the backbone, where known.
        backbone: `sha256`, `dtype` and `quantization` of the backbone of training, where known.
        progress: content of `training_progress.json`, where there is one.
        tokenizer: folder of its files, or the tokenizer itself.
    """

    layout: str = ORIGINAL_LAYOUT
    weights: list[Weights]
    rank: int
    alpha: int | float
    dropout: float
    targets: list[str]
    rslora: bool = False
    task_type: str = "CAUSAL_LM"
    mode: str = "sequential"
    base: str | None = None
    backbone: dict[str, str] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    tokenizer: Path | Tokenizer | None = None

    @property
    def layers(self) -> list[str]:
        """Full names of the adapted layers."""
        return list(dict.fromkeys(map(layer_of, self.weights[0])))

    @property
    def blocks(self) -> list[int] | None:
        """Numbers of the adapted blocks; None when the lowest is among them, so that all are."""
        parts = (key.split(".") for key in self.weights[0])
        numbers = sorted({next((int(part) for part in each if part.isdigit()), 0) for each in parts})
        return numbers if numbers[0] > 0 else None

    @property
    def tensor_count(self) -> int:
        """Tensors of all agents."""
        return sum(map(len, self.weights))


def agent_name(number: int) -> str:
    """The original's name of an agent."""
    return f"agent{number}"


def layer_of(key: str) -> str:
    """The full name of the layer of a tensor with peft's name."""
    return key.removeprefix(PEFT_PREFIX).rpartition(".lora_")[0]


def adapter_weights(content: Mapping[str, Tensor], name: str, where: str) -> Weights:
    """Rename the tensors of an adapter's file.

    Older releases of peft selected tensors by a part of the adapter's name, so the file of agent1 also holds those of
    agent10: names of other adapters are left out, with a warning.
    """
    weights, others, unexpected = {}, [], []
    for key, value in content.items():
        match = _AGENT_NAME.fullmatch(key)
        if match and match["agent"] == name and not match["rest"]:
            key = f"{match['layer']}.lora_{match['side']}.weight"
        if _PEFT_NAME.fullmatch(key):
            weights[key] = value
        elif match and key.startswith(PEFT_PREFIX):
            others.append(key)
        else:
            unexpected.append(key)
    if unexpected:
        raise ValueError(f"{where}: {len(unexpected)} tensors are no LoRA weights of peft: {', '.join(unexpected[:3])}")
    if others:
        log.warning("%s: %d tensors of other adapters left out (%s)", where, len(others), others[0])
    check_pairs(weights, where)
    return weights


def check_pairs(weights: Mapping[str, Tensor], where: str) -> None:
    """Check that there are weights, and that each layer has A and B."""
    if not weights:
        raise ValueError(f"{where} holds no LoRA weights")
    for key in weights:
        partner = key.replace(".lora_A.", ".lora_B.") if ".lora_A." in key else key.replace(".lora_B.", ".lora_A.")
        if partner not in weights:
            raise ValueError(f"{where}: {key} is present, {partner} is missing; is the file complete?")


def check_agents(adapters: Adapters, where: Path) -> None:
    """Check that all agents adapt the same layers with the rank of the configuration."""
    first = adapters.weights[0]
    for number, weights in enumerate(adapters.weights):
        if different := weights.keys() ^ first.keys():
            name = sorted(different)[0]
            raise ValueError(f"{where}: agents 0 and {number} adapt different layers: {name} is in one only")
        for key, value in weights.items():
            rank = value.shape[0 if ".lora_A." in key else -1] if value.ndim == 2 else None
            if rank != adapters.rank or value.shape != first[key].shape:
                raise ValueError(
                    f"{where}: {key} of agent {number} is {tuple(value.shape)}, expected rank {adapters.rank} and the "
                    f"shape of agent 0, {tuple(first[key].shape)}"
                )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = load_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no file {path}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected an object")
    return content


def read(path: Path) -> Adapters:
    """Read a checkpoint folder of the original, or PEFT folders.

    Raises:
        FileNotFoundError: when there is no such folder, or an agent is missing.
        ValueError: when it is neither, its files do not belong together, or an adapter is of an unsupported kind.
    """
    if not path.exists():
        raise FileNotFoundError(f"nothing at {path}")
    if is_original_folder(path):
        return read_original(path)
    if is_peft_folder(path):
        return read_peft(path)
    raise ValueError(f"{path}: unknown layout; {FORMATS}")


def is_original_folder(path: Path) -> bool:
    """Whether a path is a checkpoint folder of CI-LLM."""
    return (path / META).is_file()


def other_files(folder: Path) -> list[str]:
    """Name what a folder of adapters holds besides them."""
    own = {META, PROGRESS, TOKENIZER, CONFIG, *PEFT_WEIGHTS}
    names = {path.name for path in folder.iterdir()} - own
    return sorted(name for name in names if not (_WEIGHTS_FILE.fullmatch(name) or _AGENT_FOLDER.fullmatch(name)))


def read_original(folder: Path) -> Adapters:
    """Read a checkpoint folder of CI-LLM; agents without a file are read from accelerate's state; see `read`."""
    meta = read_json(folder / META)
    number = (int, float)
    kinds = {"r": int, "lora_alpha": number, "lora_dropout": number, "target_modules": list, "K_agents": int}
    wrong = [key for key, kind in kinds.items() if not isinstance(meta.get(key), kind)]  # type: ignore[arg-type]
    if wrong or meta["K_agents"] < 1:
        raise ValueError(f"{folder / META}: {', '.join(wrong) or 'K_agents'} is missing or invalid")
    companions = _read_companions(folder)
    config = companions["progress"].get("config")
    adapters = Adapters(
        weights=_read_agents(folder, meta["K_agents"]),
        rank=meta["r"],
        alpha=meta["lora_alpha"],
        dropout=meta["lora_dropout"],
        targets=meta["target_modules"],
        task_type=str(meta.get("task_type", "CAUSAL_LM")),
        mode=str(meta.get("parallel_mode", "sequential")),
        base=config.get("model_name") if isinstance(config, dict) else None,
        backbone=_read_record(meta, folder),
        **companions,
    )
    check_agents(adapters, folder)
    return adapters


def _read_companions(folder: Path) -> dict[str, Any]:
    """Progress and tokenizer next to the adapters."""
    progress = read_json(folder / PROGRESS) if (folder / PROGRESS).is_file() else {}
    return {"progress": progress, "tokenizer": folder / TOKENIZER if (folder / TOKENIZER).is_dir() else None}


def _read_agents(folder: Path, count: int) -> list[Weights]:
    files = {int(match[1]): path for path in folder.iterdir() if (match := _WEIGHTS_FILE.fullmatch(path.name))}
    beyond = sorted(number for number in files if number >= count)
    if beyond:
        raise ValueError(
            f"{folder}: {META} says K_agents {count}, but there is {files[beyond[0]].name}; the files of two "
            "checkpoints are mixed, or K_agents is wrong"
        )
    missing = [number for number in range(count) if number not in files]
    from_state = _read_state(folder / STATE, missing)
    lost = [number for number in missing if number not in from_state]
    if lost:
        names = ", ".join(f"{agent_name(number)}_weights.pth" for number in lost)
        raise FileNotFoundError(
            f"{folder}: {META} says K_agents {count}, but {names} is missing"
            + (f", and {STATE} does not hold it either" if (folder / STATE).is_file() else "")
        )
    return [
        _read_weights(files[number], agent_name(number)) if number in files else from_state[number]
        for number in range(count)
    ]


def _read_state(path: Path, numbers: Sequence[int]) -> dict[int, Weights]:
    """Adapters of some agents from accelerate's state; the backbone's tensors are not read."""
    if not numbers or not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            keys = find_state_keys(file.keys())
            weights = {
                number: {name: file.get_tensor(key) for name, key in keys[agent_name(number)].items()}
                for number in numbers
                if agent_name(number) in keys
            }
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error}); is it complete?") from error
    for number, each in weights.items():
        check_pairs(each, f"{path} ({agent_name(number)})")
    if weights:
        log.warning("%s: agent files are missing, their weights come from %s", path.parent, path.name)
    return weights


def find_state_keys(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Sort the names in accelerate's state of the whole module: agent -> peft's name -> name in the state."""
    agents: dict[str, dict[str, str]] = {}
    for key in keys:
        match = _AGENT_NAME.fullmatch(key.removeprefix("module."))
        if match and match["agent"] and match["layer"].startswith(STATE_PREFIX):
            layer = match["layer"].removeprefix(STATE_PREFIX)
            agents.setdefault(match["agent"], {})[f"{PEFT_PREFIX}{layer}.lora_{match['side']}.weight"] = key
    return agents


def _read_record(meta: Mapping[str, Any], folder: Path) -> dict[str, str] | None:
    """The record of a backbone in a meta file of ours."""
    record = meta.get(BACKBONE)
    if record is None:
        return None
    if not isinstance(record, dict) or "sha256" not in record or record.get("dtype", "float32") not in DTYPES:
        raise ValueError(f"{folder / META}: {BACKBONE} needs sha256, and a dtype of {', '.join(DTYPES)}, not {record}")
    return {key: str(value) for key, value in record.items()}


def is_peft_folder(path: Path) -> bool:
    """Whether a path is a folder of LoRA adapters of language models: one, or one for each agent."""
    try:
        folders = _adapter_folders(path)
        return bool(folders) and read_json(folders[0] / CONFIG).get("task_type") in (None, "CAUSAL_LM")
    except (OSError, ValueError):
        return False


def read_peft(folder: Path) -> Adapters:
    """Read folders `agent{i}` or a single adapter; errors as those of `read`."""
    folders = _adapter_folders(folder)
    if folders[0] != folder:
        names = {path.name for path in folders}
        missing = [agent_name(n) for n in range(_agent_number(folders[-1]) + 1) if agent_name(n) not in names]
        if missing:
            raise FileNotFoundError(f"{folder}: {', '.join(missing)} is missing")
    configs = [_read_config(path / CONFIG) for path in folders]
    weights = [_read_weights(_find_weights(path), path.name) for path in folders]
    first = configs[0]
    for path, config in zip(folders, configs, strict=True):
        for key in EQUAL_KEYS:
            if config.get(key) != first.get(key):
                raise ValueError(
                    f"{path / CONFIG}: {key} is {config.get(key)}, {folders[0].name} has {first.get(key)}; the agents "
                    "of a crowd have the same"
                )
    adapters = Adapters(
        layout=PEFT_LAYOUT,
        weights=weights,
        rank=first["r"],
        alpha=first["lora_alpha"],
        dropout=first.get("lora_dropout", 0.0),
        targets=_find_targets(first, weights[0]),
        rslora=bool(first.get("use_rslora")),
        base=first.get("base_model_name_or_path"),
        **_read_companions(folder),
    )
    check_agents(adapters, folder)
    return adapters


def _adapter_folders(path: Path) -> list[Path]:
    """The folders of adapters, in the order of their numbers."""
    if (path / CONFIG).is_file():
        return [path]
    if not path.is_dir():
        return []
    folders = [each for each in path.iterdir() if _AGENT_FOLDER.fullmatch(each.name) and (each / CONFIG).is_file()]
    return sorted(folders, key=_agent_number)


def _agent_number(folder: Path) -> int:
    return int(folder.name.removeprefix("agent"))


def _find_weights(folder: Path) -> Path:
    path = next((folder / name for name in PEFT_WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has {CONFIG}, but no {PEFT_WEIGHTS[0]}")
    return path


def _read_weights(path: Path, name: str) -> Weights:
    content = load_foreign_checkpoint(path)
    if not isinstance(content, Mapping) or not all(torch.is_tensor(value) for value in content.values()):
        raise ValueError(f"{path} holds no tensors by name")
    return adapter_weights(content, name, str(path))


def _read_config(path: Path) -> dict[str, Any]:
    """Read an adapter_config.json; ValueError: the adapter is of a kind that is not supported."""
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {config.get('peft_type')!r}, only LORA is supported")
    refused = [key for key, value in config.items() if value and key not in SUPPORTED_KEYS]
    if config.get("bias", "none") != "none":
        refused.append("bias")
    if str(config.get("init_lora_weights")).lower().startswith(BASE_CHANGING):
        refused.append("init_lora_weights")  # the adapter belongs to a backbone that it changed
    if refused:
        settings = ", ".join(f"{key}: {config[key]}" for key in refused)
        raise ValueError(f"{path}: {settings} is not supported; train or merge the adapter without it")
    base = "base_model_name_or_path"
    expected = {"r": (int,), "lora_alpha": (int, float), "lora_dropout": (int, float), base: (str, type(None))}
    for key, kinds in expected.items():
        if type(config.get(key, 0.0 if key == "lora_dropout" else None)) not in kinds:
            what = "a text" if key == base else "a number"
            raise ValueError(f"{path}: {key} is {config.get(key)!r}, expected {what}")
    return config


def _find_targets(config: Mapping[str, Any], weights: Weights) -> list[str]:
    """Last parts of the layers' names in one order (peft keeps a set); full names where these do not say it."""
    layers = list(dict.fromkeys(map(layer_of, weights)))
    modules, blocks = config.get("target_modules"), config.get("layers_to_transform")
    is_expression = isinstance(modules, str) and modules != ALL_LINEAR
    first_block = 0 in (blocks if isinstance(blocks, list) else [blocks])  # an int or null otherwise
    if is_expression or config.get("exclude_modules") or first_block:
        return layers
    order = {name: index for index, name in enumerate(LINEAR_LAYERS)}
    names = dict.fromkeys(name.rpartition(".")[2] for name in layers)
    return sorted(names, key=lambda name: order.get(name, len(order)))
