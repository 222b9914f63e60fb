"""Benchmarks at tiny size: that they run and report, and that contestants compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.bench import ci_llm as benchmark
from scripts.bench.ci_llm import AGENTS, Training, make_crowd
from scripts.bench.ci_llm_others import PeftCrowd, generate_sequential
from scripts.bench.tools import Settings
from zoo.ci_llm.aggregation import Mean
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.nets.crowd import Crowd, Mode
from zoo.cli.trainer import ZooCLI


def tiny(
    hidden: int = 128,
    mode: Mode = "batched",
    top_layers: int | None = None,
    layers: int = 2,
    count: int = AGENTS,
    init: benchmark.Init = "normal",
) -> Crowd:
    return make_crowd(32, mode, top_layers, layers, count=count, init=init)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(benchmark, "make_crowd", tiny)
    monkeypatch.setattr(benchmark, "PROMPT_TOKENS", 6)
    monkeypatch.setattr(benchmark, "TEXT_TOKENS", 8)
    return Settings(ZooCLI, tmp_path, quick=True)


@pytest.mark.parametrize("name", benchmark.BENCHMARKS)
def test_reports_figures(name: str, settings: Settings) -> None:
    findings = benchmark.BENCHMARKS[name](settings)
    assert all(np.isfinite(each.value) for each in findings)
    for each in findings:
        assert each.details.get("share of equal tokens", 1.0) == 1.0
        assert each.details.get("share of equal texts", 1.0) == 1.0
        assert each.details.get("difference of the first loss", 0.0) < 1e-5


def test_others_write_the_same_text() -> None:
    crowd = tiny()
    ids = torch.randint(3, 500, (2, 5), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    actual = generate(crowd, ids, mask, Mean(), 4)
    assert actual.shape == (2, 9)
    assert torch.equal(generate_sequential(crowd, ids, mask, 4), actual)
    other = PeftCrowd(crowd)
    assert torch.equal(other.generate(ids, mask, 4), actual)
    with torch.no_grad():
        torch.testing.assert_close(other.logits(ids, mask), crowd(ids, mask), atol=1e-5, rtol=1e-4)
    assert crowd.backbone.model.state_dict().keys() == tiny().backbone.model.state_dict().keys()


def test_modes_train_the_same() -> None:
    ids = torch.randint(3, 500, (2, 6), generator=torch.Generator().manual_seed(1))
    contestants = [Training(tiny(mode=mode), ids, torch.ones_like(ids)) for mode in ("batched", "sequential")]
    for each in contestants:
        each()
        each()
    for one, other in zip(*(each.crowd.agents.parameters() for each in contestants), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    assert contestants[0].first == pytest.approx(contestants[1].first, rel=1e-6) and contestants[0].steps == 2
