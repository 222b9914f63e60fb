"""The files that the original code of CI-LLM computed."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import reference_folder


@pytest.fixture(scope="module")
def folder() -> Path:
    return reference_folder("ci_llm")


@pytest.fixture(scope="module")
def io(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "io.safetensors")


@pytest.fixture(scope="module")
def scalars(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "scalars.json").read_text())
