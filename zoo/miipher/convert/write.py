"""Our cleaner and vocoder as files of the Miipher-2 reproductions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.common.atomic import replacing, write_atomic
from zoo.hifigan.convert.recipe import CONFIG_NAME
from zoo.hifigan.nets.conditioners import PrenetConditioner
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.convert.names import State, join_cleaner, to_open_miipher
from zoo.miipher.convert.ours import their_training
from zoo.miipher.convert.read import UNIFIED_TYPE, is_unified
from zoo.miipher.convert.vocoder import SAMPLE_RATE, hifigan_config, vocoder_file
from zoo.miipher.nets.adapters import OpenMiipherAdapters, ParallelAdapters
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner
from zoo.runs.checkpoints import load_checkpoint
from zoo.runs.export import is_export, parts_state
from zoo.runs.folder import find_checkpoint
from zoo.runs.load import build_parts, read_parts

README = """# Miipher-2

Adapter and vocoder in the layout of the Miipher-2 reproduction, written by the zoo.
The licence of the weights is that of the data and checkpoints they come from.
"""


def to_original(
    module: nn.Module,
    path: Path,
    backbone: Path | str | None = None,
    step: int = 0,
    others: Mapping[str, Tensor] | None = None,
    sample_rate: int = SAMPLE_RATE,
    training: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a cleaner or a generator as an original's file.

    Args:
        module: a `Cleaner` with parallel adapters (`.pt`) or those of Open-Miipher-2 (`.pth`); a `Generator` on
            features (`.ckpt`, or `.pt` with the older prenet, beside which a config.json is written).
        path: the file.
        backbone: the whole backbone's folder or hub id; by default where the cleaner's came from.
        step: batches trained.
        others: `mpd.*` and `msd.*` that go with a generator.
        sample_rate: of the generator's audio, in Hz.
        training: further entries of an adapter's file.

    Returns:
        The files written.

    Raises:
        ValueError: when no file of the originals can hold the module, or the name does not fit.
    """
    if isinstance(module, Cleaner):
        content, suffix = _cleaner_content(module, backbone, step, training or {})
    elif isinstance(module, Generator):
        content = vocoder_file(module, others or {}, sample_rate, step)
        suffix = ".pt" if isinstance(module.conditioner, PrenetConditioner) else ".ckpt"
    else:
        raise ValueError(f"expected a Cleaner or a Generator, found {type(module).__name__}")
    if path.suffix != suffix:
        raise ValueError(f"{path}: the originals keep a {type(module).__name__} of this kind in a {suffix} file")
    write_atomic(path, lambda file: torch.save(content, file))
    if not (isinstance(module, Generator) and suffix == ".pt"):
        return [path]
    config = path.with_name(CONFIG_NAME)
    write_atomic(config, lambda file: file.write(json.dumps(hifigan_config(module, sample_rate), indent=2).encode()))
    return [path, config]


def whole_backbone(cleaner: Cleaner, source: Path | str | None) -> tuple[State, str]:
    """All blocks of the backbone that a cleaner uses the first of.

    Args:
        cleaner: whose own tensors come before those of the source.
        source: folder or hub id; None takes the cleaner's own.

    Returns:
        (tensors by transformers' names, the source's name).
    """
    own = cleaner.backbone
    place = source if source is not None else own.source
    if source is None and own.taken_from is not None and not (own.source and Path(own.source).is_dir()):
        place = own.taken_from
    if place is None:
        return own.model.state_dict(), own.family
    from transformers import AutoConfig

    settings = AutoConfig.from_pretrained(str(place))
    legacy = settings.model_type == "wavlm" and own.family == "hubert"
    whole = Backbone(
        layer=settings.num_hidden_layers,
        source=str(place),
        family="wavlm_as_hubert" if legacy else "auto",
        final_norm=True,
    )
    return {**whole.model.state_dict(), **own.model.state_dict()}, str(place)


def _cleaner_content(
    cleaner: Cleaner, backbone: Path | str | None, step: int, training: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    style = cleaner.adapters
    if isinstance(style, OpenMiipherAdapters):
        return to_open_miipher(style.state_dict(), style.learnable_scale), ".pth"
    if not isinstance(style, ParallelAdapters):
        raise ValueError(f"the originals have no {type(style).__name__}; use `zoo export`")
    state, name = whole_backbone(cleaner, backbone)
    config = {
        "model": {
            "hubert_model_name": name,
            "hubert_layer": cleaner.backbone.layer,
            "adapter_hidden_dim": style.hidden_dim,
            "model_type": cleaner.backbone.family,
        }
    }
    content = {
        "step": step,
        "model_state_dict": join_cleaner(state, style.state_dict()),
        "optimizer_state_dict": {},
        "scheduler_state_dict": {},
        "config": config,
    }
    return {**content, **training}, ".pt"


def from_ours(source: Path, target: Path, backbone: Path | str | None) -> dict[str, Any]:
    """Write a checkpoint, run or export of ours in the originals' layouts; see `zoo.miipher.convert.convert`."""
    specs, state, fused = read_parts(source, ema=False)
    if not str(specs["inference"]).startswith("zoo.miipher."):
        raise ValueError(f"{source} is no Miipher-2 checkpoint of the zoo: its inference is {specs['inference']}")
    parts = build_parts(specs, source if source.is_dir() else source.parent)
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            if name in fused:
                part.fuse_()  # type: ignore[operator]
            part.load_state_dict(parts_state(state, name))
    encoder, generator = parts.get("encoder"), parts.get("generator")
    step = int(specs.get("step") or 0)
    rate = int(parts.get("sample_rate", SAMPLE_RATE))
    others = {key: value for key, value in state.items() if key.startswith(("mpd.", "msd."))}
    training: dict[str, Any] = {}
    if isinstance(encoder, Cleaner) and isinstance(encoder.adapters, ParallelAdapters) and not is_export(source):
        training = their_training(load_checkpoint(find_checkpoint(source)), len(encoder.adapters.blocks))
        if "original_config" in specs:
            training["config"] = specs["original_config"]
    nets = {"adapter": encoder if isinstance(encoder, Cleaner) else None, "vocoder": generator}
    jobs = _jobs({name: net for name, net in nets.items() if net is not None}, target, step)
    notes = (
        ["the generator was fused: its weight norm was put back, its function is the same"]
        if "generator" in fused
        else []
    )

    def write(folder: Path) -> list[Path]:
        written = []
        for name, (net, file) in jobs.items():
            extra = {"training": training} if name == "adapter" else {"others": others, "sample_rate": rate}
            written += to_original(net, folder / file, backbone, step, **extra)
        return written

    if target.suffix:
        written = write(target.parent)
    else:
        if target.exists() and not is_unified(target):
            raise ValueError(f"{target} exists and is no Miipher-2 folder; choose another")
        with replacing(target) as aside:
            aside.mkdir()
            names = [file.name for file in write(aside)]
            config = _unified_config(jobs, backbone, rate, step)
            (aside / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")
            (aside / "README.md").write_text(README, encoding="utf-8")
        written = [target / name for name in [*names, CONFIG_NAME, "README.md"]]
    return {
        "system": "miipher",
        "source": str(source),
        "target": [str(file) for file in written],
        "step": step,
        "notes": notes,
    }


def _jobs(nets: Mapping[str, Any], target: Path, step: int) -> dict[str, tuple[Any, str]]:
    """Which net goes into which file of the target's folder."""
    if not nets:
        raise ValueError("neither adapters nor a generator: nothing that an original's file could hold")
    if not target.suffix:
        names = {"adapter": f"checkpoint_{step // 1000}k.pt", "vocoder": f"epoch=0-step={step}.ckpt"}
        if isinstance(getattr(nets.get("vocoder"), "conditioner", None), PrenetConditioner):
            raise ValueError(f"{target}: a vocoder with the older prenet does not go into a folder; name a .pt file")
        if "adapter" in nets and isinstance(nets["adapter"].adapters, OpenMiipherAdapters):
            raise ValueError(f"{target}: adapters of Open-Miipher-2 go into a file; name a .pth file")
        return {name: (net, names[name]) for name, net in nets.items()}
    wanted = {".ckpt": ("vocoder",), ".pth": ("adapter",), ".pt": ("adapter", "vocoder")}.get(target.suffix, ())
    found = [name for name in wanted if name in nets]
    if not found:
        raise ValueError(
            f"{target}: adapters go into a .pt (Open-Miipher-2: .pth) file, a vocoder into a .ckpt (with a prenet: "
            f".pt) file, both into a folder; there is {' and '.join(nets)} to write"
        )
    return {found[0]: (nets[found[0]], target.name)}


def _unified_config(
    jobs: Mapping[str, tuple[Any, str]], backbone: Path | str | None, sample_rate: int, step: int
) -> dict[str, Any]:
    components: dict[str, Any] = {}
    if "adapter" in jobs:
        cleaner, file = jobs["adapter"]
        components["adapter"] = {
            "architecture": "parallel_adapter",
            "base_model": str(base) if (base := backbone or cleaner.backbone.source) else None,
            "hubert_layer": cleaner.backbone.layer,
            "adapter_hidden_dim": cleaner.adapters.hidden_dim,
            "checkpoint_file": file,
        }
    if "vocoder" in jobs:
        file = jobs["vocoder"][1]
        components["vocoder"] = {"base_architecture": "hifigan", "checkpoint_file": file, "training_step": step}
    return {"model_type": UNIFIED_TYPE, "components": components, "output_sampling_rate": sample_rate}
