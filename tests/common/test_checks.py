"""Range checks name the argument, what is expected and what was found."""

import math
from pathlib import Path

import pytest

from zoo.common import checks


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: checks.check_at_least(0, share=math.nan), "share is at least 0, not nan"),
        (lambda: checks.check_positive(sigma=0.0), "sigma is positive, not 0.0"),
        (lambda: checks.check_above(1, factor=1), "factor is above 1, not 1"),
        (lambda: checks.check_between(0, 1, decay=1.0), "decay lies between 0 and 1, not 1.0"),
        (lambda: checks.check_within(0, 1, drop=math.nan), "drop is 0 to 1, not nan"),
        (lambda: checks.check_one_of({"mean": 1}, reduction="max"), "reduction is one of mean, not 'max'"),
    ],
)
def test_what_lies_outside_is_named(check, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check()


def test_a_folder_of_data_is_there_or_made_in_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert checks.find_data_folder("root", None, False) is None
    assert checks.find_data_folder("root", str(tmp_path), False) == tmp_path
    with pytest.raises(FileNotFoundError, match=r"data.init_args.noise: no folder .*gone"):
        checks.find_data_folder("noise", str(tmp_path / "gone"), False)
    assert checks.find_data_folder("noise", str(tmp_path / "gone"), True) is None
    assert "made in code" in caplog.text
