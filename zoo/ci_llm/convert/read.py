"""Checkpoint folders of CI-LLM (`checkpoint_step_{n}/`, `final_checkpoint/`) and PEFT folders (`agent{i}/`), read."""

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
from zoo.ci_llm.nets.agents import LINEAR_LAYERS, PEFT_PREFIX, Agents, fits, matching
from zoo.ci_llm.nets.backbone import ALL_LINEAR
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.journal import load_json
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.convert.engine import OriginalFile

log = logging.getLogger(__name__)

Weights = dict[str, Tensor]  # of one agent, by peft's names

PART = "crowd"  # name of the net in the task, and so prefix of its tensors
# Names of an adapter's tensors: peft's; those of agent 1 in other releases of peft and in accelerate's state; ours.
#   base_model.model.{layer}.lora_A.weight
#   base_model.model.{layer}.lora_A.agent1.weight, {layer}.lora_A1.weight; base_model.{layer}.lora_A.agent1.weight
#   crowd.agents.adapters.{layer}.lora_A, stacked over agents
# and, with DoRA, {layer}.lora_magnitude_vector without `.weight`.
OURS = f"{PART}.agents.adapters."
STATE_PREFIX = "base_model."  # of the whole module in accelerate's state; the backbone's other registration is dropped
_PEFT = re.compile(rf"{re.escape(PEFT_PREFIX)}(?P<layer>.+)\.lora_((?P<side>[AB])\.weight|magnitude_vector)")
MAGNITUDE = ".lora_magnitude_vector"
_NAMED = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])(?P<rest>\d*)(?:\.(?P<agent>[^.]+))?\.weight")

# Files of CI-LLM's folders; META marks one.
META = "ci_llm_meta_config.json"
PROGRESS = "training_progress.json"
TOKENIZER = "tokenizer"
STATE = "model.safetensors"
BACKBONE = "backbone"  # our addition to the meta file
_WEIGHTS = re.compile(r"agent(\d+)_weights\.pth")
# Files of a PEFT folder.
CONFIG = "adapter_config.json"
PEFT_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_FOLDER = re.compile(r"agent(\d+)")
# Keys of adapter_config.json that are heeded or change nothing; whatever else is set is refused.
HEEDED = frozenset({
    "peft_type", "task_type", "base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "peft_version",
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out", "bias", "init_lora_weights",
    "runtime_config", "megatron_config", "megatron_core", "qalora_group_size", "eva_config",
})  # fmt: skip
BASE_CHANGING = ("pissa", "olora", "corda", "lora_ga", "loftq")  # first weights that also change the backbone
_SPECIAL = ("rank_pattern", "alpha_pattern", "rslora", "dora")
EQUAL = ("target_modules", "lora_dropout", "use_rslora", "use_dora")  # in all agents of a crowd

ORIGINAL_LAYOUT, PEFT_LAYOUT = "checkpoint of CI-LLM", "PEFT folders"
FORMATS = (
    "known are checkpoint folders of CI-LLM (ci_llm_meta_config.json) and PEFT folders (adapter_config.json, or "
    "agent0, agent1, ... with one)"
)


@dataclass(kw_only=True)
class Adapters(OriginalFile):
    """Adapters of some agents, with what their files say of them.

    Attributes:
        weights: of each agent, by peft's names.
        rank: of all agents, or of each.
        alpha: the scale is alpha / rank; of all agents, or of each.
        targets: last parts of the names of the adapted layers, or their full names.
        rank_pattern: see `zoo.ci_llm.Agents`, as `alpha_pattern`, `rslora` and `dora`.
        mode: the original's `parallel_mode`, which nobody reads.
        base: name of the backbone, where known.
        backbone: `sha256`, `dtype` and `quantization` of the one that they were trained on, where known.
        progress: content of `training_progress.json`, where there is one.
        tokenizer: folder of its files, or the tokenizer itself.
    """

    layout: str = ORIGINAL_LAYOUT
    weights: list[Weights]
    rank: int | list[int]
    alpha: int | float | list[float]
    dropout: float
    targets: list[str]
    rank_pattern: dict[str, Any] = field(default_factory=dict)
    alpha_pattern: dict[str, Any] = field(default_factory=dict)
    rslora: bool = False
    dora: bool = False
    task_type: str = "CAUSAL_LM"
    mode: str = "sequential"
    base: str | None = None
    backbone: dict[str, str] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    tokenizer: Path | Tokenizer | None = None

    def form(self) -> dict[str, Any]:
        """What shapes the agents: arguments of `Agents`, without those at their default that the original lacks."""
        shared = {"count": len(self.weights), "rank": self.rank, "alpha": self.alpha, "dropout": self.dropout}
        return shared | {name: getattr(self, name) for name in _SPECIAL if getattr(self, name)}

    @property
    def alike(self) -> bool:
        """Whether all agents have one rank and one alpha, and plain LoRA."""
        return not (isinstance(self.rank, list) or isinstance(self.alpha, list) or self.form().keys() & set(_SPECIAL))

    @property
    def blocks(self) -> list[int] | None:
        """Numbers of the adapted blocks; None when the lowest is among them, so that all are."""
        parts = (key.split(".") for key in self.weights[0])
        numbers = sorted({next((int(part) for part in each if part.isdigit()), 0) for each in parts})
        return numbers if numbers[0] > 0 else None

    @property
    def tensors(self) -> int:
        """How many there are."""
        return sum(map(len, self.weights))


def adapters_of(
    crowd: Crowd, progress: Mapping[str, Any] | None = None, tokenizer: Path | Tokenizer | None = None
) -> Adapters:
    """The adapters of a crowd, to be written; arguments as the attributes of `Adapters`."""
    agents, backbone = crowd.agents, crowd.backbone
    dtype = str(backbone.model.dtype).removeprefix("torch.")
    return Adapters(
        weights=[{k: v.cpu().clone() for k, v in agents.adapter(number).items()} for number in range(agents.count)],
        rank=agents.rank,
        alpha=agents.alpha,
        dropout=agents.dropout,
        targets=written_targets(agents, agents.names),
        rank_pattern=agents.rank_pattern,
        alpha_pattern=agents.alpha_pattern,
        rslora=agents.rslora,
        dora=agents.dora,
        base=backbone.source,
        backbone={"sha256": backbone.fingerprint(), "dtype": dtype, "quantization": backbone.quantization},
        progress=dict(progress or {}),
        tokenizer=tokenizer,
    )


def written_targets(agents: Agents, names: Iterable[str]) -> list[str]:
    """The targets of agents as a list: as they were given, or else spelled out from the adapted layers' full names."""
    if isinstance(agents.targets, str) or agents.exclude:
        if agents.targets != ALL_LINEAR or agents.exclude:
            return list(names)
        return list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    return list(agents.targets)


def agent_name(number: int) -> str:
    """The original's name of an agent."""
    return f"agent{number}"


def adapter_weights(content: Mapping[str, Tensor], name: str, where: str) -> Weights:
    """The adapter of a file.

    Older releases of peft chose an adapter's tensors by a part of its name, so that the file of agent1 also holds
    those of agent10: what still has the name of another adapter is left out, with a message.
    """
    weights, others, strangers = {}, [], []
    for key, value in content.items():
        found = _NAMED.fullmatch(key)
        if _PEFT.fullmatch(key):
            weights[key] = value
        elif found and not found["rest"] and found["agent"] == name:
            weights[f"{found['layer']}.lora_{found['side']}.weight"] = value
        elif key.removesuffix(".weight").removesuffix(f".{name}").endswith(MAGNITUDE):
            weights[key.removesuffix(".weight").removesuffix(f".{name}")] = value
        elif found and key.startswith(PEFT_PREFIX):
            others.append(key)
        else:
            strangers.append(key)
    if strangers or not all(map(_PEFT.fullmatch, weights)):
        bad = strangers or [key for key in weights if not _PEFT.fullmatch(key)]
        raise ValueError(f"{where}: {len(bad)} tensors are no LoRA weights of peft: {', '.join(bad[:3])}")
    if others:
        log.warning("%s: %d tensors of other adapters left out (%s)", where, len(others), others[0])
    check_pairs(weights, where)
    return weights


def check_pairs(weights: Mapping[str, Tensor], where: str) -> None:
    """See that there are weights, and that each layer has both its matrices, of one rank."""
    if not weights:
        raise ValueError(f"{where} holds no LoRA weights")
    for key, value in weights.items():
        if key.endswith(MAGNITUDE):
            continue
        partner = key.replace(".lora_A.", ".lora_B.") if ".lora_A." in key else key.replace(".lora_B.", ".lora_A.")
        if partner not in weights:
            raise ValueError(f"{where}: {key} is there, {partner} is missing; is the file complete?")
        if ".lora_A." in key and (value.ndim != 2 or value.shape[0] != weights[partner].shape[-1]):
            raise ValueError(
                f"{where}: {key} is {tuple(value.shape)} and its partner {tuple(weights[partner].shape)}; expected "
                "(r, in) and (out, r)"
            )


def check_alike(adapters: Adapters, where: Path) -> None:
    """See that all agents adapt the same layers, with the ranks that the configuration says."""
    form, weights = Agents(**adapters.form()), adapters.weights
    for number, each in enumerate(weights):
        for key, value in each.items():
            if ".lora_A." in key and value.shape[0] != (said := form.ranks(layer_of(key))[number]):
                raise ValueError(f"{where}: agent {number} has rank {value.shape[0]}, the configuration says {said}")
        odd = each.keys() ^ weights[0].keys()
        if odd:
            raise ValueError(f"{where}: agents 0 and {number} adapt different layers: {sorted(odd)[0]} is in one only")
        for key, value in each.items():
            ranked = 0 if ".lora_A." in key else 1  # where the rank stands in the shape
            shapes = [list(of.shape) for of in (value, weights[0][key])]
            if not key.endswith(MAGNITUDE):
                shapes = [shape[:ranked] + shape[ranked + 1 :] for shape in shapes]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{where}: {key} is {tuple(value.shape)} in agent {number}, but "
                    f"{tuple(weights[0][key].shape)} in agent 0"
                )


def layer_of(key: str) -> str:
    """The full name of the layer of a tensor with peft's name."""
    return key.removeprefix(PEFT_PREFIX).rpartition(".lora_")[0]


def split_state(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Sort the names in accelerate's state of the whole module: agent -> peft's name -> name in the state."""
    agents: dict[str, dict[str, str]] = {}
    for key in keys:
        found = _NAMED.fullmatch(key.removeprefix("module."))
        if found and found["agent"] and found["layer"].startswith(STATE_PREFIX):
            layer = found["layer"].removeprefix(STATE_PREFIX)
            name = f"{PEFT_PREFIX}{layer}.lora_{found['side']}.weight"
            agents.setdefault(found["agent"], {})[name] = key
    return agents


def to_ours(agents: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack the adapters of all agents under our task's names: (K, r, in) and (K, out, r), r the largest rank."""
    stacked = {}
    for key in agents[0]:
        values = [each[key] for each in agents]
        shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
        filled = [value.new_zeros(shape) for value in values]
        for whole, value in zip(filled, values, strict=True):
            whole[tuple(map(slice, value.shape))] = value
        stacked[f"{OURS}{key.removeprefix(PEFT_PREFIX).removesuffix('.weight')}"] = torch.stack(filled)
    return stacked


def from_ours(state: Mapping[str, Tensor], form: Agents | None = None) -> list[Weights]:
    """The adapters of each agent in a state of our task, under peft's names; other tensors are passed over.

    Args:
        form: tells the ranks; by default those of the stacked tensors.
    """
    stacked = {
        f"{PEFT_PREFIX}{key.removeprefix(OURS)}{'' if key.endswith(MAGNITUDE) else '.weight'}": value
        for key, value in state.items()
        if key.startswith(OURS)
    }
    count = len(next(iter(stacked.values()), ()))

    def own(key: str, value: Tensor, agent: int) -> Tensor:
        if form is not None and not key.endswith(MAGNITUDE):
            rank = form.ranks(layer_of(key))[agent]
            value = value[:, :rank] if ".lora_A." in key else value[..., :rank]
        return value[agent].contiguous().clone()

    return [{key: own(key, value, agent) for key, value in stacked.items()} for agent in range(count)]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = load_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no file {path}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, found {type(content).__name__}")
    return content


def is_original_folder(path: Path) -> bool:
    """Whether a path is a checkpoint folder of the original."""
    return (path / META).is_file()


def read_original(folder: Path, allow_partial: bool = False) -> Adapters:
    """Read a checkpoint folder of the original; arguments and errors as those of `read`.

    Agents whose files are missing are taken out of accelerate's state, where the folder has that.
    """
    if not is_original_folder(folder):
        raise FileNotFoundError(f"{folder} has no {META}; name a checkpoint_step_<n> or final_checkpoint folder")
    meta = read_json(folder / META)
    number = (int, float)
    kinds = {"r": int, "lora_alpha": number, "lora_dropout": number, "target_modules": list, "K_agents": int}
    wrong = [key for key, kind in kinds.items() if not isinstance(meta.get(key), kind)]  # type: ignore[arg-type]
    if wrong or meta["K_agents"] < 1:
        raise ValueError(f"{folder / META}: {', '.join(wrong) or 'K_agents'} is missing or cannot be so")
    weights = _read_agents(folder, meta["K_agents"], allow_partial)
    beside = _beside(folder)
    config = beside["progress"].get("config")
    found = Adapters(
        weights=weights,
        rank=meta["r"],
        alpha=meta["lora_alpha"],
        dropout=meta["lora_dropout"],
        targets=meta["target_modules"],
        task_type=str(meta.get("task_type", "CAUSAL_LM")),
        mode=str(meta.get("parallel_mode", "sequential")),
        base=config.get("model_name") if isinstance(config, dict) else None,
        backbone=meta.get(BACKBONE),
        **beside,
    )
    check_alike(found, folder)
    return found


def _beside(folder: Path) -> dict[str, Any]:
    """Progress and tokenizer of a folder of adapters, as arguments of `Adapters`."""
    progress = read_json(folder / PROGRESS) if (folder / PROGRESS).is_file() else {}
    return {"progress": progress, "tokenizer": folder / TOKENIZER if (folder / TOKENIZER).is_dir() else None}


def _read_agents(folder: Path, count: int, allow_partial: bool) -> list[Weights]:
    numbers = {int(found[1]): path for path in folder.iterdir() if (found := _WEIGHTS.fullmatch(path.name))}
    beyond = sorted(number for number in numbers if number >= count)
    if beyond:
        raise ValueError(
            f"{folder}: {META} says K_agents {count}, but there is {numbers[beyond[0]].name}; the files of two "
            "checkpoints are mixed, or K_agents is wrong"
        )
    missing = [number for number in range(count) if number not in numbers]
    rescued = _from_state(folder / STATE, missing)
    lost = [number for number in missing if number not in rescued]
    if lost and not (allow_partial and len(lost) < count):
        names = ", ".join(f"{agent_name(number)}_weights.pth" for number in lost)
        raise FileNotFoundError(
            f"{folder}: {META} says K_agents {count}, but {names} is missing"
            + (f", and {STATE} does not hold it either" if (folder / STATE).is_file() else "")
            + ("" if len(lost) == count else "; allow_partial takes the agents that are there")
        )
    if lost:
        log.warning("%s: agents %s are missing; the others are counted anew", folder, ", ".join(map(str, lost)))
    result = []
    for number in range(count):
        if number in numbers:
            content = load_foreign_checkpoint(numbers[number])
            if not isinstance(content, Mapping) or not all(torch.is_tensor(value) for value in content.values()):
                raise ValueError(f"{numbers[number]} holds no tensors by name")
            result.append(adapter_weights(content, agent_name(number), str(numbers[number])))
        elif number in rescued:
            result.append(rescued[number])
    return result


def _from_state(path: Path, numbers: Sequence[int]) -> dict[int, Weights]:
    """Adapters of some agents out of accelerate's state; the backbone's tensors are not read."""
    if not numbers or not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            agents = split_state(file.keys())
            found = {
                number: {name: file.get_tensor(key) for name, key in agents[agent_name(number)].items()}
                for number in numbers
                if agent_name(number) in agents
            }
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error}); is it complete?") from error
    for number, weights in found.items():
        check_pairs(weights, f"{path} ({agent_name(number)})")
    if found:
        log.warning("%s: agent files are missing, their weights come from %s", path.parent, path.name)
    return found


def is_peft_folder(path: Path) -> bool:
    """Whether a path is a folder of LoRA adapters of language models: one, or one for each agent."""
    try:
        folders = _folders(path)
        return bool(folders) and read_json(folders[0] / CONFIG).get("task_type") in (None, "CAUSAL_LM")
    except (OSError, ValueError):
        return False


def read_peft(folder: Path, allow_partial: bool = False) -> Adapters:
    """Read folders `agent{i}` or a single adapter; arguments and errors as those of `read`."""
    folders = _folders(folder)
    if not folders:
        raise FileNotFoundError(f"{folder} has neither {CONFIG} nor folders agent0, agent1, ... with one")
    if folders[0] != folder and not allow_partial:
        there = {path.name for path in folders}
        missing = [agent_name(n) for n in range(_number(folders[-1]) + 1) if agent_name(n) not in there]
        if missing:
            raise FileNotFoundError(f"{folder}: {', '.join(missing)} is missing; allow_partial takes the others")
    configs, weights = [], []
    for path in folders:
        content = _read_weights(path)
        weights.append(adapter_weights(content, path.name, str(path)))
        configs.append(_checked(read_json(path / CONFIG), path, weights[-1]))
    for path, config in zip(folders, configs, strict=True):
        for key in EQUAL:
            if config[key] != configs[0][key]:
                raise ValueError(
                    f"{path / CONFIG}: {key} is {config[key]}, {folders[0].name} has {configs[0][key]}; the agents of "
                    "a crowd have the same"
                )
    first, layers = configs[0], list(dict.fromkeys(map(layer_of, weights[0])))
    found = Adapters(
        layout=PEFT_LAYOUT,
        weights=weights,
        rank=_joined([config["r"] for config in configs]),
        alpha=_joined([config["lora_alpha"] for config in configs]),
        dropout=first["lora_dropout"],
        targets=first["target_modules"],
        rank_pattern=_patterns(configs, "rank_pattern", "r", layers),
        alpha_pattern=_patterns(configs, "alpha_pattern", "lora_alpha", layers),
        rslora=first["use_rslora"],
        dora=first["use_dora"],
        base=first.get("base_model_name_or_path"),
        **_beside(folder),
    )
    check_alike(found, folder)
    return found


def _joined(values: list[Any]) -> Any:
    """One value where all agents have the same, else that of each."""
    return values[0] if values.count(values[0]) == len(values) else values


def _patterns(configs: Sequence[dict[str, Any]], key: str, otherwise: str, layers: Sequence[str]) -> dict[str, Any]:
    """The patterns of all agents in one; where their keys differ, spelled out by layer."""
    every = [config.get(key) or {} for config in configs]
    if all(list(each) == list(every[0]) for each in every):
        used = [name for name in every[0] if any(fits(name, layer) for layer in layers)]
        return {name: _joined([each[name] for each in every]) for name in used}
    found = {layer: [matching(each, layer, config[otherwise]) for each, config in zip(every, configs, strict=True)]
             for layer in layers}  # fmt: skip
    plain = [config[otherwise] for config in configs]
    return {layer: _joined(values) for layer, values in found.items() if values != plain}


def _folders(path: Path) -> list[Path]:
    """The folders of adapters, in the order of their numbers."""
    if (path / CONFIG).is_file():
        return [path]
    if not path.is_dir():
        return []
    found = [each for each in path.iterdir() if _FOLDER.fullmatch(each.name) and (each / CONFIG).is_file()]
    return sorted(found, key=_number)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("agent"))


def _read_weights(folder: Path) -> dict[str, Any]:
    for name in PEFT_WEIGHTS:
        if (folder / name).is_file():
            return load_foreign_checkpoint(folder / name)
    raise FileNotFoundError(f"{folder} has {CONFIG}, but no {PEFT_WEIGHTS[0]}")


def _checked(config: dict[str, Any], folder: Path, weights: Weights) -> dict[str, Any]:
    """A configuration that ours can be, its targets spelled out in one order."""
    where = folder / CONFIG
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{where}: peft_type is {config.get('peft_type')!r}, only LORA is supported")
    refused = [key for key, value in config.items() if value and key not in HEEDED]
    if config.get("bias", "none") != "none":
        refused.append("bias")
    if str(config.get("init_lora_weights")).lower().startswith(BASE_CHANGING):
        refused.append("init_lora_weights")  # the adapter belongs to a backbone that it changed
    if refused:
        said = ", ".join(f"{key}: {config[key]}" for key in refused)
        raise ValueError(f"{where}: {said} is not supported; train or merge the adapter without it")
    absent = [key for key in ("r", "lora_alpha") if not isinstance(config.get(key), int | float)]
    if absent:
        raise ValueError(f"{where}: {', '.join(absent)} is missing or no number")
    order = {name: place for place, name in enumerate(LINEAR_LAYERS)}  # peft keeps a set
    layers = list(dict.fromkeys(map(layer_of, weights)))
    chosen = isinstance(config.get("target_modules"), str) and config["target_modules"] != ALL_LINEAR
    if chosen or config.get("exclude_modules") or 0 in (config.get("layers_to_transform") or ()):
        targets = layers
    else:
        last = dict.fromkeys(name.rpartition(".")[2] for name in layers)
        targets = sorted(last, key=lambda name: order.get(name, len(order)))
    switches = {key: bool(config.get(key)) for key in ("use_rslora", "use_dora")}
    return {**config, "target_modules": targets, "lora_dropout": config.get("lora_dropout", 0.0), **switches}


def read(path: Path, allow_partial: bool = False) -> Adapters:
    """Read a checkpoint folder of the original, or PEFT folders.

    Args:
        allow_partial: pass over agents that are missing; those that are there are counted anew, from 0.

    Raises:
        FileNotFoundError: when there is no such folder, or an agent is missing.
        ValueError: when it is neither, its files are damaged or do not belong together, or an adapter is of a kind that
            is not supported.
    """
    if not path.exists():
        raise FileNotFoundError(f"nothing at {path}")
    if is_original_folder(path):
        return read_original(path, allow_partial)
    if is_peft_folder(path):
        return read_peft(path, allow_partial)
    raise ValueError(f"{path}: unknown layout; {FORMATS}")
