import math

import pytest
import torch

from zoo.ci_llm.nets.sampling import Sampling, draw

PROBABILITIES = torch.tensor([[0.1, 0.4, 0.2, 0.3]])


def kept(**settings):
    return Sampling(**settings).filtered(PROBABILITIES.log()).exp()[0].tolist()


def test_filters_leave_out_and_normalise():
    assert kept(temperature=1) == pytest.approx([0.1, 0.4, 0.2, 0.3])
    assert kept(temperature=1, top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert kept(temperature=1, top_p=0.65) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert kept(temperature=1, top_p=0.75) == pytest.approx([0, 4 / 9, 2 / 9, 3 / 9])
    assert kept(temperature=1, min_p=0.7) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert kept(temperature=1, top_k=9, top_p=1.0, min_p=0.0) == pytest.approx([0.1, 0.4, 0.2, 0.3])
    squares = [0.01, 0.16, 0.04, 0.09]
    assert kept(temperature=0.5) == pytest.approx([one / sum(squares) for one in squares])


def test_the_likeliest_token_always_stays():
    assert kept(temperature=1, top_p=1e-9) == pytest.approx([0, 1, 0, 0])
    assert kept(temperature=1, min_p=1.0) == pytest.approx([0, 1, 0, 0])


def test_equals_are_cut_by_top_k_alike_everywhere():
    flat = torch.zeros(3, 5)
    assert (Sampling(temperature=1, top_k=2).filtered(flat) > -math.inf).sum(-1).tolist() == [2, 2, 2]


def test_temperature_zero_takes_the_likeliest():
    greedy = Sampling()
    assert greedy.choose(PROBABILITIES.log()).tolist() == [1]
    with pytest.raises(ValueError, match="temperature 0"):
        greedy.filtered(PROBABILITIES.log())


def test_draws_follow_the_distribution():
    count = 1000
    uniforms = (torch.arange(count) + 0.5) / count
    chosen = Sampling(temperature=1).choose(PROBABILITIES.log().expand(count, -1), uniforms)
    assert chosen.bincount().tolist() == [100, 400, 200, 300]


def test_nothing_of_probability_zero_is_drawn():
    log_probs = torch.tensor([[-math.inf, 0.0, -math.inf]]).expand(2, -1)
    assert draw(log_probs, torch.tensor([1e-16, 1 - 1e-16], dtype=torch.float64)).tolist() == [1, 1]


def test_missing_random_numbers_and_bad_settings_are_refused():
    with pytest.raises(ValueError, match="one random number per row"):
        Sampling(temperature=1).choose(PROBABILITIES.log())
    for bad in ({"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"min_p": 2}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} is"):
            Sampling(**bad)
