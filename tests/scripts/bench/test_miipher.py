"""What a benchmark compares computes the same."""

import pytest

from scripts.bench import miipher as benchmark
from scripts.bench.miipher import SMALL, AdapterStep, OriginalStep, WholeBackbone
from zoo.miipher import Backbone, Cleaner, ParallelAdapters


def whole_and_truncated(pad: bool = True) -> tuple[WholeBackbone, Backbone]:
    full, part = WholeBackbone(SMALL, pad), Backbone(SMALL.layer, config=SMALL.config, pad=pad)
    state = full.model.state_dict()
    part.model.load_state_dict({key: state[key] for key in part.model.state_dict()})
    return full, part


def test_all_steps_train_alike_where_nothing_is_padded(monkeypatch):
    monkeypatch.setattr(AdapterStep, "reduction", "batch")
    cleaners = [Cleaner(each, ParallelAdapters(SMALL.hidden_dim)) for each in whole_and_truncated(pad=False)]
    steps = [*map(AdapterStep, cleaners), OriginalStep(SMALL)]
    for each in steps[1:]:
        each.cleaner.adapters.load_state_dict(cleaners[0].adapters.state_dict())
    clips = benchmark.made_clips([0.5, 0.5])
    before, after = ([each(clips) for each in steps] for _ in range(2))
    assert before == pytest.approx([before[0]] * 3, rel=1e-4)
    assert after == pytest.approx([after[0]] * 3, rel=1e-4)
    assert after[0] < before[0]
    assert all(p.grad is None for p in steps[2].extractor.parameters())
