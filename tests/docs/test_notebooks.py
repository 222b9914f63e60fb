"""Notebooks import little, carry no outputs, and run from both places that people start them in."""

import ast
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment

nbformat = pytest.importorskip("nbformat")
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
ALLOWED = {"zoo", "numpy", "matplotlib", "IPython", *sys.stdlib_module_names}


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped(path: Path) -> None:
    for cell in code_cells(path):
        assert cell.outputs == [] and cell.execution_count is None, f"{path.name}: strip the outputs"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_imports_little(path: Path) -> None:
    tree = ast.parse("\n".join(cell.source for cell in code_cells(path)))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= ALLOWED


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
