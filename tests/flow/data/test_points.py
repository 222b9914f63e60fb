from typing import get_args

import numpy as np
import pytest
import torch

from zoo.flow.data import points

KINDS = get_args(points.PointSet)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_seeded_and_of_the_wanted_size(kind: points.PointSet) -> None:
    first = points.draw(kind, 500, 3)
    assert first.shape == (500, 2) and first.dtype == torch.float32 and bool(first.isfinite().all())
    assert torch.equal(first, points.draw(kind, 500, 3))
    assert not torch.equal(first, points.draw(kind, 500, 2**40 + 4))


def test_swiss_roll_is_that_of_the_source_but_for_its_scale() -> None:
    from sklearn.datasets import make_swiss_roll

    raw = make_swiss_roll(5000, random_state=7, hole=True)[0][:, [0, 2]]
    expected = (raw - raw.mean()) / raw.std() * 2
    np.testing.assert_allclose(points.draw("swiss_roll", 5000, 7).numpy(), expected, atol=0.15)


def test_gaussians_and_circles() -> None:
    centred, shifted = points.draw("gaussian", 20_000, 1), points.draw("shifted_gaussian", 20_000, 1)
    torch.testing.assert_close(shifted, centred + 1.5)
    assert float(centred.std()) == pytest.approx(1, rel=0.02)
    radii = points.draw("circles", 100, 0).norm(dim=1)
    assert sorted({round(float(radius), 3) for radius in radii}) == [2.0, 4.0]
