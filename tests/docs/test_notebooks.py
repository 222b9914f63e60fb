"""Notebooks show small outputs of one run, and run from both places that people start them in."""

import re
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment

nbformat = pytest.importorskip("nbformat")
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
PRIVATE = re.compile(r"(?<![\w.])(/(home|opt|root|tmp|usr|var|work|Users)/|[A-Z]:\\)")


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_small_and_those_of_one_run_on_no_machine_in_particular(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), f"{path.name}: run all cells"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs), f"{path.name} shows no picture"
    assert path.stat().st_size < 2**20
    for output in outputs:
        text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
        assert "\r" not in text, f"{path.name}: trim the progress bars"
        assert not PRIVATE.search(text), f"{path.name}: a path of one machine: {PRIVATE.search(text)}"


@pytest.mark.slow
@pytest.mark.parametrize("place", [".", "notebooks"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_runs(path: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    for name in ("configs", "scripts"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    for key, value in environment().items():
        monkeypatch.setenv(key, value)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute()
    errors = [output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert errors == []
