from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.harness import RUNS
from zoo.common import registry

RUN = RUNS / "hifigan" / "smoke"


def test_a_single_net(tmp_path: Path) -> None:
    whole = zoo.load(RUN)
    state = torch.random.get_rng_state()
    net, description = zoo.load_net(RUN, zoo.hifigan.WaveformGenerator)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not net.training and not any(parameter.requires_grad for parameter in net.parameters())
    assert not any("parametrizations" in name for name in net.state_dict())
    mel = torch.randn(1, net.in_channels, 8)
    torch.testing.assert_close(net(mel), whole.generator(mel), rtol=0, atol=1e-6)
    description.save(tmp_path, net, "zoo.hifigan.Vocoder")
    again, same = zoo.load_net(tmp_path, type(net))
    assert same == description._replace(others={}) and description.others.keys() == {"mel", "sample_rate"}
    torch.testing.assert_close(again.state_dict(), net.state_dict(), rtol=0, atol=0)


def test_random_weights_depend_on_the_seed_alone() -> None:
    spec = zoo.load_net(RUN, zoo.hifigan.Generator)[1].spec
    first, second, other = (
        zoo.load_net(spec, zoo.hifigan.Generator, seed)[0].conv_pre.weight.sum() for seed in (1, 1, 2)
    )
    assert first == second != other


@pytest.mark.parametrize(
    ("source", "base", "error", "message"),
    [
        (RUN / "none", "zoo.hifigan.Generator", FileNotFoundError, "train that stage first"),
        (RUN, "zoo.audiosr.UNet", ValueError, "one component of class zoo.audiosr.UNet"),
    ],
)
def test_refuses_what_holds_no_such_net(source: Any, base: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        zoo.load_net(source, registry.get_class(base))
