from pathlib import Path

import pytest

from zoo.ui.forms.explain import explain
from zoo.ui.forms.recipes import Need, device_of, needs


def test_devices() -> None:
    assert device_of("cpu", ["A"])[0].startswith("the CPU") and device_of("gpu", ["A"]) == ("the GPU (A)", True)
    assert device_of("gpu", [])[1] is False and "shows none" in device_of("auto", [])[0]


def test_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOO_DATA", raising=False)
    (tmp_path / "mine").mkdir()
    recipe = {"data": {"root": "${oc.env:ZOO_DATA,data}/speech", "size": 3}}
    assert needs([recipe], {}, tmp_path) == [Need("data.root", "data/speech", False)]
    assert needs([recipe], {"data.root": "mine"}, tmp_path) == [Need("data.root", "mine", True)]
    assert needs([recipe, {"data": {"root": None}}], {}, tmp_path) == []


def test_help_comes_from_the_sources() -> None:
    values = {"model.class_path": "zoo.flow.FlowTask", "model.init_args.net.class_path": "zoo.flow.UNet"}
    label_drop = explain(values, "model.init_args.label_drop")
    assert "probability" in label_drop.text and label_drop.kind == "float" and label_drop.takes_null is False
    assert explain(values, "checkpoints.every_n_steps").takes_null is True
    assert "Stop training" in explain(values, "trainer.max_steps").text
    assert explain(values, "model.init_args.net.init_args.channels").text
    assert explain(values, "model.init_args.of.nobody").text == ""
