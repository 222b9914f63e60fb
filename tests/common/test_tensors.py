import torch

from zoo.common.tensors import sample_uniforms


def test_seeded_numbers_are_spread_and_independent() -> None:
    u = sample_uniforms([2**63 - 1 - i for i in range(50000)], 2)
    assert u.min() > 0 and u.max() < 1
    for row in u:
        counts = torch.histc(row.float(), 50, 0, 1)
        assert float((counts - 1000).square().sum() / 1000) < 100  # chi square of 49 degrees of freedom
    assert abs(float(torch.corrcoef(u)[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([u[0, :-1], u[0, 1:]]))[0, 1])) < 0.02
