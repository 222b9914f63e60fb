from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.flow.conditions import digits, prepared
from zoo.blocks.autoencoder import AutoencoderKL, kl_divergence
from zoo.cli.main import main
from zoo.flow.data.latents import LatentData
from zoo.flow.inference.reconstructor import Reconstructor
from zoo.flow.inference.sampler import Sampler
from zoo.flow.nets.autoencoder import FrozenAutoencoder, LatentSpace
from zoo.flow.nets.dit import DiT
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.solvers import Solver
from zoo.flow.process.time_samplers import UniformTimes
from zoo.flow.task import FlowTask
from zoo.flow.task_vae import AutoencoderTask
from zoo.runs.load import load

SIZES = {"in_channels": 1, "out_channels": 1, "block_out_channels": [2], "layers_per_block": 1}
SIZES |= {"latent_channels": 1, "norm_num_groups": 1}
SMOKE = "flow/smoke_autoencoder"


class Identity(nn.Module):
    """Encodes an image as itself, with no spread."""

    latent_channels, image_channels, factor = 1, 1, 1

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.full_like(x, -30.0)], dim=1)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return z


def test_the_divergence_is_that_of_gaussians() -> None:
    moments = torch.randn(3, 4, 2, 2, dtype=torch.float64)
    mean, log_variance = moments.float().chunk(2, dim=1)
    actual = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    expected = torch.distributions.kl_divergence(actual, torch.distributions.Normal(0.0, 1.0)).flatten(1).sum(dim=1)
    torch.testing.assert_close(kl_divergence(moments), expected)


def test_losses_and_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = AutoencoderTask(AutoencoderKL(**SIZES), torch.optim.SGD, kl=0.5)
    task.log_terms = lambda *args, **kwargs: None
    batch = prepared(digits(tmp_path)).train_set.__getitems__([(0, 1), (0, 2), (0, 3)])
    loss = task.training_step(batch, 0)
    assert torch.equal(loss, task.training_step(task.prepare_training_batch(batch), 0))  # of its seeds
    loss.backward()
    assert all(weight.grad is not None for weight in task.net.parameters())
    terms, count = task.evaluate(batch, 0, "val")
    with torch.no_grad():
        moments = task.net.encode(batch["x1"])
        made = task.net.decode(moments[:, :1])
    torch.testing.assert_close(terms["l1"], (made - batch["x1"]).abs().mean())
    torch.testing.assert_close(terms["loss"], terms["l1"] + 0.5 * kl_divergence(moments).mean())
    assert count == 3
    with pytest.raises(ValueError, match="kl"):
        AutoencoderTask(task.net, torch.optim.SGD, kl=-1.0)


def test_an_identity_gives_what_pixels_give(tmp_path: Path) -> None:
    frozen = FrozenAutoencoder(config={**SIZES, "scaling_factor": 1.0})
    frozen.net = Identity()
    space = LatentSpace(frozen)
    torch.manual_seed(0)
    net = DiT(8, 1, depth=1, dim=16, heads=2, num_classes=10)
    nn.init.normal_(net.tail.weight)

    def task(**arguments: object) -> FlowTask:
        made = FlowTask(net, ConditionalOT(0.0), UniformTimes(), torch.optim.SGD, **arguments)
        made.log_terms = lambda *args, **kwargs: None
        return made

    plain = prepared(digits(tmp_path, flips=True))
    made = prepared(LatentData(digits(tmp_path, flips=True), 4, str(tmp_path)), latents=space)
    keys = [(epoch, item) for epoch in range(2) for item in range(8)]
    actual, pixels = made.train_set.__getitems__(keys), plain.train_set.__getitems__(keys)
    torch.testing.assert_close(actual["x1"], pixels["x1"], atol=1e-3, rtol=0)  # of half precision
    assert torch.equal(actual["x0"], pixels["x0"])
    loss, expected = task(latents=space).training_step(actual, 0), task().training_step(pixels, 0)
    torch.testing.assert_close(loss, expected, atol=2e-3, rtol=2e-3)
    samplers = [Sampler(net, ConditionalOT(0.0), Solver("euler", 3), latents=each) for each in (space, None)]
    torch.testing.assert_close(*(each.sample([1, 2], [3, 4]) for each in samplers))


def test_a_run_is_read_as_a_frozen_autoencoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--trainer.limit_val_batches=1"]
    few += ["--trainer.num_sanity_val_steps=0", "--samples.enabled=false", "--trainer.enable_progress_bar=false"]
    assert main(["fit", SMOKE, *few, "--trainer.default_root_dir=runs/ae"]) == 0
    model = load(Path("runs/ae"))
    assert isinstance(model, Reconstructor)
    for source in ("runs/ae", "runs"):
        frozen = FrozenAutoencoder(source)
        assert all(torch.equal(v, model.net.state_dict()[name]) for name, v in frozen.net.state_dict().items())
        assert not bool(LatentSpace(frozen).is_fitted)  # a scale is for the data to tell
    assert main(["export", "runs/ae", "exported"]) == 0
    assert FrozenAutoencoder("exported").fingerprint() == frozen.fingerprint()
    Path("copy").mkdir()
    frozen.save_source(Path("copy"))
    assert FrozenAutoencoder("copy").fingerprint() == frozen.fingerprint()
    images = np.zeros((1, 8, 10, 1), np.uint8)
    assert model(images).shape == (1, 8, 10, 1) and model.dry_run() == "1 image of shape (16, 16, 1)"
    Image.fromarray(np.arange(99, dtype=np.uint8).reshape(9, 11)).save("odd.png")
    facts = model.process_file(Path("odd.png"), Path("out.png"))
    assert (facts["width"], facts["height"]) == (10, 8) and Image.open("out.png").size == (10, 8)
    assert [part.kind for part in model.answer({"input": Path("odd.png")}, tmp_path, lambda *a: None)][:2] == [
        "image", "image",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="expected images"):
        model(images[0])
