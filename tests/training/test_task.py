"""What the constructors of a task and of its Inference have in common."""

import importlib
import inspect

import pytest

from zoo.common import registry
from zoo.training.task import ZooTask


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
    task, inference = (
        inspect.signature(cls).parameters,
        inspect.signature(registry.find(cls.inference_class)).parameters,
    )
    options = ZooTask.inference_options.fget(cls.__new__(cls))  # type: ignore[attr-defined]
    assert not {*options} & {*cls.inference_parts}
    assert [task[name].default for name in options] == [inference[name].default for name in options]


def test_there_are_tasks() -> None:
    assert len(tasks()) > 10
