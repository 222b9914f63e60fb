import pytest

from zoo.common.checks import check_unreadable_share


def test_some_may_be_bad_and_too_many_are_named() -> None:
    check_unreadable_share(["a", "b"], 20, 0.1)
    check_unreadable_share([], 20, 0.0)
    with pytest.raises(ValueError, match=r"3 of 20 audio files .* share of 0.1 \(max_bad_share\).*: a; b; and 1 more$"):
        check_unreadable_share(["a", "b", "c"], 20, 0.1, shown=2)
