"""Benchmarks of Miipher-2: python -m scripts.bench.miipher step|original|restore|all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.tools import Cost, Finding, command, interleave, median, peak_memory, times_as_fast
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.hifigan.nets.generator import Generator
from zoo.miipher.inference.restorer import Restorer
from zoo.miipher.losses import Reduction, feature_loss
from zoo.miipher.nets.adapters import ParallelAdapters
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner
from zoo.miipher.nets.families import SAMPLE_RATE
from zoo.training.resume import BucketBatchSampler, ResumableBatchSampler

OUTPUT_RATE = 22050


@dataclass(frozen=True)
class Size:
    """What is measured.

    Args:
        config: of the backbone, in transformers' names.
        layer: block whose output is the feature.
        hidden_dim: of the adapters.
        channels: of the vocoder before its first up-sampling.
        seconds: of the longest clip of a training batch, the median clip of a small epoch, and a clip to restore.
        quick: one round of each, to see that it runs; figures are then no evidence.
    """

    config: dict[str, Any]
    layer: int
    hidden_dim: int
    channels: int
    seconds: tuple[float, float, int]
    quick: bool

    def rounds(self, full: int) -> int:
        """Choose a number of rounds."""
        return 1 if self.quick else full


HUBERT_BASE = {"model_type": "hubert", "hidden_size": 768, "num_hidden_layers": 12}  # as are transformers' defaults
TINY = {
    "model_type": "hubert", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 40, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "conv_dim": [8] * 7,
}  # fmt: skip
FULL = Size(HUBERT_BASE, 6, 768, 512, (3.0, 2.0, 20), quick=False)
SMALL = Size(TINY, 2, 24, 16, (1.0, 0.6, 3), quick=True)


class WholeBackbone(Backbone):
    """A backbone that computes all its blocks and gives the output of an earlier one, as the original does.

    Args:
        size: of the nets; adapters belong to the blocks up to its layer.
        pad: see `Backbone`.
    """

    def __init__(self, size: Size, pad: bool = True) -> None:
        super().__init__(size.config["num_hidden_layers"], config=size.config, pad=pad)
        self.layer = size.layer
        self._kept: list[Tensor] = []
        self.blocks[-1].register_forward_hook(self._keep)
        self.model.encoder.register_forward_hook(self._give)

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks up to `layer`; later ones run all the same."""
        return super().blocks[: self.layer]

    def _keep(self, block: nn.Module, inputs: Any, output: Tensor) -> None:
        self._kept.append(output)

    def _give(self, encoder: nn.Module, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = self._kept.pop()
        return output


class AdapterStep:
    """The training step of stage 1 as a plain loop: target, prediction, loss, backward pass, AdamW.

    Args:
        cleaner: what is trained.
    """

    reduction: Reduction = "item"
    masked = True

    def __init__(self, cleaner: Cleaner) -> None:
        self.cleaner = cleaner.train()
        self.target: Callable[[Tensor, Tensor | None], Tensor] = cleaner.target
        trained = [p for p in cleaner.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, 2e-4, (0.9, 0.95), weight_decay=0.01)

    def __call__(self, clips: Sequence[Tensor]) -> float:
        """Train on clips (2, T), clean and noisy, of any lengths; returns the loss."""
        longest = max(clip.shape[1] for clip in clips)
        clean, noisy = torch.stack([F.pad(clip, (0, longest - clip.shape[1])) for clip in clips], dim=1)
        lengths = torch.tensor([clip.shape[1] for clip in clips]) if self.masked else None
        with torch.no_grad():
            target = self.target(clean, lengths)
        frames = None if lengths is None else self.cleaner.frames(lengths)
        terms = feature_loss(self.cleaner(noisy, lengths), target, frames, self.reduction)
        loss = torch.stack(list(terms.values())).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class OriginalStep(AdapterStep):
    """The original's order of work, written from its description.

    All blocks run for prediction and target; the target comes from a second copy of the backbone; padding counts as
    speech, for there is no mask, and the loss is one mean over everything.

    Args:
        size: of the nets.
    """

    reduction: Reduction = "batch"
    masked = False

    def __init__(self, size: Size) -> None:
        super().__init__(Cleaner(WholeBackbone(size, pad=False), ParallelAdapters(size.hidden_dim)))
        self.target = self.extractor = WholeBackbone(size, pad=False)


def step(size: Size) -> list[Finding]:
    """The adapter's training step with the truncated and with the whole backbone, same masks and clips."""
    clips = made_clips([size.seconds[0], size.seconds[0] * 5 / 6])
    steps = {"truncated": AdapterStep(_cleaner(size)), "whole": AdapterStep(_cleaner(size, full=True))}
    costs = interleave({name: partial(each, clips) for name, each in steps.items()}, size.rounds(5))
    million = {
        f"million, {name}": sum(p.numel() for p in each.cleaner.parameters()) / 1e6 for name, each in steps.items()
    }
    return [times_as_fast("adapter step, whole backbone to truncated", costs, at_least=1.15, **million)]


def original(size: Size) -> list[Finding]:
    """Our step and batches against the original's order of work, on the same clips."""
    zoo, other = AdapterStep(_cleaner(size)), OriginalStep(size)
    held_out = {
        "ours": _weight_mib(zoo.cleaner),
        "original": _weight_mib(other.cleaner, other.extractor),
    }
    equal = made_clips([size.seconds[0]] * 2)
    costs = interleave({"ours": partial(zoo, equal), "original": partial(other, equal)}, size.rounds(3))
    weights = {f"MiB of weights, {name}": mib for name, mib in held_out.items()}
    findings = [times_as_fast("order of work, clips of one length", costs, **weights)]
    batch, seconds = 4, made_seconds(12, size.seconds[1], longest=3 * size.seconds[1])
    clips = made_clips(seconds)
    batches = {"ours": BucketBatchSampler(seconds, batch), "original": ResumableBatchSampler(len(seconds), batch)}
    orders = {name: each.epoch_order(0).tolist() for name, each in batches.items()}

    def epoch(order: list[int], train: AdapterStep) -> None:
        for start in range(0, len(order), batch):
            train([clips[index] for index in order[start : start + batch]])

    runs = {
        "ours": partial(epoch, orders["ours"], zoo),
        "original": partial(epoch, orders["original"], other),
    }
    costs = interleave(runs, size.rounds(3), warmup=0)
    padding = {f"padding, {name}, %": padding_percent(seconds, order, batch) for name, order in orders.items()}
    name = f"order of work and batches, {len(clips)} clips, batch {batch}"
    return [*findings, times_as_fast(name, costs, **padding)]


def restore(size: Size) -> list[Finding]:
    """Restoring: seconds of computation for a second of audio, of the parts too, and peak memory of fresh processes."""
    seconds = size.seconds[2]
    restorer, audio = _restorer(size), _speech(seconds)
    chunk = torch.from_numpy(audio)[None]
    with torch.inference_mode():
        frames = restorer.encoder(chunk).transpose(1, 2)
    runs: dict[str, Callable[[], object]] = {
        "all": partial(restorer, audio, SAMPLE_RATE),
        "cleaner alone": torch.inference_mode()(partial(restorer.encoder, chunk)),
        "vocoder alone": torch.inference_mode()(partial(restorer.generator, frames)),
    }
    costs = interleave(runs, size.rounds(3))
    findings = [_real_time(f"restore, {name}", each, seconds) for name, each in costs.items()]
    weights = _weight_mib(*restorer.modules().values())
    for length in (seconds, 3 * seconds):
        idle, peak = peak_memory(_restore_once, size, length)
        details = {"MiB of the weights": weights, "MiB of the imports alone": idle}
        findings.append(Finding(f"peak memory of restoring {length} s", peak, "MiB", details=details))
    return findings


BENCHMARKS: dict[str, Callable[[Size], list[Finding]]] = {each.__name__: each for each in (step, original, restore)}


def made_clips(seconds: Sequence[float] | np.ndarray) -> list[Tensor]:
    """Noise (2, T) of so many seconds each, clean and noisy: what is computed does not depend on the sound."""
    generator = torch.Generator().manual_seed(0)
    return [0.1 * torch.randn(2, round(each * SAMPLE_RATE), generator=generator) for each in seconds]


def made_seconds(count: int, middle: float, longest: float) -> np.ndarray:
    """Lengths as in a corpus of read sentences: log-normal around a median, sigma 0.6, from a fifth of it on."""
    sampled = np.random.default_rng(0).lognormal(math.log(middle), 0.6, count)
    return np.clip(sampled, middle / 5, longest)


def padding_percent(lengths: np.ndarray, order: Sequence[int], batch: int) -> float:
    """Share of padding in batches of neighbours of an order, each as long as its longest clip; a rest is left out."""
    batches = lengths[np.asarray(order[: len(order) // batch * batch])].reshape(-1, batch)
    return 100 * (1 - batches.mean() / batches.max(axis=1).mean())


def _cleaner(size: Size, full: bool = False, **options: Any) -> Cleaner:
    torch.manual_seed(0)
    backbone = WholeBackbone(size) if full else Backbone(size.layer, config=size.config, **options)
    return Cleaner(backbone, ParallelAdapters(size.hidden_dim))


def _restorer(size: Size) -> Restorer:
    generator = Generator(
        size.config["hidden_size"], size.channels, (7, 7, 3, 3), (15, 15, 7, 7), "1", (3, 7, 11), ((1, 3, 5),) * 3
    )
    return Restorer(_cleaner(size).eval(), generator.eval().remove_weight_norm_(), OUTPUT_RATE)


def _speech(seconds: int) -> np.ndarray:
    return SyntheticSpeech(SAMPLE_RATE, seconds=(seconds, seconds)).utterance(0)


def _restore_once(size: Size, seconds: int) -> None:
    """In a fresh process: restore."""
    _restorer(size)(_speech(seconds), SAMPLE_RATE)


def _weight_mib(*modules: nn.Module) -> float:
    return sum(tensor.nbytes for module in modules for tensor in module.state_dict().values()) / 2**20


def _real_time(name: str, costs: list[Cost], seconds: int) -> Finding:
    """Seconds of processor time for a second of audio."""
    cost = median(costs) / seconds
    return Finding(name, cost.cpu, "", details={"by wall time": cost.wall, "rounds": len(costs)})


def sized(benchmark: Callable[[Size], Sequence[Finding]]) -> Callable[[bool], Sequence[Finding]]:
    """Choose the size by whether to be quick."""
    return update_wrapper(lambda quick: benchmark(SMALL if quick else FULL), benchmark)


if __name__ == "__main__":
    command("miipher", {name: sized(benchmark) for name, benchmark in BENCHMARKS.items()})
