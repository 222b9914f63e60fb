"""Crowds from adapters and a backbone, and checkpoints of the zoo from and to adapters."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.convert.read import Adapters, Weights, check_pairs, layer_of
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer, Tokenizer
from zoo.ci_llm.nets.agents import PEFT_PREFIX, Agents
from zoo.ci_llm.nets.backbone import ALL_LINEAR, Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.registry import public_name
from zoo.convert.engine import EMA_NOTE, ConvertedModel, read_zoo_checkpoint
from zoo.runs import frozen_files
from zoo.runs.load import build_component

INFERENCE = "zoo.ci_llm.TextGenerator"
COMPONENT = "crowd"  # name of the net in the task
ZOO_PREFIX = f"{COMPONENT}.agents.adapters."  # of our tensors {layer}.lora_A, stacked over agents


def to_zoo_state(agents: Sequence[Weights]) -> dict[str, Tensor]:
    """Stack the adapters of all agents under our task's names: A (K, r, in) and B (K, out, r)."""
    return {
        f"{ZOO_PREFIX}{key.removeprefix(PEFT_PREFIX).removesuffix('.weight')}": torch.stack([w[key] for w in agents])
        for key in agents[0]
    }


def from_zoo_state(state: Mapping[str, Tensor]) -> list[Weights]:
    """The adapters of each agent in a state of our task, under peft's names; other tensors are ignored."""
    stacked = {
        f"{PEFT_PREFIX}{key.removeprefix(ZOO_PREFIX)}.weight": value
        for key, value in state.items()
        if key.startswith(ZOO_PREFIX)
    }
    count = len(next(iter(stacked.values()), ()))
    return [{key: value[agent].contiguous().clone() for key, value in stacked.items()} for agent in range(count)]


def adapters_of(
    crowd: Crowd, progress: Mapping[str, Any] | None = None, tokenizer: Path | Tokenizer | None = None
) -> Adapters:
    """The adapters of a crowd; further arguments as the attributes of `Adapters`."""
    agents, backbone = crowd.agents, crowd.backbone
    dtype = str(backbone.model.dtype).removeprefix("torch.")
    return Adapters(
        weights=[{k: v.cpu().clone() for k, v in agents.adapter(number).items()} for number in range(agents.count)],
        **_describe_agents(agents, agents.names),
        base=backbone.source,
        backbone={"sha256": backbone.fingerprint(), "dtype": dtype, "quantization": backbone.quantization},
        progress=dict(progress or {}),
        tokenizer=tokenizer,
    )


def _describe_agents(agents: Agents, layers: Iterable[str]) -> dict[str, Any]:
    """Arguments of `Adapters`; a regular expression is replaced by the adapted layers' names."""
    targets = list(agents.targets)
    if agents.targets == ALL_LINEAR:
        targets = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
    elif isinstance(agents.targets, str):
        targets = list(layers)
    form = {"rank": agents.rank, "alpha": agents.alpha, "dropout": agents.dropout, "rslora": agents.rslora}
    return {**form, "targets": targets}


def build_crowd(adapters: Adapters, path: Path, backbone: Path | str | None) -> tuple[Crowd, dict[str, Any]]:
    """Build the crowd of the adapters of a path, on the backbone that the files name by default.

    Returns:
        The crowd in evaluation mode, and its description.
    """
    record = adapters.backbone or {}
    form = {"dtype": record.get("dtype", "float32"), "quantization": record.get("quantization", "none")}
    source = str(backbone) if backbone is not None else _find_backbone(adapters.base, path)
    base = Backbone(source=source, **form)  # type: ignore[arg-type]
    if record and base.fingerprint() != record["sha256"]:
        raise ValueError(
            f"{path} was trained on a backbone with sha256 {record['sha256'][:16]}, {source} has "
            f"{base.fingerprint()[:16]} (as {form['dtype']}, quantization {form['quantization']}); name the folder of "
            "the former with backbone"
        )
    arguments: dict[str, Any] = {
        "count": len(adapters.weights),
        "rank": adapters.rank,
        "alpha": adapters.alpha,
        "dropout": adapters.dropout,
        "rslora": adapters.rslora,
        "targets": list(adapters.targets),
        "top_layers": None if adapters.blocks is None else len(base.blocks) - adapters.blocks[0],
    }
    if set(adapters.layers) < set(base.targets(adapters.targets, arguments["top_layers"])):
        arguments |= {"targets": adapters.layers, "top_layers": None}
    crowd = Crowd(base, Agents(**arguments))
    for number, weights in enumerate(adapters.weights):
        try:
            crowd.agents.load_adapter(number, weights)
        except ValueError as error:
            raise ValueError(f"{path} does not fit the backbone {source}: {error}") from error
    backbone_spec, agents_spec = _spec(Backbone, {"source": source, **form}), _spec(Agents, arguments)
    return crowd.eval(), _spec(Crowd, {"backbone": backbone_spec, "agents": agents_spec})


def to_zoo(adapters: Adapters, source: Path, backbone: Path | str | None) -> ConvertedModel:
    """Adapters as a crowd on its backbone, with a tokenizer where one is known."""
    crowd, spec = build_crowd(adapters, source, backbone)
    parts: dict[str, Any] = {COMPONENT: spec}
    nets: dict[str, Any] = {COMPONENT: crowd}
    files = adapters.tokenizer if isinstance(adapters.tokenizer, Path) else _backbone_tokenizer(crowd.backbone.source)
    if files is not None:
        nets["tokenizer"] = PretrainedTokenizer(str(files))
        parts["tokenizer"] = _spec(PretrainedTokenizer, {"source": str(files)})
    counts = (adapters.progress.get(key, 0) for key in ("global_step", "epoch"))
    step, epoch = (value if isinstance(value, int) else 0 for value in counts)
    original = {"parallel_mode": adapters.mode, "base": adapters.base, "progress": adapters.progress}
    specs = {"options": {"template": "{prompt}", **_recipe_options(adapters.progress)}, "original_config": original}
    facts = {"agents": len(adapters.weights)}
    return ConvertedModel(parts, nets, step=step, epoch=epoch, specs=specs, facts=facts)


def _recipe_options(progress: Mapping[str, Any]) -> dict[str, Any]:
    """How prompts become answers, where the progress of adapters has a recipe of ours."""
    options = progress
    for key in ("config", "model", "init_args"):
        options = options.get(key) or {}
        if not isinstance(options, Mapping):
            return {}
    return _select_options(options)


def _select_options(options: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {"template": str, "prompt_field": str, "max_new_tokens": int}
    return {key: options[key] for key, kind in kinds.items() if type(options.get(key)) is kind}


def _backbone_tokenizer(source: str | None) -> str | None:
    """A backbone's source, where it has a tokenizer; a hub repository has."""
    if source is None or (Path(source).is_dir() and not (Path(source) / "tokenizer_config.json").is_file()):
        return None
    return source


def read_checkpoint(source: Path, backbone: Path | str | None) -> tuple[Adapters, list[str]]:
    """Read a checkpoint of the zoo as adapters.

    Args:
        backbone: compare it with that of training; by default the copy in the run, where there is one.
    """
    checkpoint, specs, state, averaged = read_zoo_checkpoint(source, INFERENCE)
    weights = from_zoo_state(state)
    if not weights:
        raise ValueError(f"{source} holds no adapters ({ZOO_PREFIX}*); is it a checkpoint of CrowdTask?")
    check_pairs(weights[0], str(source))
    described = specs["components"][COMPONENT]["init_args"]
    arguments, records = dict(described["backbone"]["init_args"]), checkpoint.get("frozen", {})
    path = f"{COMPONENT}.backbone"
    components = copy.deepcopy(specs["components"])
    copies = frozen_files.use_local_copies(components, records, source.parent)
    folder = backbone if backbone is not None else copies.get(path)
    if folder is not None and path in records:
        base = Backbone(**{**arguments, "source": str(folder), "revision": None, "config": None})
        frozen_files.verify_frozen_weights({path: base}, {path: records[path]}, str(source))
    original = specs.get("original_config") or {}
    form = {key: str(arguments.get(key, value)) for key, value in (("dtype", "float32"), ("quantization", "none"))}
    progress = original.get("progress") or {
        "epoch": checkpoint.get("epoch", 0),
        "config": {"model": {"init_args": _select_options(specs.get("options", {}))}},
    }
    tokenizer = None
    if "tokenizer" in components:
        tokenizer = build_component({**specs, "components": components}, "tokenizer")
    adapters = Adapters(
        weights=weights,
        **_describe_agents(Agents(**described["agents"]["init_args"]), dict.fromkeys(map(layer_of, weights[0]))),
        mode=original.get("parallel_mode", "sequential"),
        base=original.get("base", arguments.get("source")),
        backbone={"sha256": records[path]["sha256"], **form} if path in records else None,
        progress={**progress, "global_step": int(checkpoint.get("global_step", 0))},
        tokenizer=tokenizer,
    )
    return adapters, [EMA_NOTE] if averaged else []


def _find_backbone(name: str | None, path: Path) -> str:
    """The backbone that files name: a folder next to them, or else a folder or hub id of that name."""
    if not name:
        raise FileNotFoundError(f"{path} names no backbone; give its transformers folder or hub id as backbone")
    folders = [folder / name for folder in (path, path.parent) if (folder / name / "config.json").is_file()]
    if not folders and not Path(name).is_dir() and "/" not in name:
        raise FileNotFoundError(
            f"{path} names the backbone {name!r}, which is no folder next to it; give its folder or hub id as backbone"
        )
    return str(folders[0]) if folders else name


def _spec(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Describe an object with all its arguments, since a resume compares them."""
    parameters = inspect.signature(cls).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    init_args = {key: list(it) if isinstance(it, tuple) else it for key, it in {**defaults, **arguments}.items()}
    return {"class_path": public_name(cls), "init_args": init_args}
