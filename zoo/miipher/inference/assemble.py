"""Stages that were trained apart, put together: the cleaner of one run, the vocoder of another."""

from __future__ import annotations

from pathlib import Path

from zoo.miipher.inference.restore import FeatureExtractor, Restorer
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner, check_fit
from zoo.runs.export import write_export
from zoo.runs.load import load, read_parts


def assemble(cleaner: Path, vocoder: Path, output: Path) -> None:
    """Write a restorer of a trained cleaner and a vocoder that was not fine-tuned on it, as an export.

    Args:
        cleaner: run, checkpoint or export of stage 1.
        vocoder: run, checkpoint or export of stage 2 (or 3), on the same backbone.
        output: folder to write; appears only when complete.

    Raises:
        ValueError: when one of them holds something else, or the two have different backbones.
    """
    features, restorer = load(cleaner), load(vocoder)
    encoder = features.encoder if isinstance(features, FeatureExtractor) else None
    if not isinstance(encoder, Cleaner):
        raise ValueError(f"{cleaner} holds no cleaner: expected a run of stage 1 (an adapter recipe)")
    if not isinstance(restorer, Restorer):
        raise ValueError(f"{vocoder} holds no vocoder: expected a run of stage 2 or 3")
    there = restorer.encoder if isinstance(restorer.encoder, Backbone) else restorer.encoder.backbone
    if there.fingerprint() != encoder.backbone.fingerprint():
        raise ValueError(f"{cleaner} and {vocoder} have different backbones: the vocoder would not know its features")
    check_fit(encoder, restorer.generator, restorer.sample_rate)
    specs, _, _ = read_parts(vocoder)
    specs["parts"] = {**specs["parts"], "encoder": read_parts(cleaner)[0]["parts"]["encoder"]}
    parts = {"encoder": encoder, "generator": restorer.generator}
    write_export(output, specs, parts, f"{cleaner.name} and {vocoder.name}", specs.get("step"))
    print(f"wrote {output}")
