import importlib
import inspect
import sys
from pathlib import Path

import pytest
import torch

from zoo.common import registry
from zoo.common.build import build
from zoo.miipher.data.datamodule import DegradationOptions


@pytest.mark.parametrize("package", registry.PACKAGES)
def test_every_public_name_is_a_class_of_its_package(package: str) -> None:
    names = registry.component_names(package)
    assert names
    for name in names:
        cls = registry.get_class(name)
        assert cls.__module__.startswith(f"{package}.")
        assert registry.public_name(cls) == name
        assert getattr(importlib.import_module(package), cls.__name__) is cls


@pytest.mark.parametrize("package", registry.EXTERNAL_CLASSES)
def test_lists_of_other_projects_name_classes_that_exist(package: str) -> None:
    optional = {"CometLogger", "NeptuneLogger"}
    for name in registry.EXTERNAL_CLASSES[package].split():
        if name not in optional:
            assert isinstance(registry.get_class(f"{package}.{name}"), type)


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "zoo.flow", "zoo.flow.UNet.load_state_dict", "zoo.flow._UNet", "torch.nn.functional.relu"),
        *("lightning.pytorch.callbacks.LambdaCallback", "UNet", "", ".", "zoo..UNet", "zoo.flow.UNet "),
        "torch.optim.lr_scheduler.ReduceLROnPlateau",  # our tasks step it without a value
    ],
)
def test_refuses_in_one_line(name: str) -> None:
    with pytest.raises(ValueError) as error:
        registry.get_class(name)
    assert "\n" not in str(error.value)


def test_a_slot_takes_its_base_class_only() -> None:
    path = {"class_path": "zoo.flow.Cosine"}
    mel = {"class_path": "zoo.audio.LogMel"}
    with pytest.raises(ValueError, match=r"zoo\.audio\.LogMel does not fit here: expected a zoo\.flow\.AffinePath"):
        build(mel, registry.get_class("zoo.flow.AffinePath"))
    with pytest.raises(ValueError, match=r"does not fit here: expected a zoo\.flow\.VelocityNet"):
        build({"class_path": "zoo.flow.Sampler", "init_args": {"net": path}})
    with pytest.raises(ValueError, match="expected a plain value"):  # n_mels: int
        build({"class_path": "zoo.audio.LogMel", "init_args": {"n_mels": path}})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"class_path": ["zoo.flow.UNet"]}, "expected the name of a class"),
        ({"class_path": "zoo.flow.AffinePath"}, "is a base class"),
        ({"class_path": "zoo.audio.LogMel", "init_args": [1]}, "init_args are a mapping"),
        ({"class_path": "zoo.audio.LogMel", "init_args": {3: 1}}, "init_args are a mapping"),
        ({"class_path": "zoo.audio.LogMel", "init_args": {"n_mel": 1}}, "cannot be built"),
    ],
)
def test_refuses_odd_descriptions(spec: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(spec)


def test_components_are_built_at_any_depth() -> None:
    mel = build([{"a": {"class_path": "zoo.audio.LogMel", "init_args": {"n_mels": 40}}}, None])[0]["a"]
    assert mel(torch.zeros(1, 4096)).shape == (1, 40, 16)


def test_lists_of_a_file_are_the_tuples_that_an_argument_is() -> None:
    data = build({"class_path": "zoo.flow.ImageData", "init_args": {"root": None, "background": [0, 0, 9]}})
    assert data.framing.background == (0, 0, 9)
    room = {"class_path": "zoo.compressed_ad.Darkroom", "init_args": {"start": [1, 2]}}
    assert build(room).start_cell == (1, 2)  # of an argument that may be None


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shapes.py").write_text(
        "from subprocess import Popen\n\nimport zoo\n\n\n"
        "class Circle: pass\n\n\nclass Hidden: pass\n\n\n"
        "__getattr__, __dir__, __all__ = zoo.register(__name__, {'': 'Circle Absent Popen'})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "shapes"
    sys.modules.pop("shapes", None)
    registry._modules.pop("shapes", None)


def test_packages_of_the_user(package: str) -> None:
    with pytest.raises(ValueError, match="--allow-import PACKAGE"):
        registry.get_class("shapes.Circle")
    assert package not in sys.modules
    registry.allow_packages([package])
    assert inspect.isclass(registry.get_class("shapes.Circle"))
    for name in ("shapes.Hidden", "shapes.Popen", "shapes.Absent"):
        with pytest.raises(ValueError):
            registry.get_class(name)
    with pytest.raises(ValueError, match=r'zoo.register\(__name__, {"optim": "Lion"}\)` in shapes/__init__.py'):
        registry.get_class("shapes.optim.Lion")


def test_names_twice_and_names_that_are_none() -> None:
    with pytest.raises(ValueError, match="listed twice"):
        registry.register("pairs", {"a": "X", "b": "X"})
    with pytest.raises(ValueError, match="dotted name of a package"):
        registry.allow_packages(["../evil"])


def test_slots_of_arguments_that_are_handed_on() -> None:
    degrader = registry.constructor_annotations(DegradationOptions)["degrader"]
    assert registry.get_class("zoo.audio.Degrader", degrader)
