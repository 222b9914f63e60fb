"""Each mode trains its groups and nothing else, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.audiosr.task_parts import Data, Save, denoiser, task, trainer
from zoo.audiosr.task import train_only
from zoo.runs.checkpoints import load_checkpoint
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.rng import RNGState

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
    net = denoiser("film")
    with torch.no_grad():  # layers that start at zero would keep gradients from those before them
        for parameter in net.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = task(net, trains=trains)
    run = trainer(tmp_path, max_steps=5)
    run.fit(model, datamodule=Data())
    names = net.groups()
    assert set(names) == {*UNET, "global_encoder"}
    chosen = {name for group in groups for name in names[group]}
    changed = {name for name, value in net.named_parameters() if not torch.equal(value, before[name])}
    assert changed <= chosen
    for group in groups:  # the film vector alone is used, so the encoder's tokens get no gradient
        assert changed & set(names[group]), group
    with_state = {id(parameter) for parameter in run.optimizers[0].state}
    assert with_state <= {id(net.get_parameter(name)) for name in chosen}
    assert {id(net.get_parameter(name)) for name in changed} <= with_state
    statistics = [name for name, _ in net.named_buffers() if "running" in name or "num_batches" in name]
    moved = [name for name in statistics if not torch.equal(net.state_dict()[name], before[name])]
    assert moved == (statistics if "global_encoder" in groups else [])


def test_frozen_parts_rest_through_changes_of_mode() -> None:
    model = task(denoiser("film"), trains="unet_only")
    assert model.net.global_encoder is not None
    model.train()
    assert model.net.unet.training and not any(each.training for each in model.net.global_encoder.modules())


@pytest.mark.parametrize(
    ("trains", "message"),
    [
        ("all", "one of full, global_encoder, unet_only"),
        ("global_encoder", "has the groups time_embed, .*; found global_encoder"),
        (["middle_block", "vae"], "found vae"),
        ([], "found none"),
    ],
)
def test_wrong_modes(trains: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_only(denoiser(), trains)


def test_counts_of_weights() -> None:
    net = denoiser("film")
    counts = train_only(net, ["out"])
    assert counts == {"out": sum(parameter.numel() for parameter in net.unet.out.parameters())}
    assert [name for name, each in net.named_parameters() if each.requires_grad] == net.groups()["out"]


UNFREEZE = {"global_encoder": 2, "middle_block": 3}


def fit(folder: Path, resumed: Path | None = None) -> dict[int, dict[str, Any]]:
    """Checkpoints by step of five steps."""
    torch.manual_seed(0)  # of the encoder's dropout
    net = denoiser("film")
    generator = torch.Generator().manual_seed(3)
    for parameter in net.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    callbacks = [EMA(["net"], 0.9), RNGState(), Save(folder)]
    run = trainer(folder, max_steps=5, callbacks=callbacks, gradient_clip_val=0.5)
    run.fit(task(net, unfreeze=UNFREEZE), datamodule=Data(), ckpt_path=None if resumed is None else str(resumed))
    return {int(path.stem): load_checkpoint(path) for path in folder.glob("*.ckpt")}


def test_groups_join_at_their_step_and_a_resume_on_either_side_goes_on_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = fit(tmp_path / "whole")
    net = denoiser("film")
    order = [name for name, _ in net.named_parameters()]
    for group, first in UNFREEZE.items():
        names = net.groups()[group]
        for step, found in whole.items():
            moved = [
                name
                for name in names
                if not torch.equal(*(each["state_dict"][f"net.{name}"] for each in (whole[1], found)))
            ]
            states = {order[number] for number in found["optimizer_states"][0]["state"]} & set(names)
            assert bool(moved) == bool(states) == (step > first), (group, step)
    statistics = [name for name in whole[1]["state_dict"] if "running_mean" in name]
    same = [
        torch.equal(whole[step]["state_dict"][statistics[0]], whole[1]["state_dict"][statistics[0]]) for step in (2, 3)
    ]
    assert same == [True, False]
    for step in (1, 2, 3):
        folder = tmp_path / str(step)
        folder.mkdir()
        again = fit(folder, tmp_path / "whole" / f"{step}.ckpt")
        assert again.keys() == set(range(step + 1, 6))
        for key in ("state_dict", "optimizer_states", "ema"):
            torch.testing.assert_close(again[5][key], whole[5][key], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unfreeze": {"vae": 1}}, "unfreeze: 'vae' does not train; groups that do: time_embed"),
        ({"unfreeze": {"out": 1}, "trains": ["middle_block"]}, "'out' does not train; groups that do: middle_block"),
        ({"unfreeze": {"out": -1}}, "unfreeze.out is at least 0"),
        ({"unfreeze": {"out": 5}, "trains": ["out"]}, "nothing trains before step 5"),
    ],
    ids=str,
)
def test_wrong_steps(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(denoiser(), **settings)
