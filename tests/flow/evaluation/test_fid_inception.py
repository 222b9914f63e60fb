from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

from zoo.flow.evaluation.fid_inception import CLASSES, DIMS, FIDInception, load_fid_inception
from zoo.flow.evaluation.references import build_extractor


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    """Random weights that keep the size of what passes through, with statistics of the norms that do something."""
    generator = torch.Generator().manual_seed(0)
    result = {}
    for name, value in FIDInception().state_dict().items():
        draw = torch.rand(value.shape, generator=generator)
        if name.endswith("conv.weight"):
            result[name] = (draw - 0.5) * (24 / value[0].numel()) ** 0.5
        elif name.endswith("num_batches_tracked"):
            result[name] = value
        else:
            result[name] = draw * 0.2 + (0.9 if name.endswith(("bn.weight", "running_var")) else -0.1)
    return result


def saved(folder: Path, state: dict[str, Tensor]) -> Path:
    torch.save({**state, "fc.weight": torch.zeros(CLASSES, DIMS), "fc.bias": torch.zeros(CLASSES)}, folder / "w.pth")
    return folder / "w.pth"


def test_features_of_a_users_file(tmp_path: Path, state: dict[str, Tensor]) -> None:
    net = build_extractor("fid", (8, 8, 1), None, saved(tmp_path, state))
    assert net.dims == DIMS and not net.training
    grey = torch.randint(0, 256, (1, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 127.5 - 1
    result = net(grey)
    assert result.shape == (1, DIMS) and bool(result.isfinite().all())
    torch.testing.assert_close(net(grey.expand(-1, 3, -1, -1) + 0.3 / 127.5), result)  # of 8 bits


def test_files_of_other_nets_are_refused(tmp_path: Path, state: dict[str, Tensor]) -> None:
    less = {name: value for name, value in state.items() if not name.startswith("Mixed_7c.branch1x1")}
    with pytest.raises(ValueError, match=r"does not fit .*Mixed_7c\.branch1x1"):
        load_fid_inception(saved(tmp_path, less))
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="expected tensors by name, found list"):
        load_fid_inception(tmp_path / "list.pth")


def test_features_are_those_of_torch_fidelity(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = saved(tmp_path, state)
    reference = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], path)
    pixels = torch.randint(0, 256, (1, 3, 32, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    (expected,) = reference(pixels)
    result = load_fid_inception(path)(pixels / 127.5 - 1)
    assert float(expected.std()) > 1e-3
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
