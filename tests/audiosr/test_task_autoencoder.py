"""The autoencoder's task with and without a discriminator."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.audiosr.task_parts import AUTOENCODER, Data, features, trainer
from zoo.audiosr.losses import KL, Reconstruction
from zoo.audiosr.nets.discriminator import PatchDiscriminator
from zoo.audiosr.task_autoencoder import AdversarialAutoencoderTask, AutoencoderTask
from zoo.blocks.autoencoder import AutoencoderKL


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def simple(**settings: Any) -> AutoencoderTask:
    torch.manual_seed(0)
    losses = {"recon": Reconstruction(), "kl": KL(0.01)}
    return AutoencoderTask(AutoencoderKL(**AUTOENCODER), features(), losses, adam, media_items=0, **settings)


def adversarial(**settings: Any) -> AdversarialAutoencoderTask:
    torch.manual_seed(0)
    return AdversarialAutoencoderTask(
        AutoencoderKL(**{**AUTOENCODER, "dropout": 0.0}), features(), {"recon": Reconstruction(), "kl": KL(0.01)},
        {"patch": PatchDiscriminator(2, 2)}, adam, adam, {"d/patch": 1.0, "g/adv_patch": 0.1, "g/fm_patch": 0.0},
        media_items=0, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("build", [simple, adversarial])
def test_learns_and_reports(build: Any, tmp_path: Path) -> None:
    model, errors = build(), []
    for _ in range(2):
        run = trainer(tmp_path, max_steps=10, limit_val_batches=2)
        run.validate(model, datamodule=Data(), verbose=False)
        values = {key: float(value) for key, value in run.callback_metrics.items()}
        errors.append(values["val/l1"])
        assert {"val/l1", "val/l2", "val/kl", "val/recon", "val/loss", "val/latent_std"} <= set(values)
        assert values["val/loss"] == pytest.approx(values["val/recon"] + 0.01 * values["val/kl"], rel=1e-5)
        run.fit(model, datamodule=Data())
        assert run.global_step == 10
    assert errors[1] < 0.8 * errors[0]
