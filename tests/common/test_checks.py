"""Range checks name the argument, what is expected and what was found."""

import math
from pathlib import Path

import pytest

from zoo.common import checks


def test_nan_lies_in_no_range() -> None:
    for check in (lambda: checks.check_at_least(0, share=math.nan), lambda: checks.check_within(0, 1, share=math.nan)):
        with pytest.raises(ValueError, match="share is "):
            check()


def test_a_folder_of_data_is_there_or_made_in_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert checks.find_data_folder("root", None, False) is None
    assert checks.find_data_folder("root", str(tmp_path), False) == tmp_path
    with pytest.raises(FileNotFoundError, match=r"data.init_args.noise: no folder .*gone"):
        checks.find_data_folder("noise", str(tmp_path / "gone"), False)
    assert checks.find_data_folder("noise", str(tmp_path / "gone"), True) is None
    assert "made in code" in caplog.text
