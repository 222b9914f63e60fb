from pathlib import Path

import pytest

from tests.conftest import reference_folder


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    """The recorded files of the system whose folder a test lies in."""
    return reference_folder(request.path.parent.name)
