import pytest
import torch

from zoo.ci_llm.nets.sampling import Sampling

PROBABILITIES = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
SQUARES = [0.01, 0.16, 0.04, 0.09]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.65}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.75}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"min_p": 0.7}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 1e-9}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [one / sum(SQUARES) for one in SQUARES]),
    ],
    ids=str,
)
def test_filters_leave_out_and_normalise(settings, expected):
    filtered = Sampling(**{"temperature": 1, **settings}).filter(PROBABILITIES.log()).exp()
    assert filtered[0].tolist() == pytest.approx(expected)


def test_samples_follow_the_distribution():
    count = 1000
    uniforms = (torch.arange(count) + 0.5) / count
    tokens = Sampling(temperature=1).choose(PROBABILITIES.log().expand(count, -1), uniforms)
    assert tokens.bincount().tolist() == [100, 400, 200, 300]
    assert Sampling().choose(PROBABILITIES.log()).tolist() == [1]
