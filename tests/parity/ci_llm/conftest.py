"""The files that the original code of CI-LLM computed."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor


@pytest.fixture(scope="module")
def io(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "io.safetensors")


@pytest.fixture(scope="module")
def scalars(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "scalars.json").read_text())
