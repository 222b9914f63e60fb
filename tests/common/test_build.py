import pytest
import torch
from torch import nn

from zoo.common.build import build


def test_nested_parts() -> None:
    spec = {"class_path": "torch.nn.Sequential", "init_args": {}}
    assert isinstance(build(spec), nn.Sequential)
    mel = build({"class_path": "zoo.audio.LogMel", "init_args": {"n_mels": 40}})
    assert mel(torch.zeros(1, 4096)).shape == (1, 40, 16)
    assert build([1, {"a": 2}, None]) == [1, {"a": 2}, None]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"class_path": "os.system", "init_args": {}}, "no part of the zoo"),
        ({"class_path": "zoologist.Bear"}, "no part of the zoo"),
        ({"class_path": "zoo.audio.io.files.read"}, "registers no part"),
        ({"class_path": "zoo.audio.LogMel", "init_args": {"n_mel": 1}}, "cannot be built"),
    ],
)
def test_refuses(spec: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(spec)
