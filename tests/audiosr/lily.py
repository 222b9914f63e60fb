"""Small files as AudioSR and ProjectLily write them, with random weights, from nets built here."""

from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from zoo.audiosr.convert.autoencoder_names import to_original_autoencoder
from zoo.audiosr.nets.denoiser import GlobalEncoder
from zoo.audiosr.nets.unet import UNet
from zoo.blocks.autoencoder import AutoencoderKL
from zoo.hifigan.nets.generator import Generator

MELS, HEAD, CONTEXT = 32, 16, 16
VOCODER: dict[str, Any] = {
    "in_channels": MELS, "initial_channels": 16, "upsample_rates": [5, 2], "upsample_kernel_sizes": [10, 4],
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]],
}  # fmt: skip
UNET: dict[str, Any] = {
    "in_channels": 8, "out_channels": 4, "channels": 32, "multipliers": (1, 1), "blocks": 1, "attention_factors": (2,),
    "head_channels": HEAD,
}  # fmt: skip


def nets(layout: str, seed: int = 0) -> dict[str, nn.Module]:
    """AutoencoderKL, UNet, vocoder and, for ProjectLily's, global encoder, in evaluation mode."""
    torch.manual_seed(seed)
    slope, padding = (0.01, 0) if layout == "audiosr" else (0.1, 1)
    fusion = {"audiosr": "none", "modelV1": "replace", "model.py": "residual"}[layout]
    context = None if layout == "audiosr" else CONTEXT
    transformers = 1 if layout == "model.py" else 2
    made: dict[str, nn.Module] = {
        "vae": AutoencoderKL(1, 1, (32, 32), 1, 4),
        "unet": UNet(**UNET, transformers_per_down_block=transformers, fusion=fusion, context_channels=context),
        "vocoder": Generator(**VOCODER, last_slope=slope, output_padding=padding).remove_weight_norm_(),
    }
    if context:
        sizes = {"modelV1": (128, 4, 2), "model.py": (32, 8, 3)}[layout]
        made["encoder"] = GlobalEncoder(MELS, *sizes, context_channels=context)
    for net in made.values():
        for parameter in net.parameters():  # no layer may be without effect
            nn.init.normal_(parameter, std=0.05)
        net.eval()
    return made


def state_of(made: dict[str, nn.Module], layout: str) -> dict[str, Tensor]:
    """The flat state dict, with what nothing runs."""
    copy = "concat_lowpass_cond" if layout == "model.py" else "0"
    prefixes = {
        "unet": ["model.diffusion_model."],
        "encoder": ["model.diffusion_model.global_encoder."],
        "vae": ["first_stage_model.", f"cond_stage_models.{copy}.vae."],
        "vocoder": ["first_stage_model.vocoder.", f"cond_stage_models.{copy}.vae.vocoder."],
    }
    state = {"scale_factor": torch.tensor(0.37 if layout == "audiosr" else 1.0), "clap.model.weight": torch.ones(2)}
    for name, net in made.items():
        tensors = to_original_autoencoder(net.state_dict()) if name == "vae" else net.state_dict()
        for prefix in prefixes[name]:
            state |= {prefix + key: value.clone() for key, value in tensors.items()}
    return state


def config(layout: str, **train: Any) -> dict[str, Any]:
    """A config.yaml of ProjectLily."""
    module = "modelV1" if layout == "modelV1" else "model"
    unet = {
        "in_channels": 8, "out_channels": 4, "model_channels": 32, "channel_mult": [1, 1], "num_res_blocks": 1,
        "attention_resolutions": [2], "num_head_channels": HEAD, "use_global_encoder": True,
        "global_context_dim": CONTEXT,
    }  # fmt: skip
    if layout == "model.py":
        unet |= {"global_encoder_hidden_dim": 32, "global_encoder_heads": 8, "global_encoder_layers": 3}
    sizes = {"z_channels": 4, "ch": 32, "ch_mult": [1, 1], "num_res_blocks": 1, "dropout": 0.1, "mel_bins": MELS}
    params = {
        "base_learning_rate": 0.0002,
        "first_stage_config": {"params": {"ddconfig": sizes, "embed_dim": 4}},
        "unet_config": {"params": unet},
        "scale_factor": 1.0,
        "scale_by_std": True,
    }
    data = {"sample_rate": 16000, "n_fft": 512, "hop_length": 10, "n_mels": MELS, "fmin": 20.0, "fmax": 8000.0}
    return {"model": {"target": f"{module}.LatentDiffusion", "params": params}, "data": data, "train": train}


def write(folder: Path, layout: str, content: Any, name: str = "step_40.pt") -> Path:
    """A file with its configuration beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / name)
    settings = config(layout)
    if layout == "audiosr":
        settings["model"]["target"] = "audiosr.LatentDiffusion"
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder / name
