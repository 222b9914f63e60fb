"""Tables of names, sizes and settings, with a project made up for the purpose; the engine is tested by its systems."""

from pathlib import Path

import pytest
import torch

from zoo.cli.main import main
from zoo.convert.engine import OriginalFile
from zoo.convert.network_description import component, count_blocks, fill_description, has_tensor, setting, size_of_axis
from zoo.convert.settings import SettingsReader
from zoo.convert.tensor_names import NameRule, NameTable, strip_state_wrappers
from zoo.flow.nets.mlp import ToyNet

LAYER = NameTable(("ff.0.{leaf}", "norm.{leaf}"), ("ff.1.{leaf}", "down.{leaf}"))
NAMES = NameTable(
    ("head", "out"),
    ("blocks.{n}.", "layers.{n}.", LAYER),
    NameRule("gain.{n}", "scales.{n}", read=lambda value: value / 2, write=lambda value: value * 2),
    ("rest.{rest}", "{rest}"),
)


def test_names_are_read_in_both_directions():
    original_state = {"head": 1.0, "blocks.1.ff.1.bias": 2.0, "blocks.1.ff.0.bias": 3.0, "gain.7": 4.0, "rest.a.b": 5.0}
    state, unexpected_keys = NAMES.read({**original_state, "other": 6.0, "blocks.x.ff.0.bias": 7.0})
    assert state == {"out": 1.0, "layers.1.down.bias": 2.0, "layers.1.norm.bias": 3.0, "scales.7": 2.0, "a.b": 5.0}
    assert unexpected_keys == ["other", "blocks.x.ff.0.bias"]
    back = NAMES.write(state)
    assert back == original_state
    assert list(back) == ["head", "blocks.1.ff.0.bias", "blocks.1.ff.1.bias", "gain.7", "rest.a.b"]


def test_two_names_of_one_tensor_are_refused_where_they_differ():
    one, other = torch.ones(2), torch.zeros(2)
    with pytest.raises(ValueError, match="out here"):
        NAMES.read({"head": one, "rest.out": other})
    assert NAMES.read({"head": one, "rest.out": one.clone()})[0]["out"] is not None
    with pytest.raises(ValueError, match="a of the file"):
        strip_state_wrappers({"module.a": one, "a": other})
    with pytest.raises(ValueError, match="_orig_mod"):
        strip_state_wrappers({"b": one, "_orig_mod.b": torch.ones(3)})
    assert list(strip_state_wrappers({"module.module._orig_mod.a.0": one, "a.0": one.clone()})) == ["a.0"]


@pytest.mark.parametrize("value", [2.7, True, "2.5", "two", float("nan")])
def test_whole_number_is_not_rounded(value):
    settings = SettingsReader({"steps": value}, Path("config.yaml"))
    with pytest.raises(ValueError, match="expected a whole number"):
        settings.number("steps", 1, int)
    assert SettingsReader({"steps": "2e0"}, Path("config.yaml")).number("steps", 1, int) == 2


def test_write_follows_the_order_of_the_table():
    names = [f"layers.{block}.{name}.bias" for name in ("down", "norm") for block in (10, 2)]
    assert list(NAMES.write(dict.fromkeys(names, 0))) == [
        f"blocks.{block}.ff.{number}.bias" for block in (2, 10) for number in (0, 1)
    ]
    with pytest.raises(ValueError, match="no tensor like layers"):
        NameTable(("a", "b")).write({"layers": 0})


def test_descriptions_are_filled_from_tensors_and_settings():
    table = component(
        "zoo.Net",
        dim=size_of_axis("w", 1),
        depth=count_blocks("blocks."),
        norm=has_tensor("norm"),
        heads=setting("heads", 4, int),
        inner=lambda source: component("zoo.Inner", dim=size_of_axis("w")) if "w" in source.state else None,
    )
    state = {"w": torch.zeros(2, 3), "blocks.0.a": torch.zeros(1), "blocks.0.b": torch.zeros(1), "blocks.3.a": 0}
    spec = fill_description(table, OriginalFile("", state, {"heads": "8"}), "a.pt")
    inner = {"class_path": "zoo.Inner", "init_args": {"dim": 2}}
    assert spec["init_args"] == {"dim": 3, "depth": 2, "norm": False, "heads": 8, "inner": inner}
    with pytest.raises(ValueError, match=r"a\.pt: the sizes of its net cannot be told from its tensors \('w'\)"):
        fill_description(table, OriginalFile(""), "a.pt")


def test_settings_are_taken():
    values = {"a": {"b": 1, "c": None}, "lr": "3e-5", "on": True, "word": False, "left": 2, "pin": 1, "hint": 3}
    settings = SettingsReader(values, Path("c.yaml"), implied=("pin",), hints={"hint": "do so"})
    assert (settings.get("a.b"), settings.get("a.c", 5), settings.number("lr", 0)) == (1, 5, 3e-5)
    assert settings.flag("on", False) and settings.choice("word", "x", {"no": "none"}) == "none"
    assert settings.unused() == ["left", "hint: do so"]
    for read, message in (
        (lambda: settings.require("x"), r"c\.yaml lacks x"),
        (lambda: settings.number("on.x", "fast"), "on.x is 'fast', expected a number"),
        (lambda: settings.choice("lr", "x", {"no": 1}), "lr is one of no, not '3e-5'"),
    ):
        with pytest.raises(ValueError, match=message):
            read()


def test_damaged_original_is_refused(tmp_path: Path, capsys) -> None:
    path = tmp_path / "damaged.pt"
    net = ToyNet(2, (64,))
    torch.save({f"network.{key}": value for key, value in net.state_dict().items()}, path)
    data = bytearray(path.read_bytes())
    place = data.find(net.state_dict()["net.0.fc.weight"].numpy().tobytes()[:64])
    data[place] ^= 1
    path.write_bytes(data)
    for args in (["inspect", path], ["convert", "flow", path, tmp_path / "export"]):
        assert main(list(map(str, args))) == 1
        assert "damaged.pt: damaged, the checksum of" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()
