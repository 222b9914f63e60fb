import pytest
import torch

from zoo.common.tensors import sample_uniforms, split_weight_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_split_weight_is_the_weight_again(dtype: torch.dtype) -> None:
    weight = torch.randn(3, 4, 2).to(dtype)
    weight[1] = 0  # a dead filter
    length, direction = split_weight_norm(weight, (1, 2))
    assert length.shape == (3, 1, 1) and direction.dtype == dtype
    again = torch._weight_norm(direction.float(), length, 0)
    torch.testing.assert_close(again, weight.float(), atol=1e-6, rtol=1e-6)


def test_seeded_numbers_are_spread_and_independent() -> None:
    u = sample_uniforms([2**63 - 1 - i for i in range(50000)], 2)
    assert u.min() > 0 and u.max() < 1
    for row in u:
        counts = torch.histc(row.float(), 50, 0, 1)
        assert float((counts - 1000).square().sum() / 1000) < 100  # chi square of 49 degrees of freedom
    assert abs(float(torch.corrcoef(u)[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([u[0, :-1], u[0, 1:]]))[0, 1])) < 0.02
