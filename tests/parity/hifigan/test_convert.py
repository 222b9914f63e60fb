import json

import torch

from zoo.common.safe_load import load_foreign_checkpoint
from zoo.hifigan.convert import convert, convert_config, describe


def test_golden_checkpoint_round_trip(folder, tmp_path):
    convert(folder / "g_00000123", tmp_path / "ours.ckpt")
    convert(tmp_path / "ours.ckpt", tmp_path / "back")
    before = load_foreign_checkpoint(folder / "g_00000123")["generator"]
    after = load_foreign_checkpoint(tmp_path / "back" / "g_00000123")["generator"]
    assert list(before) == list(after)
    for key in before:
        assert torch.equal(before[key], after[key]), key
    original = json.loads((folder / "config.json").read_text())
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == original


def test_golden_config_and_description(folder):
    recipe, unmapped = convert_config(folder / "config.json")
    assert unmapped == ["num_gpus", "num_freq", "dist_config"]
    assert recipe["data"]["init_args"]["batch_size"] == 16
    facts = describe(folder / "g_00000123")
    assert facts["parts"]["generator"]["tensors"] == 234
    assert not facts["fused"]
