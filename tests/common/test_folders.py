import json
from pathlib import Path

import pytest

from zoo.common.checks import find_data_folder
from zoo.common.journal import begin_output


def test_a_folder_of_data_is_there_or_made_in_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_data_folder("root", None, False) is None
    assert find_data_folder("root", str(tmp_path), False) == tmp_path
    with pytest.raises(FileNotFoundError, match=r"data.init_args.noise: no folder .*gone"):
        find_data_folder("noise", str(tmp_path / "gone"), False)
    assert find_data_folder("noise", str(tmp_path / "gone"), True) is None
    assert "made in code" in caplog.text


def test_other_settings_are_named(tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = {"count": 3, "solver": {"steps": 5}, "note": "a"}
    begin_output(output, settings, notes=("note",))
    assert json.loads((output / "settings.json").read_text()) == settings
    begin_output(output, {**settings, "note": "b"}, notes=("note",))
    with pytest.raises(ValueError, match=r"other settings: solver.steps 5 \(now 6\); choose another folder"):
        begin_output(output, {**settings, "solver": {"steps": 6}}, notes=("note",))


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds something else"):
        begin_output(tmp_path, {})
