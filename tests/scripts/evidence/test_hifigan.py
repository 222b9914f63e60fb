from __future__ import annotations

import pytest
import torch
import yaml

from scripts.evidence import hifigan as evidence
from zoo.audio.corpora.synthetic import write_synthetic_corpus
from zoo.common.build import build
from zoo.runs.checkpoints import save_checkpoint

PARTS = {
    "generator": {
        "class_path": "zoo.hifigan.Generator",
        "init_args": {
            "in_channels": 8,
            "initial_channels": 4,
            "upsample_rates": [8, 8],
            "upsample_kernel_sizes": [16, 16],
            "resblock": "2",
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1, 2]],
        },
    },
    "mel": {
        "class_path": "zoo.audio.LogMel",
        "init_args": {
            "sample_rate": 8000,
            "n_fft": 256,
            "hop_length": 64,
            "win_length": 256,
            "n_mels": 8,
            "f_max": 4000.0,
        },
    },
}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    clips = write_synthetic_corpus(tmp_path / "corpus", 3, 8000, seconds=(0.5, 0.6))
    torch.manual_seed(1)
    state = {f"generator.{key}": value for key, value in build(PARTS["generator"]).state_dict().items()}
    specs = {"version": "0", "inference": "zoo.hifigan.Vocoder", "format": 2, "components": PARTS}
    save_checkpoint({"state_dict": state, "zoo": specs, "global_step": 40}, folder / "step_00000040.ckpt")
    data = {"root": str(clips[0].parent), "sample_rate": 8000, "split": {"items": 1}, "batch_size": 1}
    data["corpus"] = {"cache": str(tmp_path / "cache")}
    config = {"data": {"class_path": "zoo.hifigan.VocoderData", "init_args": data}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.csv").write_text(
        "step,epoch,val/mel_l1,train/g/mel\n0,,2.0,\n9,0,,1.5\n19,0,0.4,\n29,0,,0.9\n39,0,0.5,\n"
    )
    return folder, clips


def test_evidence_of_a_run(run):
    folder, _ = run
    figures = evidence.measure(folder, quick=True)
    assert figures["val/mel_l1: less than before training"] == 75 and figures["val/mel_l1: at the end"] == 0.5
    # neither net was trained, so the classical method is ahead
    for measure in evidence.MEASURES:
        assert figures[f"{measure}, griffin-lim"] < figures[f"{measure}, trained"] != figures[f"{measure}, untrained"]
