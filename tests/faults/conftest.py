"""Runs of the toy that nothing disturbed."""

from pathlib import Path

import pytest

from tests.harness import TOY_FIT, callback, forked, good

FIT_WITH_EMA = [*TOY_FIT, *callback("zoo.training.EMA", modules=["net"], decay=0.9)]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    good(forked(*TOY_FIT, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"


@pytest.fixture(scope="session")
def reference_with_ema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference_with_ema")
    good(forked(*FIT_WITH_EMA, f"--trainer.default_root_dir={folder / 'run'}", cwd=folder))
    return folder / "run"
