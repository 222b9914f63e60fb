"""Trying precisions: what is sound, which is chosen, what stays."""

from pathlib import Path

import pytest
import torch

from tests.ci_llm import crowd_parts
from tests.ci_llm.task_parts import texts
from zoo.ci_llm import precision
from zoo.ci_llm.diversity import Diversity
from zoo.ci_llm.precision import Trial, choose, try_precisions, try_recipe


@pytest.mark.parametrize("mode", ["batched", "chunked"])
def test_float32_and_bfloat16_on_the_cpu(mode):
    crowd = crowd_parts.crowd(mode=mode, chunk=2 if mode == "chunked" else None, dropout=0.1).eval()
    before = {name: value.clone() for name, value in crowd.agents.named_parameters()}
    state = torch.get_rng_state()
    trials = try_precisions(crowd, [texts(), texts(seed=1)], Diversity(0.1, 8, "answer_mean"), repeats=1)
    assert [trial.precision for trial in trials] == ["32-true", "bf16-mixed"]
    assert all(trial.sound and trial.seconds > 0 for trial in trials)
    assert 0 < abs(trials[1].loss - trials[0].loss) < 0.02 * trials[0].loss
    assert torch.equal(torch.get_rng_state(), state) and not crowd.training
    for name, value in crowd.agents.named_parameters():
        assert torch.equal(value, before[name]) and value.grad is None


def test_loss_that_differs_or_overflows_is_not_sound(monkeypatch):
    found = {"32-true": (2.0, True), "bf16-mixed": (2.1, True), "16-mixed": (2.0, False)}
    monkeypatch.setattr(precision, "_pass", lambda crowd, batches, diversity, name: found[name])
    trials = try_precisions(crowd_parts.crowd(), [texts()], precisions=["bf16-mixed", "16-mixed"])
    assert [trial.sound for trial in trials] == [True, False, False]
    trials = try_precisions(crowd_parts.crowd(), [texts()], precisions=["bf16-mixed"], tolerance=0.1)
    assert trials[1].sound
    found["32-true"] = (float("nan"), False)
    with pytest.raises(ValueError, match="the loss in float32 is nan"):
        try_precisions(crowd_parts.crowd(), [texts()])


def test_the_fastest_sound_one_is_chosen():
    trials = [Trial("32-true", 2.0, 3.0, True), Trial("bf16-mixed", 2.0, 2.0, True), Trial("16-mixed", 2.0, 1.0, False)]
    assert choose(trials).precision == "bf16-mixed"


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="some of 32-true"):
        try_precisions(crowd_parts.crowd(), [texts()], precisions=["fp8"])
    with pytest.raises(ValueError, match="at least one batch"):
        try_precisions(crowd_parts.crowd(), [])
    with pytest.raises(FileNotFoundError, match="no such recipe"):
        try_recipe(tmp_path / "none.yaml")
    (tmp_path / "other.yaml").write_text("model: {init_args: {net: null}}\n")
    with pytest.raises(ValueError, match="a recipe of this wing"):
        try_recipe(tmp_path / "other.yaml")


def test_recipe(repository: Path):
    trials = try_recipe(repository / "configs" / "ci_llm" / "smoke.yaml", device="cpu")
    assert len(trials) == 2 and trials[0].sound
