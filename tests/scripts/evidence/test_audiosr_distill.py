"""Evidence of a distillation: what is trained, and what is compared with what; trainings are stood in for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scripts.evidence import audiosr_distill
from tests.audiosr.task_parts import AUTOENCODER, RATE, VOCODER, denoiser, features
from zoo.audio.corpora.corpus import CorpusOptions
from zoo.audiosr.data.datamodule import SuperResolutionData, ValidationSplit
from zoo.audiosr.diffusion import DDIM, CosineDiffusion
from zoo.audiosr.inference.restore import Restorer
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.options import RestoreOptions


def test_a_student_is_compared_with_many_and_with_as_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: dict[str, tuple[str, int]] = {}
    parts = FrozenAutoencoder(config=AUTOENCODER), FrozenVocoder(config=VOCODER), features(), CosineDiffusion()
    net = denoiser()
    torch.nn.init.normal_(net.unet.out[-1].weight, std=0.1)

    def restorer(run: Path, restore: Any = None) -> Restorer:
        sampler = (restore or {}).get("sampler") or DDIM(2 if run.name == "student" else 9)
        options = RestoreOptions(sampler, guidance_scale=1.0, chunk_seconds=0.16, overlap_seconds=0.04)
        return Restorer(net, *parts, restore=options).eval()

    def evaluate(run: Path, output: Path, settings: Any) -> Any:
        requested[output.name] = (run.name, settings.restore["sampler"]["init_args"]["steps"])
        lsd = {"student": 1.2, "teacher": 1.5, "undistilled": 1.4}[output.name]
        return SimpleNamespace(rows=[{"status": "done", "system": audiosr_distill.RESTORED, "lsd": lsd}])

    data = SuperResolutionData(
        sample_rate=RATE,
        segment_samples=2560,
        corpus=CorpusOptions(embedded_utterances=4),
        split=ValidationSplit(items=1, cutoffs_hz=[2000.0, 4000.0]),
    )
    data.setup("fit")
    monkeypatch.setattr(audiosr_distill, "load", restorer)
    monkeypatch.setattr(audiosr_distill, "evaluate", evaluate)
    monkeypatch.setattr(audiosr_distill, "load_recipe_data", lambda *_: data)
    lsd, distance = audiosr_distill.measure(tmp_path / "student", tmp_path / "demo", quick=True).values()
    assert requested == {"student": ("student", 2), "teacher": ("demo", 4), "undistilled": ("demo", 2)}
    assert lsd == pytest.approx(0.8)
    assert distance == pytest.approx(1.0)  # the nets are the same, the noise too
