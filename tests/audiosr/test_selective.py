"""Each mode trains its groups and nothing else, bit for bit."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.audiosr.task_parts import Data, denoiser, task, trainer
from zoo.audiosr.task import train_only

UNET = ["time_embed", "input_blocks", "middle_block", "output_blocks", "out", "global_fusion"]
CUSTOM = ["middle_block", "global_fusion"]


@pytest.mark.parametrize(
    ("trains", "groups"),
    [
        ("full", [*UNET, "global_encoder"]),
        ("global_encoder", ["global_encoder"]),
        ("unet_only", UNET),
        (CUSTOM, CUSTOM),
    ],
    ids=str,
)
def test_exactly_the_groups_of_a_mode_change(trains: Any, groups: list[str], tmp_path: Path) -> None:
    net = denoiser("residual")
    with torch.no_grad():  # layers that start at zero would keep gradients from those before them
        for parameter in net.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = task(net, trains=trains)
    run = trainer(tmp_path, max_steps=2)
    run.fit(model, datamodule=Data())
    names = net.groups()
    assert set(names) == {*UNET, "global_encoder"}
    assert sorted(chain(*names.values())) == sorted(name for name, _ in net.named_parameters())
    chosen = {name for group in groups for name in names[group]}
    changed = {name for name, value in net.named_parameters() if not torch.equal(value, before[name])}
    assert changed <= chosen
    for group in groups:  # the vector alone is used, so the encoder's tokens get no gradient
        assert changed & set(names[group]), group
    with_state = {id(parameter) for parameter in run.optimizers[0].state}
    assert with_state <= {id(net.get_parameter(name)) for name in chosen}
    assert {id(net.get_parameter(name)) for name in changed} <= with_state
    statistics = [name for name, _ in net.named_buffers() if "running" in name or "num_batches" in name]
    moved = [name for name in statistics if not torch.equal(net.state_dict()[name], before[name])]
    assert moved == (statistics if "global_encoder" in groups else [])


@pytest.mark.parametrize("trains", ["global_encoder", ["middle_block", "vae"], []])
def test_groups_that_a_net_has_not_are_refused(trains: Any) -> None:
    with pytest.raises(ValueError, match="this net has the groups"):
        train_only(denoiser(), trains)
