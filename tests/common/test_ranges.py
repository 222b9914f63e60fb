"""Range checks name the argument, what is expected and what was found."""

import math

import pytest

from zoo.common import ranges


def test_what_fits_passes() -> None:
    ranges.at_least(1, batch_size=1, steps=2.5)
    ranges.positive(rate=1e-9)
    ranges.above(1, factor=1.5)
    ranges.below(1, decay=0.5)
    ranges.between(0, 1, decay=0.5)
    ranges.within(0, 1, share=0, other=1.0)
    ranges.one_of(("mean", "sum"), reduction="sum")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: ranges.at_least(1, batch_size=1, workers=0), "workers is at least 1, not 0"),
        (lambda: ranges.at_least(0, share=math.nan), "share is at least 0, not nan"),
        (lambda: ranges.positive(sigma=0.0), "sigma is positive, not 0.0"),
        (lambda: ranges.above(1, factor=1), "factor is above 1, not 1"),
        (lambda: ranges.below(1, decay=1.0), "decay is below 1, not 1.0"),
        (lambda: ranges.between(0, 1, decay=1.0), "decay lies between 0 and 1, not 1.0"),
        (lambda: ranges.below(1, dropout=1.0), "dropout is below 1, not 1.0"),
        (lambda: ranges.within(0, 0.5, drop=0.6), "drop is 0 to 0.5, not 0.6"),
        (lambda: ranges.within(0, 1, drop=math.nan), "drop is 0 to 1, not nan"),
        (lambda: ranges.one_of({"mean": 1, "sum": 2}, reduction="max"), "reduction is one of mean, sum, not 'max'"),
    ],
)
def test_what_does_not_is_named(check, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check()
