"""Crowds from adapters and a backbone, and our checkpoints from crowds and back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.ci_llm.convert.read import OURS, PART, Adapters, check_pairs, from_ours, layer_of, written_targets
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.registry import public_name
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.convert.checkpoints import loop_state, read_ours
from zoo.convert.engine import AVERAGED, Converted
from zoo.runs import frozen
from zoo.runs.load import build_part

INFERENCE = "zoo.ci_llm.Writer"
Owner = tuple[str, int]  # our name of a stacked parameter, and the agent


def original_order(backbone: Backbone, layers: Sequence[str], count: int) -> list[Owner | None]:
    """What the original's optimizer numbers: all weights of the backbone, and behind a layer's own those of its agents.

    Args:
        layers: full names of the adapted layers.
        count: of the agents.

    Returns:
        One entry per number; None for a weight of the backbone.
    """
    names = [name for name, _ in backbone.model.named_parameters()]
    last = {layer: max(i for i, name in enumerate(names) if name.rpartition(".")[0] == layer) for layer in layers}
    behind = {number: layer for layer, number in last.items()}
    order: list[Owner | None] = []
    for number in range(len(names)):
        order.append(None)
        if number in behind:
            order += [(f"{OURS}{behind[number]}.lora_{side}", agent) for side in "AB" for agent in range(count)]
    return order


def our_optimizer(
    optimizer: Mapping[str, Any], order: Sequence[Owner | None], names: Sequence[str], count: int
) -> tuple[dict[str, Any] | None, list[str]]:
    """Stack the states of the agents; agents without one (the original trained the last alone) begin with zeros.

    Args:
        order: see `original_order`.
        names: our parameters in our optimizer's order.

    Returns:
        Our optimizer's state, or None where there is nothing to take over; and notes.
    """
    groups, old = optimizer.get("param_groups", []), optimizer.get("state", {})
    if len(groups) != 1 or list(groups[0]["params"]) != list(range(len(order))):
        return None, ["optimizer left out: it is not one group of all weights of this backbone and its agents"]
    known: dict[str, dict[int, Any]] = {}
    for number, owner in enumerate(order):
        if owner is not None and number in old:
            known.setdefault(owner[0], {})[owner[1]] = old[number]
    if set(known) != set(names):
        return None, ["optimizer left out: it has no state yet, or not of every adapted layer"]
    absent = [agent for agent in range(count) if not all(agent in states for states in known.values())]
    notes = [f"optimizer: agents {', '.join(map(str, absent))} have no state and begin with zeros"] if absent else []
    state = {number: _stacked(known[name], count) for number, name in enumerate(names)}
    return {"state": state, "param_groups": [{**groups[0], "params": list(range(len(names)))}]}, notes


def their_optimizer(
    optimizer: Mapping[str, Any], order: Sequence[Owner | None], names: Sequence[str]
) -> dict[str, Any] | None:
    """Give each agent its part of our state; None where it is not one group of all our parameters."""
    groups, ours = optimizer["param_groups"], optimizer["state"]
    if len(groups) != 1 or list(groups[0]["params"]) != list(range(len(names))):
        return None
    numbers = {name: number for number, name in enumerate(names)}
    state = {
        number: {
            key: value[owner[1]].clone() if torch.is_tensor(value) and value.ndim else value
            for key, value in ours[numbers[owner[0]]].items()
        }
        for number, owner in enumerate(order)
        if owner is not None and numbers[owner[0]] in ours
    }
    return {"state": state, "param_groups": [{**groups[0], "params": list(range(len(order)))}]}


def _stacked(states: Mapping[int, Mapping[str, Any]], count: int) -> dict[str, Any]:
    """One state of all agents; counts of steps are the largest."""
    some = next(iter(states.values()))
    result: dict[str, Any] = {}
    for key, value in some.items():
        if torch.is_tensor(value) and value.ndim:
            empty = torch.zeros_like(value)
            result[key] = torch.stack([states[agent][key] if agent in states else empty for agent in range(count)])
        else:
            result[key] = max(state[key] for state in states.values())
    return result


def build_crowd(adapters: Adapters, path: Path, backbone: Path | str | None) -> tuple[Crowd, dict[str, Any]]:
    """Put the adapters of a path onto their backbone, by default the one that the files name.

    Returns:
        The crowd in evaluation mode, and its description.
    """
    known = adapters.backbone or {}
    form = {"dtype": known.get("dtype", "float32"), "quantization": known.get("quantization", "none")}
    source = str(backbone) if backbone is not None else _named_backbone(adapters.base, path)
    base = Backbone(source=source, **form)  # type: ignore[arg-type]
    if known and base.fingerprint() != known["sha256"]:
        raise ValueError(
            f"{path} was trained on a backbone with sha256 {known['sha256'][:16]}, {source} has "
            f"{base.fingerprint()[:16]} (as {form['dtype']}, quantization {form['quantization']}); name the folder of "
            "the former with backbone"
        )
    arguments: dict[str, Any] = {
        **adapters.form(),
        "targets": list(adapters.targets),
        "top_layers": None if adapters.blocks is None else len(base.blocks) - adapters.blocks[0],
    }
    layers = list(dict.fromkeys(map(layer_of, adapters.weights[0])))
    if set(layers) < set(base.targets(adapters.targets, arguments["top_layers"])):
        arguments |= {"targets": layers, "top_layers": None}
    crowd = Crowd(base, Agents(**arguments))
    for number, weights in enumerate(adapters.weights):
        try:
            crowd.agents.load_adapter(number, weights)
        except ValueError as error:
            raise ValueError(f"{path} does not fit the backbone {source}: {error}") from error
    backbone_spec, agents_spec = _spec(Backbone, {"source": source, **form}), _spec(Agents, arguments)
    return crowd.eval(), _spec(Crowd, {"backbone": backbone_spec, "agents": agents_spec})


def as_ours(adapters: Adapters, source: Path, backbone: Path | str | None) -> Converted:
    """Adapters as a crowd on its backbone, with the original's optimizer where it can be taken over."""
    crowd, spec = build_crowd(adapters, source, backbone)
    parts: dict[str, Any] = {PART: spec}
    given = isinstance(adapters.tokenizer, Path)
    tokenizer = adapters.tokenizer if given else _backbones_tokenizer(crowd.backbone.source)
    if tokenizer is not None:
        parts["tokenizer"] = _spec(PretrainedTokenizer, {"source": str(tokenizer)})
    counts = (adapters.progress.get(key, 0) for key in ("global_step", "epoch"))
    step, epoch = (value if isinstance(value, int) else 0 for value in counts)
    training: dict[str, Any] = {"loops": loop_state(step, epoch, automatic=True)}
    notes = ["no optimizer: start from it with init_from"]
    if isinstance(adapters.optimizer, Path):
        names = [f"{PART}.{name}" for name, weight in crowd.named_parameters() if weight.requires_grad]
        order = original_order(crowd.backbone, crowd.agents.names, crowd.agents.count)
        converted, notes = our_optimizer(load_foreign_checkpoint(adapters.optimizer), order, names, crowd.agents.count)
        notes += ["schedule left out: it begins anew"]
        training |= {} if converted is None else {"optimizer_states": [converted]}
    recorded = {"parallel_mode": adapters.mode, "base": adapters.base, "progress": adapters.progress}
    specs = {"options": {"template": "{prompt}"}, "original_config": recorded}
    facts = {"agents": len(adapters.weights)}
    return Converted(parts, {PART: crowd}, None, step, epoch, training, specs, facts, notes)


def _backbones_tokenizer(source: str | None) -> str | None:
    """A backbone's source, where it has a tokenizer too; a hub repository has."""
    if source is None or (Path(source).is_dir() and not (Path(source) / "tokenizer_config.json").is_file()):
        return None
    return source


def read_checkpoint(source: Path, backbone: Path | str | None) -> tuple[Adapters, list[str]]:
    """Read our checkpoint as adapters.

    Args:
        backbone: compare it with that of training, and number the optimizer's parameters by it; by default the copy
            beside the checkpoint is used for that, where there is one.
    """
    checkpoint, specs, state, averaged = read_ours(source, INFERENCE)
    described = specs["parts"][PART]["init_args"]
    agents = Agents(**described["agents"]["init_args"])
    weights = from_ours(state, agents)
    if not weights:
        raise ValueError(f"{source} holds no adapters ({OURS}*); is it a checkpoint of CrowdTask?")
    check_pairs(weights[0], str(source))
    record = checkpoint.get("frozen", {}).get(f"{PART}.backbone")
    arguments = dict(described["backbone"]["init_args"])
    base = _backbone_of(arguments, record, source, backbone)
    if base is not None and record is not None:
        frozen.compare(base, record, f"{source} belongs to {PART}.backbone", "backbone")
    known = specs.get("original_config") or {}
    form = {key: str(arguments.get(key, value)) for key, value in (("dtype", "float32"), ("quantization", "none"))}
    progress = known.get("progress") or {"epoch": checkpoint.get("epoch", 0), "global_step": 0, "config": {}}
    step = int(checkpoint.get("global_step", 0))
    tokenizer = build_part(specs, "tokenizer") if "tokenizer" in specs["parts"] else None
    adapters = Adapters(
        weights=weights,
        rank=agents.rank,
        alpha=agents.alpha,
        dropout=agents.dropout,
        targets=written_targets(agents, dict.fromkeys(map(layer_of, weights[0]))),
        rank_pattern=agents.rank_pattern,
        alpha_pattern=agents.alpha_pattern,
        rslora=agents.rslora,
        dora=agents.dora,
        mode=known.get("parallel_mode", "sequential"),
        base=known.get("base", arguments.get("source")),
        backbone=None if record is None else {"sha256": record["sha256"], **form},
        progress={**progress, "global_step": step},
        tokenizer=tokenizer,
    )
    notes = [AVERAGED] if averaged else []
    optimizers = checkpoint.get("optimizer_states") or []
    if len(optimizers) == 1 and base is not None:
        names = [key for key in state if key.startswith(OURS)]
        layers = list(dict.fromkeys(name.removeprefix(OURS).rpartition(".")[0] for name in names))
        adapters.optimizer = their_optimizer(optimizers[0], original_order(base, layers, len(weights)), names)
    if optimizers and adapters.optimizer is None:
        notes.append("optimizer left out: its numbers depend on the backbone; name its folder with backbone")
    return adapters, notes


def _backbone_of(
    arguments: dict[str, Any], record: dict[str, Any] | None, source: Path, given: Path | str | None
) -> Backbone | None:
    """The backbone that was named, or the copy beside a checkpoint."""
    copy = source.parent / record["folder"] if record is not None and record["folder"] else None
    folder = given if given is not None else copy
    if folder is None or (given is None and not Path(folder).is_dir()):
        return None
    return Backbone(**{**arguments, "source": str(folder), "revision": None, "config": None})


def _named_backbone(name: str | None, path: Path) -> str:
    """The backbone that files name: a folder beside them, or else a folder or hub id as it stands there."""
    if not name:
        raise FileNotFoundError(f"{path} names no backbone; give its transformers folder or hub id as backbone")
    beside = [folder / name for folder in (path, path.parent) if (folder / name / "config.json").is_file()]
    if not beside and not Path(name).is_dir() and "/" not in name:
        raise FileNotFoundError(
            f"{path} names the backbone {name!r}, which is no folder beside it; give its folder or hub id as backbone"
        )
    return str(beside[0]) if beside else name


def _spec(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    """Describe an object with all its arguments, for a resume compares them."""
    known = inspect.signature(cls).parameters.values()
    defaults = {each.name: each.default for each in known if each.default is not inspect.Parameter.empty}
    arguments = {
        name: list(value) if isinstance(value, tuple) else value for name, value in {**defaults, **given}.items()
    }
    return {"class_path": public_name(cls), "init_args": arguments}
