"""Vocoders and restorers beside others: python -m scripts.bench.audio_peers speed|start|restore|all.

Vocoders against those of the packages vocos (`pip install --no-deps vocos encodec`) and transformers, at equal weights;
Miipher-2's restorer against denoisers on spectra, written here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median as middle
from typing import Any

import torch
from torch import Tensor, nn

from scripts.bench.audio_peers_others import MaskNet, OurRestorer, SpectralGate, TransformersPackage, VocosPackage
from scripts.bench.tools import Finding, command, interleave, median, times_as_fast
from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root
from zoo.hifigan.convert.rules import to_our_keys

RECIPES = {"vocos": "vocos_24k", "transformers": "24k"}  # whose generator has the peer's sizes, by package
TOLERANCE = 1e-4


def speed(quick: bool) -> list[Finding]:
    """Processor time of the same audio from the same frames, at equal weights, by turns."""
    findings = []
    for name, peer in PEERS.items():
        spec = _spec(name)
        ours, theirs = build(spec).remove_weight_norm_(), peer(spec["init_args"])
        share(ours, theirs)
        for net in (ours, theirs):
            net.eval().requires_grad_(False)
        for seconds in (1, 1 if quick else 10):
            frames = torch.randn(1, ours.in_channels, seconds * 24000 // ours.hop_length)
            with torch.inference_mode():
                wanted, found = theirs(frames).flatten(), ours(frames).flatten()
            length = min(len(wanted), len(found))
            if (found[:length] - wanted[:length]).abs().max() > TOLERANCE * wanted.abs().max():
                raise ValueError(f"{name} gives other audio from the same weights: they cannot be compared")
            nets = {"ours": partial(run, ours, frames), name: partial(run, theirs, frames)}
            costs = interleave(nets, 1 if quick else 9)
            more = {f"{each}, wall s a s of audio": median(cost).wall / seconds for each, cost in costs.items()}
            if isinstance(theirs, VocosPackage):  # its backbone is the same layers of torch
                with torch.inference_mode():
                    hidden = ours.backbone(frames)
                heads = {who: partial(run, net.head, hidden) for who, net in (("ours", ours), (name, theirs))}
                parts = interleave(heads, 1 if quick else 99)
                heads_ms = {who: 1000 * median(cost).cpu / seconds for who, cost in parts.items()}
                more |= {f"{who}, head, cpu ms a s of audio": value for who, value in heads_ms.items()}
            title = f"{type(ours).__name__}, {seconds} s, to {name}: times as fast"
            findings.append(times_as_fast(title, costs, at_least=1.0, **more))
    return findings


def start(quick: bool) -> list[Finding]:
    """Start-up to a second of audio, and peak memory after 10 s, in fresh processes that import one package (Linux)."""
    findings = []
    seconds = 1 if quick else 10
    for name, peer in PEERS.items():
        spec = _spec(name)
        makes = {
            "ours": f"from zoo.common.build import build\nnet = build({spec!r}).remove_weight_norm_()",
            "theirs": f"from {peer.__module__} import {peer.__name__}\nnet = {peer.__name__}({spec['init_args']!r})",
        }
        inputs = [f"1, {spec['init_args']['in_channels']}, {94 * length}" for length in (1, seconds)]
        rounds = [{who: _child(make, *inputs) for who, make in makes.items()} for _ in range(1 if quick else 3)]
        for place, title in enumerate(("wall s to the first second of audio", f"peak MiB, {seconds} s of audio")):
            details = {who: middle(each[who][place] for each in rounds) for who in makes}
            ratio = middle(each["ours"][place] / each["theirs"][place] for each in rounds)
            findings.append(Finding(f"{title}, to {name}", ratio, "x", at_most=1.0, details=details))
    return findings


CHILD = """import time
begun = time.perf_counter()
import torch
torch.set_num_threads(1)
{make}
net.eval()
with torch.inference_mode():
    net(torch.randn({first}))
    first = time.perf_counter() - begun
    net(torch.randn({whole}))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(first, int(peak) / 1024)
"""


def _child(make: str, first: str, whole: str) -> tuple[float, float]:
    """Wall seconds until a net has computed a first input of a shape, and peak MiB after another one's."""
    code = CHILD.format(make=make, first=first, whole=whole)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    first, peak = done.stdout.split()[-2:]
    return float(first), float(peak)


def _spec(name: str) -> dict[str, Any]:
    """Our generator of a peer's sizes."""
    return _read(f"hifigan/{RECIPES[name]}")["generator"]


def _read(recipe: str) -> dict[str, Any]:
    return load_recipe(recipe_root() / f"{recipe}.yaml")["model"]["init_args"]


def restore(quick: bool) -> list[Finding]:
    """Processor time for a second of audio, by turns; start-up and peak memory in fresh processes (Linux)."""
    seconds, nets = 1 if quick else 4, {}
    waveform = 0.1 * torch.randn(1, seconds * 16000)
    contestants = restorers(quick)
    for name, (kind, arguments) in contestants.items():
        nets[name] = kind(*arguments).eval().requires_grad_(False)
    costs = interleave({name: partial(run, net, waveform) for name, net in nets.items()}, 1 if quick else 3)
    findings = []
    for name, (kind, arguments) in contestants.items():
        make = f"from {kind.__module__} import {kind.__name__}\nnet = {kind.__name__}(*{arguments!r})"
        children = [_child(make, "1, 16000", f"1, {waveform.shape[1]}") for _ in range(1 if quick else 2)]
        cost = median(costs[name])
        details = {
            "by wall time": cost.wall / seconds,
            "million weights": sum(each.numel() for each in nets[name].parameters()) / 1e6,
            "wall s to the first second of audio": middle(first for first, _ in children),
            f"peak MiB, {seconds} s of audio": middle(peak for _, peak in children),
        }
        findings.append(Finding(f"restore, {name}", cost.cpu / seconds, "s a s", details=details))
    return findings


def restorers(quick: bool) -> dict[str, tuple[type[nn.Module], tuple[Any, ...]]]:
    """What restores, by name: a class of `audio_peers_others` and its arguments; random weights, tiny ones when quick.

    Ours are six blocks of HuBERT-base with adapters, as `adapter_layer_6` has them, and each vocoder of the recipes;
    the mask net has as many weights.
    """
    names = ("smoke_adapter", "smoke_finetune", "smoke_vocos") if quick else (
        "adapter_layer_6", "hifigan_pretrain_layer_6", "vocos_pretrain_24k",
    )  # fmt: skip
    adapter, *vocoders = (_read(f"miipher/{name}") for name in names)
    encoder = adapter["encoder"]
    if not quick:
        encoder["init_args"]["backbone"]["init_args"] |= {"source": None, "config": {"model_type": "hubert"}}
    generators = [each["generator"] for each in vocoders]
    ours = {f"ours, {each['class_path'].split('.')[-1]}": (OurRestorer, (encoder, each)) for each in generators}
    return {**ours, "mask net": (MaskNet, (2 if quick else 96,)), "spectral gate": (SpectralGate, ())}


def share(ours: nn.Module, theirs: nn.Module) -> None:
    """Give our generator the weights of a peer's."""
    if isinstance(theirs, VocosPackage):
        state = theirs.state_dict()
        ours.load_state_dict(to_our_keys({key: value for key, value in state.items() if ".istft." not in key}))
        return
    left: dict[tuple[int, ...], list[Tensor]] = {}  # by shape, in the order in which both have them
    for value in theirs.parameters():
        left.setdefault(tuple(value.shape), []).append(value.detach())
    ours.load_state_dict({key: left[tuple(value.shape)].pop(0) for key, value in ours.state_dict().items()})


def run(net: Callable[[Tensor], Tensor], frames: Tensor) -> None:
    """Make audio of frames."""
    with torch.inference_mode():
        net(frames)


PEERS: dict[str, type[nn.Module]] = {"vocos": VocosPackage, "transformers": TransformersPackage}
BENCHMARKS = {"speed": speed, "start": start, "restore": restore}


if __name__ == "__main__":
    command("audio_peers", BENCHMARKS)
