"""Options that a task and its inference class share, means over ranks, the kernel of an optimizer, compiling."""

import copy
import importlib
import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from zoo.common import registry
from zoo.training.optimizers import prepare_optimizer
from zoo.training.task import WeightedMeans, ZooTask, compile_module

# options whose defaults differ
OWN_DEFAULTS = {"zoo.audiosr.DistillationTask": ["guidance_scale"]}  # of a student: in its weights


def find_tasks() -> list[type[ZooTask]]:
    """All public tasks that name an inference class."""
    tasks = []
    for name in (name for package in registry.PACKAGES for name in registry.component_names(package)):
        package, _, attribute = name.rpartition(".")
        cls = getattr(importlib.import_module(package), attribute)
        if isinstance(cls, type) and issubclass(cls, ZooTask) and hasattr(cls, "inference_class"):
            tasks.append(cls)
    assert len(tasks) > 10
    return tasks


def default(cls: type, name: str) -> object:
    """The default of an argument, which a class may pass to its base."""
    signatures = (inspect.signature(each).parameters for each in cls.__mro__)
    return next(parameters[name].default for parameters in signatures if name in parameters)


@pytest.mark.parametrize("cls", find_tasks(), ids=registry.public_name)
def test_options_have_the_same_default_in_both(cls: type[ZooTask]) -> None:
    inference = registry.get_class(cls.inference_class)
    options = ZooTask.inference_options.fget(cls.__new__(cls))  # type: ignore[attr-defined]
    assert not {*options} & {*cls.inference_modules}
    options = tuple(name for name in options if name not in OWN_DEFAULTS.get(registry.public_name(cls), ()))
    assert [default(cls, name) for name in options] == [default(inference, name) for name in options]


def test_means_weigh_items() -> None:
    means = WeightedMeans()
    means.add({"a": torch.tensor(1.0), "b": 4.0}, weight=1)
    means.add({"a": 2.0}, weight=3)
    assert means.compute() == {"a": pytest.approx(1.75), "b": 4.0}
    means.reset()
    assert means.compute() == {}
    means.add({"a": 1.0}, weight=0)
    assert math.isnan(means.compute()["a"])


def make_weights() -> list[torch.nn.Parameter]:
    weights = [torch.nn.Parameter(torch.randn(n, 3)) for n in (1, 5)]
    for weight in weights:
        weight.grad = torch.randn(weight.shape)
    return weights


def test_recipe_and_shards_choose_the_kernel_themselves() -> None:
    assert prepare_optimizer(torch.optim.Adam(make_weights()), None).param_groups[0]["fused"]
    for options in ({"fused": False}, {"foreach": True}, {"foreach": False}):
        group = prepare_optimizer(torch.optim.AdamW(make_weights(), **options), None).param_groups[0]
        assert {name: group[name] for name in options} == options and not group["fused"]
    sgd = torch.optim.SGD(make_weights(), lr=0.1)
    assert prepare_optimizer(sgd, None).param_groups[0]["fused"] is None
    sharded = SimpleNamespace(strategy=SimpleNamespace(shards_weights=True))
    assert prepare_optimizer(torch.optim.Adam(make_weights()), sharded).param_groups[0]["fused"] is None  # type: ignore[arg-type]


def test_a_fused_kernel_leaves_unscaling_to_the_scaler() -> None:
    """Else Lightning refuses to clip, and norms and guards see scaled gradients."""
    plugin = MixedPrecision("16-mixed", "cuda", torch.amp.GradScaler("cpu"))
    plugin.clip_gradients(prepare_optimizer(torch.optim.Adam(make_weights(), fused=True), None), 1.0)


def test_resumed_run_steps_with_the_kernel_of_its_beginning() -> None:
    first, resumed = torch.optim.AdamW(make_weights(), lr=0.1), torch.optim.AdamW(make_weights(), lr=0.1)
    first.step()
    prepare_optimizer(resumed, None).load_state_dict(copy.deepcopy(first.state_dict()))
    assert not resumed.param_groups[0]["fused"]


def test_failed_compilation_runs_uncompiled_and_keeps_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = torch.nn.Linear(2, 1), torch.ones(1, 2)
    expected, keys = net(inputs), list(net.state_dict())

    def fail(*args: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fail)
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", False)  # restored afterwards
    compile_module(net)
    assert torch.equal(net(inputs), expected) and list(net.state_dict()) == keys
