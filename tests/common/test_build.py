import pytest
import torch
from torch import nn

from zoo.common.build import build, completed


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


def test_arguments_gained_since_are_at_their_defaults() -> None:
    mel = "zoo.audio.LogMel"
    ours = {"net": {"class_path": mel, "init_args": {"n_mels": 40, "n_fft": 1024, "f_max": 8000.0}}, "rate": 1}
    saved = {"net": {"class_path": mel, "init_args": {"n_mels": 40}}, "rate": 1}
    assert completed(saved, ours) == ours
    other = {**ours, "net": {"class_path": mel, "init_args": {"n_mels": 40, "n_fft": 512}}}
    assert completed(saved, other) == {**other, "net": {"class_path": mel, "init_args": {"n_mels": 40, "n_fft": 1024}}}
    assert completed(saved, {"net": {"class_path": "x.Y"}, "rate": 1}) == saved
