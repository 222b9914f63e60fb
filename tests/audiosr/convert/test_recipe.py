import wave
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from tests.audiosr.lily import MELS, config
from zoo.audiosr.convert import convert_config
from zoo.common.build import build

TRAIN = {
    "batch_size": 2, "num_workers": 3, "epochs": 60, "warmup_steps": 20, "ema_decay": 0.99,
    "gradient_accumulation_steps": 4, "save_interval_steps": 5, "log_interval": 3, "valid_interval_steps": 7,
    "weight_decay": "1e-3", "use_mixed_precision": True, "amp_init_scale": 1024.0, "use_torch_compile": True,
    "compile_mode": "max-autotune", "compile_fullgraph": True, "use_gradient_checkpointing": True,
    "preload_data_to_ram": True, "explosion_threshold": 5.0, "early_stopping": True, "patience": 30,
    "use_jit_compile": True, "mel_loss_weight": 1.0, "strange": 1,
}  # fmt: skip


def written_files(folder: Path, layout: str, **train: object) -> Path:
    values = config(layout, **train)
    values["data"] |= {"dataset_root": str(folder / "data"), "categories": ["train", "music"]}
    values["experiment"] = {"seed": 7, "out_dir": "out"}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_all_that_the_window_wrote(tmp_path: Path) -> None:
    high = tmp_path / "data" / "train" / "high"
    high.mkdir(parents=True)
    for number in range(10):
        with wave.open(str(high / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
    recipe, unmapped = convert_config(written_files(tmp_path, "modelV1", **TRAIN))
    trainer, model, data = recipe["trainer"], recipe["model"]["init_args"], recipe["data"]["init_args"]
    callbacks = {each["class_path"].rpartition(".")[2]: each["init_args"] for each in trainer.pop("callbacks")}
    assert callbacks == {
        "EMA": {"modules": ["net"], "decay": 0.99},
        "LossMonitor": {"threshold": 5.0, "factor": 0.5, "patience": 30},
    }
    (plugin,) = trainer.pop("plugins")
    assert plugin["init_args"]["scaler"]["init_args"] == {"init_scale": 1024.0}
    assert trainer == {
        "devices": 1, "precision": None, "accumulate_grad_batches": 4, "gradient_clip_val": 1.0,
        "log_every_n_steps": 3, "val_check_interval": 28, "check_val_every_n_epoch": None, "default_root_dir": "out",
        "max_steps": 120,  # 60 epochs of 5 batches: one step of 4 and one of the last
    }  # fmt: skip
    assert recipe["checkpoints"]["every_n_steps"] == 5
    assert model["optimizer"]["init_args"] == {"lr": 0.0002, "betas": [0.9, 0.99], "weight_decay": 0.001}
    assert model["scheduler"]["init_args"]["warmup_steps"] == 20
    assert model["compile"] and model["compile_options"] == {"mode": "max-autotune", "fullgraph": True}
    assert model["net"]["init_args"]["unet"]["init_args"]["checkpointing"]
    assert (model["parallel"], model["restore"]["seed"]) == ("dp", 7)
    assert (data["cache_mode"], data["batch_size"], data["num_workers"]) == ("ram", 2, 3)
    assert {line.partition(":")[0] for line in unmapped} == {
        "train.no pretrained_path", "vocoder", "train.use_jit_compile", "train.mel_loss_weight", "train.strange",
        "model.scale_by_std", "data.categories",
    }  # fmt: skip


@pytest.mark.parametrize("layout", ["modelV1", "model.py"])
def test_the_nets_that_it_names(tmp_path: Path, layout: str) -> None:
    recipe, unmapped = convert_config(written_files(tmp_path, layout, epochs=3))
    model = OmegaConf.to_container(OmegaConf.create(recipe), resolve=True)["model"]["init_args"]
    net = build(model["net"])
    assert net.unet.fusion == {"modelV1": "replace", "model.py": "residual"}[layout]
    assert net.global_encoder.n_mels == MELS
    assert net.global_encoder.pos_encoding.shape[2] == {"modelV1": 128, "model.py": 32}[layout]
    assert build(model["features"]).kind == "projectlily"
    assert build(model["autoencoder"]).latent_channels == 4
    assert recipe["trainer"]["max_epochs"] == 3 and any("no audio in" in line for line in unmapped)
    assert recipe["trainer"]["plugins"] and model["compile"] and net.unet.checkpointing  # the window's defaults


def test_audiosrs_own_configuration(tmp_path: Path) -> None:
    path = written_files(tmp_path, "audiosr")
    values = yaml.safe_load(path.read_text())
    del values["data"]
    values["model"]["target"] = "audiosr.latent_diffusion.models.ddpm.LatentDiffusion"
    stft, mel = {"filter_length": 1024, "hop_length": 441}, {"n_mel_channels": 128, "mel_fmin": 20}
    values["preprocessing"] = {"audio": {"sampling_rate": 44100}, "stft": stft, "mel": mel}
    path.write_text(yaml.safe_dump(values))
    recipe, _ = convert_config(path)
    sizes = {"sample_rate": 44100, "n_fft": 1024, "hop_length": 441, "n_mels": 128, "f_min": 20}
    assert recipe["model"]["init_args"]["features"]["init_args"] == {"kind": "audiosr", **sizes}
    assert recipe["data"]["init_args"]["segment_samples"] == round(10.24 * 44100)


def test_weights_to_start_from(tmp_path: Path) -> None:
    (tmp_path / "step_1.pt").touch()
    start = {"pretrained_path": str(tmp_path / "step_1.pt"), "freeze_substrings": ["input_blocks"]}
    recipe, unmapped = convert_config(written_files(tmp_path, "modelV1", **start))
    assert recipe["init_from"] == start["pretrained_path"]
    assert any(line.startswith("train.freeze_substrings: ") for line in unmapped)
    recipe, unmapped = convert_config(written_files(tmp_path, "modelV1", pretrained_path="gone.pt"))
    assert "init_from" not in recipe and any("no file at gone.pt" in line for line in unmapped)
