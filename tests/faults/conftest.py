"""A run of the toy that nothing disturbed."""

from pathlib import Path

import pytest

from tests.harness import TOY_FIT, callback, forked, good

FIT = [*TOY_FIT, *callback("zoo.training.EMA", modules=["net"], decay=0.9)]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    good(forked(*FIT, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"
