"""Crowds from adapters and a backbone, and our checkpoints from crowds and back."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from zoo.ci_llm.convert.read import OURS, PART, Adapters, check_pairs, from_ours, layer_of, written_targets
from zoo.ci_llm.data.tokenizers import PretrainedTokenizer
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.registry import public_name
from zoo.convert.engine import EMA_NOTE, ConvertedModel, read_zoo_checkpoint
from zoo.runs import frozen
from zoo.runs.load import build_component

INFERENCE = "zoo.ci_llm.Writer"


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


def as_ours(adapters: Adapters, source: Path, backbone: Path | str | None) -> ConvertedModel:
    """Adapters as a crowd on its backbone."""
    crowd, spec = build_crowd(adapters, source, backbone)
    parts: dict[str, Any] = {PART: spec}
    given = isinstance(adapters.tokenizer, Path)
    tokenizer = adapters.tokenizer if given else _backbones_tokenizer(crowd.backbone.source)
    if tokenizer is not None:
        parts["tokenizer"] = _spec(PretrainedTokenizer, {"source": str(tokenizer)})
    counts = (adapters.progress.get(key, 0) for key in ("global_step", "epoch"))
    step, epoch = (value if isinstance(value, int) else 0 for value in counts)
    recorded = {"parallel_mode": adapters.mode, "base": adapters.base, "progress": adapters.progress}
    specs = {"options": {"template": "{prompt}"}, "original_config": recorded}
    facts = {"agents": len(adapters.weights)}
    return ConvertedModel(parts, {PART: crowd}, step=step, epoch=epoch, specs=specs, facts=facts)


def _backbones_tokenizer(source: str | None) -> str | None:
    """A backbone's source, where it has a tokenizer too; a hub repository has."""
    if source is None or (Path(source).is_dir() and not (Path(source) / "tokenizer_config.json").is_file()):
        return None
    return source


def read_checkpoint(source: Path, backbone: Path | str | None) -> tuple[Adapters, list[str]]:
    """Read our checkpoint as adapters.

    Args:
        backbone: compare it with that of training; by default the copy beside the checkpoint, where there is one.
    """
    checkpoint, specs, state, averaged = read_zoo_checkpoint(source, INFERENCE)
    described = specs["components"][PART]["init_args"]
    agents = Agents(**described["agents"]["init_args"])
    weights = from_ours(state, agents)
    if not weights:
        raise ValueError(f"{source} holds no adapters ({OURS}*); is it a checkpoint of CrowdTask?")
    check_pairs(weights[0], str(source))
    path = f"{PART}.backbone"
    record = checkpoint.get("frozen", {}).get(path)
    arguments = dict(described["backbone"]["init_args"])
    base = _backbone_of(arguments, record, source, backbone)
    if base is not None and record is not None:
        frozen.verify_frozen_weights({path: base}, {path: record}, str(source))
    known = specs.get("original_config") or {}
    form = {key: str(arguments.get(key, value)) for key, value in (("dtype", "float32"), ("quantization", "none"))}
    progress = known.get("progress") or {"epoch": checkpoint.get("epoch", 0), "global_step": 0, "config": {}}
    step = int(checkpoint.get("global_step", 0))
    tokenizer = build_component(specs, "tokenizer") if "tokenizer" in specs["components"] else None
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
    notes = [EMA_NOTE] if averaged else []
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
