"""What the constructors of a task and of its Inference have in common, and how a task's optimizer steps."""

import copy
import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch

from zoo.common import registry
from zoo.training.task import ZooTask, stepping_at_once

# runs and exports say them, as their configs are complete
OWN = {
    "zoo.audiosr.DistillationTask": ["guidance_scale"],  # of a student: in its weights
}


def tasks() -> list[type[ZooTask]]:
    """All public tasks that name an Inference."""
    found = []
    for name in (name for package in registry.PACKAGES for name in registry.component_names(package)):
        package, _, attribute = name.rpartition(".")
        cls = getattr(importlib.import_module(package), attribute)
        if isinstance(cls, type) and issubclass(cls, ZooTask) and hasattr(cls, "inference_class"):
            found.append(cls)
    return found


@pytest.mark.parametrize("cls", tasks(), ids=registry.public_name)
def test_options_have_the_same_default_in_both(cls: type[ZooTask]) -> None:
    inference = registry.get_class(cls.inference_class)
    options = ZooTask.inference_options.fget(cls.__new__(cls))  # type: ignore[attr-defined]
    assert not {*options} & {*cls.inference_parts}
    own = OWN.get(registry.public_name(cls), ())
    options = tuple(name for name in options if name not in own)
    assert [default(cls, name) for name in options] == [default(inference, name) for name in options]


def default(cls: type, name: str) -> object:
    """Of an argument, which a class may hand on to its base."""
    signatures = (inspect.signature(each).parameters for each in cls.__mro__)
    return next(found[name].default for found in signatures if name in found)


def test_there_are_tasks() -> None:
    assert len(tasks()) > 10


def weights(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(n, 3, generator=generator).to(dtype)) for n in (1, 5)]
    for weight in made:
        weight.grad = torch.randn(weight.shape, generator=generator).to(dtype)
    return made


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_kernel_steps_as_many_do(kind: type[torch.optim.Adam], dtype: torch.dtype) -> None:
    one, many = (kind(weights(dtype), lr=0.1) for _ in range(2))
    stepping_at_once(one, None)
    assert [group["fused"] for group in one.param_groups] == [True]
    for _ in range(3):
        one.step()
        many.step()
    for first, second in zip(one.param_groups[0]["params"], many.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(first, second)


def test_what_a_recipe_says_of_the_kernels_stays() -> None:
    for more in ({"fused": False}, {"foreach": True}, {"foreach": False}):
        group = stepping_at_once(torch.optim.AdamW(weights(), **more), None).param_groups[0]
        assert {name: group[name] for name in more} == more and not group["fused"]
    stochastic = torch.optim.SGD(weights(), lr=0.1)
    assert stepping_at_once(stochastic, None).param_groups[0]["fused"] is None
    sharded = SimpleNamespace(strategy=SimpleNamespace(shards_weights=True))
    assert stepping_at_once(torch.optim.Adam(weights()), sharded).param_groups[0]["fused"] is None  # type: ignore[arg-type]


def test_a_resumed_run_steps_as_it_began() -> None:
    begun, resumed = torch.optim.AdamW(weights(), lr=0.1), torch.optim.AdamW(weights(), lr=0.1)
    begun.step()
    stepping_at_once(resumed, None).load_state_dict(copy.deepcopy(begun.state_dict()))
    for first, second in zip(begun.param_groups[0]["params"], resumed.param_groups[0]["params"], strict=True):
        second.data.copy_(first)
    begun.step()
    resumed.step()
    for first, second in zip(begun.param_groups[0]["params"], resumed.param_groups[0]["params"], strict=True):
        assert torch.equal(first, second)
