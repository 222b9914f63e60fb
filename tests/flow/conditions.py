"""Tiny parts of a flow: of one that is conditioned on texts and images, and of one in latents."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.flow import ConditionalOT, DiT, FlowTask, FrozenAutoencoder, FrozenText, ImageData, UniformTimes, VelocityNet

T5 = {"model_type": "t5", "vocab_size": 384, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}


def text(**arguments: Any) -> FrozenText:
    return FrozenText(config=T5, max_tokens=8, **arguments)


def net(**arguments: Any) -> DiT:
    """A transformer that is past its start, where every condition counts for nothing."""
    torch.manual_seed(0)
    made = DiT(8, 1, depth=1, dim=16, heads=2, **{"num_classes": 0, "context_dim": 8, **arguments})
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return made


def prepared(data: ImageData, **task: Any) -> ImageData:
    """Data set up for a task of these parts."""
    strategy = SimpleNamespace(
        root_device=torch.device("cpu"), barrier=lambda name: None, broadcast=lambda value: value
    )
    trainer = SimpleNamespace(strategy=strategy, global_rank=0, world_size=1)
    trainer.lightning_module = SimpleNamespace(trainer=trainer, **task)
    data.trainer = trainer
    data.prepare_data()
    data.setup("fit")
    return data


def digits(folder: Path, **arguments: Any) -> ImageData:
    return ImageData(image_resolution=8, channels=1, max_per_class=10, cache=str(folder), **arguments)


def autoencoder(seed: int = 0, **sizes: Any) -> FrozenAutoencoder:
    """Two channels of latents at half the size of grey images."""
    config = {"in_channels": 1, "out_channels": 1, "block_out_channels": [4, 8], "layers_per_block": 1}
    return FrozenAutoencoder(config={**config, "latent_channels": 2, "norm_num_groups": 2, **sizes}, seed=seed)


class Shade(VelocityNet):
    """Images whose pixels depend on the noise and the label."""

    def __init__(self) -> None:
        super().__init__()
        self.sample_shape, self.num_classes = (1, 4, 4), 3
        self.gain = nn.Parameter(torch.tensor(0.2))

    def forward(self, x: Tensor, t: float, label: Tensor | None = None) -> Tensor:
        assert label is not None
        return self.gain * label.reshape(-1, 1, 1, 1) - 0.5 * x


def quiet_task(net: VelocityNet, optimizer: Any = torch.optim.SGD, **arguments: Any) -> FlowTask:
    """A task that logs nowhere."""
    made = FlowTask(net, ConditionalOT(0.0), UniformTimes(), optimizer, **arguments)
    made.log_terms = lambda *args, **kwargs: None
    return made
