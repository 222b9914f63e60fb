"""What the constructors of a task and of its Inference have in common."""

import importlib
import inspect

import pytest

from zoo.common import registry
from zoo.training.task import ZooTask

# runs and exports say them, as their configs are complete
OWN = {
    "zoo.audiosr.DistillationTask": ["guidance_scale"],  # of a student: in its weights
    "zoo.compressed_ad.RL2Task": ["episodes"],  # of a trial that it trains on: longer ones cost more
}


def tasks() -> list[type[ZooTask]]:
    """All public tasks that name an Inference."""
    found = []
    for name in (name for package in registry.PACKAGES for name in registry.names(package)):
        package, _, attribute = name.rpartition(".")
        cls = getattr(importlib.import_module(package), attribute)
        if isinstance(cls, type) and issubclass(cls, ZooTask) and hasattr(cls, "inference_class"):
            found.append(cls)
    return found


@pytest.mark.parametrize("cls", tasks(), ids=registry.public_name)
def test_options_have_the_same_default_in_both(cls: type[ZooTask]) -> None:
    inference = registry.find(cls.inference_class)
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
