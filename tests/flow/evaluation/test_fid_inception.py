from pathlib import Path

import pytest
import torch
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

from zoo.flow.evaluation.fid_inception import CLASSES, DIMS, FIDInception, load_fid_inception
from zoo.flow.evaluation.references import build_extractor


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights that keep the size of what passes through, with statistics of the norms that do something."""
    generator, path = torch.Generator().manual_seed(0), tmp_path_factory.mktemp("weights") / "w.pth"
    result = {"fc.weight": torch.zeros(CLASSES, DIMS), "fc.bias": torch.zeros(CLASSES)}
    for name, value in FIDInception().state_dict().items():
        draw = torch.rand(value.shape, generator=generator)
        if name.endswith("conv.weight"):
            result[name] = (draw - 0.5) * (24 / value[0].numel()) ** 0.5
        elif name.endswith("num_batches_tracked"):
            result[name] = value
        else:
            result[name] = draw * 0.2 + (0.9 if name.endswith(("bn.weight", "running_var")) else -0.1)
    torch.save(result, path)
    return path


def test_features_of_grey_images_are_those_of_8_bits(path: Path) -> None:
    net = build_extractor("fid", (8, 8, 1), None, path)
    grey = torch.randint(0, 256, (1, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 127.5 - 1
    result = net(grey)
    assert result.shape == (1, DIMS) and bool(result.isfinite().all())
    torch.testing.assert_close(net(grey.expand(-1, 3, -1, -1) + 0.3 / 127.5), result)  # of 8 bits


def test_file_of_another_net_is_refused(tmp_path: Path) -> None:
    torch.save({"Mixed_7c.branch1x1.bn.bias": torch.zeros(320)}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="does not fit"):
        load_fid_inception(tmp_path / "w.pth")


def test_features_are_those_of_torch_fidelity(path: Path) -> None:
    reference = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], path)
    pixels = torch.randint(0, 256, (1, 3, 32, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    (expected,) = reference(pixels)
    result = load_fid_inception(path)(pixels / 127.5 - 1)
    assert float(expected.std()) > 1e-3
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
