import json

import pytest
import torch

from zoo.common.safe_load import load_foreign_checkpoint
from zoo.compressed_ad.convert import convert, describe, from_original, is_original, original_state, to_original
from zoo.convert.engine import NO_TRAINING
from zoo.runs.checkpoints import load_checkpoint

KINDS = {"ad": "AD", "cad": "CAD", "cadv1": "v1"}


@pytest.mark.parametrize("name", KINDS)
def test_there_and_back(folder, tmp_path, name):
    source = folder / f"{name}_ckpt-0.pt"
    before = load_foreign_checkpoint(source)
    to_original(from_original(source), tmp_path / "net.pt")
    convert(source, tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back.pt")
    for file in ("net.pt", "back.pt"):
        after = torch.load(tmp_path / file, weights_only=True)
        assert list(after["model"]) == list(before["model"])
        assert all(torch.equal(after["model"][key], value) for key, value in before["model"].items())
        assert is_original(tmp_path / file)
    added = {"tf_dim_feedforward"}
    assert set(after["config"]) - set(before["config"]) <= added
    assert {key: value for key, value in after["config"].items() if key not in added} == before["config"]


@pytest.mark.parametrize("name", KINDS)
def test_what_the_files_state(folder, name):
    path = folder / f"{name}_ckpt-0.pt"
    assert is_original(path)
    facts = describe(path)
    assert facts["format"] == KINDS[name] and facts["step"] == 0
    assert facts["transformer"]["heads"] == 4 and facts["transformer"]["context"] == 20
    json.dumps(facts)
    assert list(original_state(path)) and all(key.startswith("policy.") for key in original_state(path))
    if name != "ad":
        assert facts["compressor"]["heads"] == 2 and facts["compressor"]["num_latents"] == 6
    policy = from_original(path)
    assert not policy.training and facts["values"] == sum(value.numel() for value in policy.state_dict().values())


def test_checkpoints_hold_what_inference_needs(folder, tmp_path):
    facts = convert(folder / "cad_ckpt-0.pt", tmp_path / "ours.ckpt")
    assert facts["notes"] == [NO_TRAINING]
    checkpoint = load_checkpoint(tmp_path / "ours.ckpt")
    assert checkpoint["zoo"]["components"]["env"] == {
        "class_path": "zoo.compressed_ad.Darkroom",
        "init_args": {"grid_size": 5, "horizon": 6, "start": None, "hard": False, "random_start": False},
    }


@pytest.mark.parametrize("name", ["ad_io", "cad_io"])
def test_other_files_are_no_originals(folder, name):
    assert not is_original(folder / f"{name}.pt") and not is_original(folder / "lr_schedules.json")
    with pytest.raises(ValueError, match="unknown layout"):
        describe(folder / f"{name}.pt")
