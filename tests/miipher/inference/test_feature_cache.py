from __future__ import annotations

import numpy as np
import pytest
import yaml

from tests.audio.bad_audio import RATE, TONE, corpus
from tests.miipher.parts import CONFIGS, backbone
from zoo.cli.main import main
from zoo.miipher.inference.features import FeatureExtractor, read_encoder


def recipe(path, encoder):
    path.write_text(yaml.safe_dump({"data": {"dim": 2}, "model": {"init_args": {"encoder": encoder}}}))
    return path


BACKBONE = {"class_path": "zoo.miipher.Backbone", "init_args": {"layer": "${data.dim}", "config": CONFIGS["hubert"]}}


def test_features_of_a_folder_by_the_encoder_of_a_recipe(tmp_path, capsys):
    options = recipe(tmp_path / "recipe.yaml", BACKBONE)
    source, output = corpus(tmp_path / "in", 2, "cut.wav"), tmp_path / "out"
    command = ["cache-features", str(source), str(output), str(options)]
    assert main(command) == 1
    assert "done 2, failed 1" in capsys.readouterr().out
    results = np.load(output / "001.npy", mmap_mode="r")
    np.testing.assert_allclose(results, FeatureExtractor(backbone())(TONE, RATE), atol=2e-2)
    (source / "cut.wav").unlink()
    assert main(command) == 0
    assert "done 0, failed 0, skipped 2" in capsys.readouterr().out


def test_what_describes_no_trained_encoder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no model\.init_args\.encoder"):
        read_encoder(recipe(tmp_path / "none.yaml", None))
    adapters = {"class_path": "zoo.miipher.ParallelAdapters", "init_args": {"hidden_dim": 4}}
    cleaner = {"class_path": "zoo.miipher.Cleaner", "init_args": {"backbone": BACKBONE, "adapters": adapters}}
    with pytest.raises(ValueError, match="name its run instead"):
        read_encoder(recipe(tmp_path / "cleaner.yaml", cleaner))
