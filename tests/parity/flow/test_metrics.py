import numpy as np
import pytest
import torch

from zoo.common.safe_load import load_foreign_checkpoint
from zoo.flow.evaluation.metrics import chamfer, frechet_distance


def test_frechet_distance_equals_the_originals(folder):
    golden = np.load(folder / "fid_and_image.npz")
    a, b = torch.from_numpy(golden["feat_a"]), torch.from_numpy(golden["feat_b"])
    expected = float(golden["fid"])
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)


def test_chamfer_distance_equals_the_originals(folder):
    golden = load_foreign_checkpoint(folder / "toy.pt")
    assert chamfer(golden["cd_a"], golden["cd_b"]) == pytest.approx(golden["cd"], rel=1e-6)
